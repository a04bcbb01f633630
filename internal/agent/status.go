package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/preflight"
)

// Status is what an agent says of itself, on /health and in its log.
type Status struct {
	Armed       bool       `json:"armed"`       // could claim now if its leader went away
	Unprotected bool       `json:"unprotected"` // a running pair, or a half of one, that is not
	Whole       bool       `json:"whole"`
	Reason      string     `json:"reason"` // "none", or why not armed
	Remedy      string     `json:"remedy"`
	Role        string     `json:"role"` // the phase
	Generation  uint64     `json:"generation"`
	MemberID    string     `json:"member_id"`
	Leader      string     `json:"leader"` // member ID, empty without one
	Survivor    string     `json:"survivor"`
	Arbiter     string     `json:"arbiter"` // "ok", or why not
	ArbiterName string     `json:"arbiter_url"`
	Etcd        EtcdStatus `json:"etcd"`
	WaitingFor  string     `json:"waiting_for"`

	Checks   []preflight.Result `json:"checks"`
	Warnings []string           `json:"warnings"` // refusals of checks that keep it from being armed, whatever the core says

	record recordSeen
}

// recordSeen is what the core says, for the checks.
type recordSeen struct {
	status  failover.RecordStatus
	id      string
	cluster uint64
	written int64
	armed   bool
	why     failover.Reason
}

// EtcdStatus is the local etcd as the agent sees it.
type EtcdStatus struct {
	State   string `json:"state"` // away, no-leader, led
	PID     int    `json:"pid"`
	Mode    string `json:"mode"`
	Starts  uint64 `json:"starts"`
	Version string `json:"version"`
}

func (s Status) differs(o Status) bool {
	return s.Armed != o.Armed || s.Unprotected != o.Unprotected || s.Reason != o.Reason || s.Role != o.Role || s.Generation != o.Generation
}

var etcdStates = map[failover.EtcdState]string{
	failover.EtcdUnknown: "unknown", failover.EtcdAway: "away", failover.EtcdNoLeader: "no-leader", failover.EtcdLed: "led",
}

func statusOf(s failover.State, name string, p etcdproc.Process) Status {
	armed, why := s.Armed()
	st := Status{
		Armed: armed, Unprotected: !armed, Whole: s.Whole(), Reason: why.String(), Remedy: why.Remedy(),
		Role: s.Phase.String(), Generation: s.Rec.Generation,
		MemberID: hex(s.Obs.Member), Leader: hex(s.Obs.Leader), Survivor: hex(s.Rec.Survivor.ID),
		Arbiter: "ok", ArbiterName: name, WaitingFor: waitingFor(s),
		record: recordSeen{s.RecStatus, s.Rec.ID, s.Rec.ClusterID, s.Rec.WrittenAt, armed, why},
		Etcd:   EtcdStatus{State: etcdStates[s.Obs.Etcd], PID: p.PID, Mode: string(p.Mode), Starts: p.Starts},
	}
	if s.Obs.Version != 0 {
		st.Etcd.Version = fmt.Sprintf("%d.%d", s.Obs.Version>>16, s.Obs.Version&0xffff)
	}
	if s.RecStatus != failover.Readable {
		st.Arbiter = s.RecStatus.Reason().String()
	}
	return st
}

// waitingFor says in words what the agent's next move depends on.
func waitingFor(s failover.State) string {
	switch s.Phase {
	case failover.Following, failover.Leading:
		if s.Why == failover.None {
			return "nothing: the pair is whole"
		}
	case failover.Alone:
		if s.Why == failover.None {
			return "the other member to come back"
		}
	case failover.Stopping:
		return "etcd to stop and its locks"
	case failover.Deciding, failover.Claiming, failover.Rechecking:
		return "the arbiter"
	case failover.Appending:
		return "the append to the WAL"
	case failover.Releasing:
		return "etcd to start"
	case failover.Joining:
		return "the survivor's member list"
	case failover.Preparing:
		return "the WAL under its new member ID"
	case failover.Promoting:
		return "the promotion"
	case failover.Starting:
		return "a first look at etcd"
	}
	if w, ok := waits[s.Why]; ok {
		return w
	}
	return s.Why.String()
}

var waits = map[failover.Reason]string{
	failover.NoLeader:       "a leader, or claim-after",
	failover.NamedOther:     "the survivor",
	failover.SurvivorSilent: "the survivor to answer",
	failover.NotConfirmed:   "the survivor's confirmation",
	failover.HoldDown:       "the hold-down",
	failover.CatchingUpLog:  "the learner to catch up",
	failover.TokenPending:   "the pair token",
	failover.TokenMissing:   "the pair token",
	failover.RecordMissing:  "the record to be created",
	failover.RecordAbsent:   "a record in the store",
	failover.RecordUnread:   "the arbiter",
	failover.EtcdDown:       "etcd",
	failover.SwapUnknown:    "the outcome of the claim",
	failover.RateLimited:    "etcd to have run for a while",
}

// ServeHTTP answers GET /health with the status: 200 while armed or alone as the
// survivor and no check bars it, 503 otherwise.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/health" {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	st := a.Status()
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if alone := st.Role == failover.Alone.String() && st.Reason == failover.None.String(); !(st.Armed || alone) || len(st.Warnings) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(append(b, '\n')) // the client's loss
}

// reasonStuck is the reason of a member whose agent has not looked at anything for a while (F13).
const reasonStuck = "agent-stuck"

// Status is the agent's latest status. One that is old because the agent itself hangs protects nothing.
func (a *Agent) Status() Status {
	st := *a.status.Load()
	if at := a.alive.Load(); at != nil && time.Since(*at) > stuckAfter {
		st.Armed, st.Whole, st.Unprotected = false, false, true
		st.Reason, st.Remedy = reasonStuck, "the agent waits for the data directory's file system or for whoever reads its log: look at these, then restart it"
		st.WaitingFor = fmt.Sprintf("the agent itself, for %v", time.Since(*at).Round(time.Second))
	}
	return st
}
