package agent

import (
	"testing"
	"time"
)

// TestEcho: a repeated text is told at growing intervals, another one at once.
//
// Rules: none (the log).
func TestEcho(t *testing.T) {
	var e echoes
	now := time.Unix(0, 0)
	told, counted := 0, 0
	for range 36_000 { // an hour, ten times a second
		if n, ok := e.tell("x", now); ok {
			told++
			counted += n
		}
		now = now.Add(100 * time.Millisecond)
	}
	if told < 10 || told > 25 {
		t.Errorf("told %d times in an hour", told)
	}
	if counted < 30_000 {
		t.Errorf("only %d repetitions were counted", counted)
	}
	if _, ok := e.tell("y", now); !ok {
		t.Error("a new text was held back")
	}
	now = now.Add(echoForget + time.Second)
	if n, ok := e.tell("x", now); !ok || n != 0 {
		t.Errorf("after a long silence: %d, %t", n, ok)
	}
	for i := range 10 * echoTexts {
		if _, ok := e.tell(time.Duration(i).String(), now); !ok {
			t.Fatalf("text %d was held back", i)
		}
	}
	if len(e.texts) > echoTexts {
		t.Errorf("%d texts are kept", len(e.texts))
	}
}
