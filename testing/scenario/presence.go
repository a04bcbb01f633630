package scenario

import (
	"time"

	"twok/internal/lab"
	"twok/testing/report"
)

// lookEach is how often the sites' processes are looked at, for the page.
const lookEach = 100 * time.Millisecond

// presence looks at the sites' processes until the returned function is called, which says what did not run, and when.
func presence(site func(string) *lab.Site, start time.Time) (stop func() []report.Absence) {
	over, found := make(chan struct{}), make(chan []report.Absence)
	go func() {
		var a absences
		for tick := time.NewTicker(lookEach); ; {
			for _, name := range lab.Sites {
				if etcd, agent, err := site(name).Seen(); err == nil { // not known is not away
					now := time.Since(start)
					a.add(now, name, report.Etcd, etcd)
					a.add(now, name, report.Agent, agent)
				}
			}
			select {
			case <-over:
				tick.Stop()
				found <- a
				return
			case <-tick.C:
			}
		}
	}()
	return func() []report.Absence {
		close(over)
		return <-found
	}
}

type absences []report.Absence

// add is a look at a program: it goes on with an absence, begins one, or ends one.
func (a *absences) add(now time.Duration, site, program string, state lab.ProcState) {
	for i := len(*a) - 1; i >= 0; i-- {
		if x := &(*a)[i]; x.Site == site && x.Program == program {
			if x.Ended {
				break
			}
			if x.To = now; x.State == string(state) {
				return
			}
			x.Ended = true
			break
		}
	}
	if state != lab.Running {
		*a = append(*a, report.Absence{Site: site, Program: program, State: string(state), From: now, To: now})
	}
}
