package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"twok/arbiter"
	"twok/arbiter/httpcas"
)

// Health is what an agent's health endpoint says. The parts that are kept raw
// are shown to people and nothing is decided on them.
type Health struct {
	Armed       bool            `json:"armed"`
	Unprotected bool            `json:"unprotected"`
	Whole       bool            `json:"whole"`
	Reason      string          `json:"reason"`
	Remedy      string          `json:"remedy"`
	Role        string          `json:"role"`
	Generation  uint64          `json:"generation"`
	WaitingFor  string          `json:"waiting_for"`
	Leader      json.RawMessage `json:"leader"`
	Arbiter     json.RawMessage `json:"arbiter"`
	Etcd        json.RawMessage `json:"etcd"`
}

// String is a few words: the role, and armed or the reason why not.
func (h Health) String() string {
	switch {
	case h.Armed:
		return h.Role + ", armed"
	case h.Reason != "" && h.Reason != "none":
		return h.Role + " (" + h.Reason + ")"
	}
	return h.Role
}

var healthClient = &http.Client{Timeout: time.Second}

// Health asks the site's agent.
func (s *Site) Health(ctx context.Context) (Health, error) {
	var h Health
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.HealthURL, nil)
	if err != nil {
		return h, err
	}
	resp, err := healthClient.Do(req)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	// The status may say "not armed"; the body says it in any case.
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("health of %s: %s: %w: %s", s.Name, resp.Status, err, strings.TrimSpace(string(data)))
	}
	return h, nil
}

// ErrNotWhole: the pair is not whole (yet); the error says what is missing.
var ErrNotWhole = errors.New("the pair is not whole")

// ErrAgentEnded: an agent ended by itself, which none should.
var ErrAgentEnded = errors.New("an agent ended")

// Record reads the pair's record.
func (c *Cluster) Record(ctx context.Context) (arbiter.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	data, v, err := c.register.Read(ctx)
	if err != nil {
		return arbiter.Record{}, err
	}
	if !v.Exists() {
		return arbiter.Record{}, errors.New("there is no record yet")
	}
	return arbiter.Decode(data)
}

func openRegister(cfg Config, url string) (arbiter.Register, error) {
	if cfg.Register != nil {
		return cfg.Register, nil
	}
	return httpcas.New(httpcas.Config{URL: url})
}

// Whole is nil if the pair is whole as everybody sees it: both agents are armed
// at the record's generation, the record has the whole note of that generation for
// the two members, and both members name one leader of the two. It returns the
// record. Every other error than ErrNotWhole means the question had no answer,
// which is not whole either.
func (c *Cluster) Whole(ctx context.Context) (arbiter.Record, error) {
	not := func(format string, args ...any) (arbiter.Record, error) {
		return arbiter.Record{}, fmt.Errorf("%w: %s", ErrNotWhole, fmt.Sprintf(format, args...))
	}
	var gen [2]uint64
	for i, name := range Sites {
		if s := c.sites[name]; s.agent != nil && !s.agent.alive() {
			return arbiter.Record{}, fmt.Errorf("%w: that of %s: %s; see %s", ErrAgentEnded, name, lastLine(s.AgentLog), s.AgentLog)
		}
		h, err := c.sites[name].Health(ctx)
		switch {
		case err != nil:
			return not("agent of %s: %v", name, err)
		case !h.Armed || h.Unprotected || !h.Whole:
			return not("%s: %s", name, h)
		}
		gen[i] = h.Generation
	}
	rec, err := c.Record(ctx)
	if err != nil {
		return not("record: %v", err)
	}
	if rec.WholeGeneration != rec.Generation || gen != [2]uint64{rec.Generation, rec.Generation} {
		return not("the record is of generation %d, whole at %d; the agents are at %d and %d", rec.Generation, rec.WholeGeneration, gen[0], gen[1])
	}
	leads := 0
	for _, name := range Sites {
		st, err := c.sites[name].Status(ctx)
		switch {
		case err != nil:
			return not("etcd of %s: %v", name, err)
		case st.Leader == 0 || st.IsLearner || len(st.Errors) > 0:
			return not("etcd of %s: leader %x, learner %t, errors %q", name, st.Leader, st.IsLearner, st.Errors)
		case st.Header.MemberId != rec.WholeMembers[0] && st.Header.MemberId != rec.WholeMembers[1]:
			return not("the record's whole note does not name %s's member %x", name, st.Header.MemberId)
		case st.Leader == st.Header.MemberId:
			leads++
		}
	}
	if leads != 1 {
		return not("%d members say that they lead", leads)
	}
	return rec, nil
}

// WaitWhole waits until Whole holds, or an agent ended by itself. progress, if not nil, gets what is missing
// whenever that changes.
func (c *Cluster) WaitWhole(ctx context.Context, progress func(string)) (arbiter.Record, error) {
	last := ""
	for {
		rec, err := c.Whole(ctx)
		if err == nil {
			return rec, nil
		}
		if errors.Is(err, ErrAgentEnded) {
			return rec, err
		}
		if s := err.Error(); s != last {
			last = s
			if progress != nil && ctx.Err() == nil {
				progress(s)
			}
		}
		select {
		case <-ctx.Done():
			return rec, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
