package experiment

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"time"
)

// events are the first of each kind in an etcd's log after a moment.
type events struct {
	// Seconds after it; negative: none.
	stream  float64 // a peer stream was established
	heard   float64 // a vote, or a request for one, came from the other member
	follows float64 // a leader is known
	elected float64 // one has been elected
}

// logLine is what is used of a line of etcd's log.
type logLine struct {
	TS  time.Time `json:"ts"`
	Msg string    `json:"msg"`
}

// readEvents reads etcd's log, of which lines that are no JSON objects are no events.
func readEvents(path string, since time.Time) (ev events, err error) {
	f, err := os.Open(path)
	if err != nil {
		return ev, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	ev = events{-1, -1, -1, -1}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<22)
	for sc.Scan() {
		var l logLine
		if json.Unmarshal(sc.Bytes(), &l) != nil || l.TS.Before(since) {
			continue
		}
		ev.take(l.Msg, l.TS.Sub(since).Seconds())
	}
	return ev, sc.Err()
}

func (ev *events) take(msg string, at float64) {
	first := func(x *float64) {
		if *x < 0 {
			*x = at
		}
	}
	switch {
	case strings.HasPrefix(msg, "established TCP streaming connection with remote peer"):
		first(&ev.stream)
	case fromPeer(msg):
		first(&ev.heard)
	case strings.Contains(msg, "elected leader"): // raft's node says so of whatever leader it hears of
		first(&ev.follows)
	case strings.Contains(msg, "became leader at term"):
		first(&ev.elected)
	}
}

// add keeps the earliest of each kind.
func (ev events) add(values map[string]float64) {
	for name, x := range map[string]float64{"stream": ev.stream, "heard": ev.heard, "follows": ev.follows, "elected": ev.elected} {
		if old, ok := values[name]; x >= 0 && (!ok || x < old) {
			values[name] = x
		}
	}
}

// fromPeer: a message of an election from another member. A vote for oneself is logged, too ("X received
// MsgPreVoteResp from X"), and one's own request ("sent MsgPreVote request to Y").
func fromPeer(msg string) bool {
	f := strings.Fields(msg)
	for i, w := range f[:max(0, len(f)-2)] {
		if strings.HasPrefix(w, "MsgPreVote") && (f[i+1] == "from" || f[i+1] == "for") {
			return f[i+2] != f[0] && !slices.Contains(f, "sent")
		}
	}
	return false
}
