package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
)

// TraceLine is one decision of an agent, a line of its --trace file. The names
// of phases, events, actions and reasons are those of internal/failover.
type TraceLine struct {
	T          TraceTime `json:"t"`
	From       string    `json:"from"`
	Event      string    `json:"event"`
	Outcome    string    `json:"outcome"`
	To         string    `json:"to"`
	Actions    []string  `json:"actions"`
	Reason     string    `json:"reason"`
	Generation uint64    `json:"generation"`
	Index      uint64    `json:"index"`
	Term       uint64    `json:"term"`
	Keep       *bool     `json:"keep_log"` // of a rewrite: whether the log is kept (P13)
}

// TraceTime reads RFC 3339 or Unix milliseconds.
type TraceTime struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (t *TraceTime) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return t.Time.UnmarshalJSON(b)
	}
	ms, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("trace: t is neither RFC 3339 nor Unix milliseconds: %s", b)
	}
	t.Time = time.UnixMilli(ms)
	return nil
}

// FollowTrace gives every line of the file to each, also those that are written
// later, until ctx ends. The file may appear later. A line that is not a trace
// line is an error.
func FollowTrace(ctx context.Context, path string, each func(TraceLine)) error {
	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	var rest []byte // an unfinished line
	buf := make([]byte, 64<<10)
	for {
		if f == nil {
			var err error
			if f, err = os.Open(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		n := 0
		if f != nil {
			var err error
			if n, err = f.Read(buf); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("read %s: %w", path, err)
			}
		}
		rest = append(rest, buf[:n]...)
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			var l TraceLine
			if err := json.Unmarshal(rest[:i], &l); err != nil {
				return fmt.Errorf("%s: %q: %w", path, rest[:i], err)
			}
			rest = rest[i+1:]
			each(l)
		}
		if n == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}
