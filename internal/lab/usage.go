package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process uses: memory in bytes, CPU time since its start.
type Usage struct {
	RSS, RSSAnon int64
	CPU          time.Duration
}

// clockTicks is USER_HZ, which Linux fixes for /proc on every architecture Go runs on.
const clockTicks = 100

// UsageOf reads /proc.
func UsageOf(pid int) (Usage, error) {
	var u Usage
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range splitLines(status) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return u, err
		}
		switch f[0] {
		case "VmRSS:":
			u.RSS = n * 1024
		case "RssAnon:":
			u.RSSAnon = n * 1024
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest) // from the third field, the state
	if len(f) < 13 || u.RSS == 0 {
		return u, fmt.Errorf("process %d: /proc says nothing of its memory or time", pid)
	}
	for _, s := range f[11:13] { // utime and stime
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(n) * time.Second / clockTicks
	}
	return u, nil
}
