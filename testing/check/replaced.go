package check

import (
	"strings"

	"twok/testing/history"
)

// replaced: what the last return of each site replaced stands beside what took its place, with its log, and nobody has written to it since.
func replaced(r *Result, h history.History, _ Options) {
	if h.Final == nil {
		r.missing("nobody looked at the data directories")
		return
	}
	last := map[string]history.Return{}
	for _, x := range h.Final.Returns {
		last[x.Site] = x
	}
	for _, m := range h.Final.Members {
		r.Checked++
		if m.Replaced == nil {
			r.missing("nobody looked for what %s has replaced", m.Site)
			continue
		}
		for _, what := range m.Touched {
			r.bad("at %s somebody writes what was put away: %s", m.Site, what)
		}
		x, returned := last[m.Site]
		if !returned {
			continue
		}
		prefix := "member.set-aside-"
		if x.Kept {
			prefix = "wal.before-"
		}
		found := false
		for name, segments := range m.Replaced {
			found = found || strings.HasPrefix(name, prefix) && (segments > 0 || x.Blank)
		}
		if !found {
			r.bad("%s returned as member %x, and no %s… beside its data holds the log that it had: %v", m.Site, x.ID, prefix, m.Replaced)
		}
	}
}
