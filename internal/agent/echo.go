package agent

import (
	"sync"
	"time"
)

// The interval between two log lines of one text begins at echoFirst and doubles
// to echoMax; it begins anew when the text did not come for echoForget.
const (
	echoFirst  = time.Second
	echoMax    = 5 * time.Minute
	echoForget = 10 * time.Minute
	echoTexts  = 64
)

// echoes keeps what is said again and again from filling the log. Safe for concurrent use.
type echoes struct {
	mu    sync.Mutex
	texts map[string]*echo
}

type echo struct {
	last, next time.Time
	wait       time.Duration
	held       int // since the last line
}

// tell says whether text is due for the log, and how often it came since the last line.
func (e *echoes) tell(text string, now time.Time) (repeated int, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.texts[text]
	if x == nil || now.Sub(x.last) > echoForget {
		if e.texts == nil || len(e.texts) >= echoTexts {
			e.texts = map[string]*echo{}
		}
		e.texts[text] = &echo{last: now, next: now.Add(echoFirst), wait: echoFirst}
		return 0, true
	}
	x.last = now
	if now.Before(x.next) {
		x.held++
		return 0, false
	}
	repeated = x.held
	x.wait = min(2*x.wait, echoMax)
	x.held, x.next = 0, now.Add(x.wait)
	return repeated, true
}
