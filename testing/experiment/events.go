package experiment

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"
)

// events are the first of each kind in an etcd's log after a moment.
type events struct {
	stream, vote, elected float64 // seconds after it; negative: none
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
	ev = events{-1, -1, -1}
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
		first(&ev.vote)
	case strings.Contains(msg, "elected leader"):
		first(&ev.elected)
	}
}

// add keeps the earliest of each kind.
func (ev events) add(values map[string]float64) {
	for name, x := range map[string]float64{"stream": ev.stream, "vote": ev.vote, "elected": ev.elected} {
		if old, ok := values[name]; x >= 0 && (!ok || x < old) {
			values[name] = x
		}
	}
}

// fromPeer: a pre-vote that was granted by another member ("X received MsgPreVoteResp from Y at term N"); its own is logged, too.
func fromPeer(msg string) bool {
	f := strings.Fields(msg)
	return len(f) > 4 && f[1] == "received" && f[2] == "MsgPreVoteResp" && f[3] == "from" && f[4] != f[0]
}
