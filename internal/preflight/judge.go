package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"twok/arbiter"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/walsurgery"
)

func dataDir(f *Facts) Result {
	d := f.Dir
	switch {
	case errors.Is(d.Err, fs.ErrNotExist):
		return refuse("give etcd's own --data-dir; start etcd once, so that it makes it", "%s does not exist", f.Settings.DataDir)
	case d.Err != nil:
		return refuse("", "%v", d.Err)
	case !d.IsDir:
		return refuse("", "%s is not a directory", f.Settings.DataDir)
	case d.Write != nil:
		return refuse("", "state-unwritable: %v", d.Write)
	case d.User != 0 && d.User != d.Owner:
		return refuse("", "%s belongs to user %d, this is user %d: etcd could not open what is written here", f.Settings.DataDir, d.Owner, d.User)
	case f.Etcd.Err == nil && f.Etcd.Member != 0 && f.Etcd.Data != 0 && f.Etcd.Member != f.Etcd.Data:
		return refuse("give --client-url and --peer-url of the etcd that runs on this --data-dir", "the data are of member %s, and %s is member %s",
			arbiter.FormatID(f.Etcd.Data), f.Settings.ClientURL, arbiter.FormatID(f.Etcd.Member))
	case d.Memory != nil:
		return refuse("check the file's owner; without it rollbacks of the store and clones of the disk are not noticed", "the agent's memory: %v", d.Memory)
	}
	return ok("%s, of user %d, writable", f.Settings.DataDir, d.Owner)
}

func walDir(f *Facts) Result {
	t, p := f.Trial, f.Process
	inside := filepath.Join("member", "wal")
	switch {
	case t.FileSystem == "" && f.Dir.Err == nil:
		return refuse("", "not checked: the member directory was not seen")
	case t.Link != "":
		return refuse("", "%s is a symbolic link", t.Link)
	case t.Mount != "" && filepath.Base(t.Mount) == "wal":
		return refuse("", "%s is on a mount of its own", t.Mount)
	case p.FlagsErr == nil && p.Flags.WALDir != "" && filepath.Clean(p.Flags.WALDir) != filepath.Join(p.Flags.DataDir, inside):
		return refuse("", "etcd was told --wal-dir %s", p.Flags.WALDir)
	case errors.Is(f.Locks.DB, fs.ErrNotExist) && f.Locks.WAL != nil:
		return refuse("start etcd once", "etcd has never run here: no database and no WAL")
	case f.Locks.WAL != nil && p.FlagsErr != nil:
		return refuse("", "what etcd was told is not known, and there is no WAL in the data directory: %v", f.Locks.WAL)
	}
	return ok("the WAL is %s", filepath.Join(f.Settings.DataDir, inside))
}

func locks(f *Facts) Result {
	l, p := f.Locks, f.Process
	switch {
	case !l.Seen:
		return refuse("", "not checked")
	case errors.Is(l.DB, fs.ErrNotExist):
		return refuse("start etcd once", "etcd has never run here: %v", l.DB)
	case l.DB != nil:
		return refuse("run the agent as etcd's user or as root", "%v", l.DB)
	case l.WAL != nil:
		return refuse("", "%v", l.WAL)
	case l.Trial != nil:
		return refuse("", "tried beside the data: %v", l.Trial)
	case p.Running && !p.Waiting && !l.WALHeld:
		return refuse("", "etcd (process %d) runs, but its lock on the WAL of this directory is not seen: is another directory mounted there for etcd?", p.PID)
	case p.Running && p.Waiting:
		return refuse("see who has the lock: /proc/locks", "etcd (process %d) waits for the lock of its database", p.PID)
	case p.Running:
		return ok("held by etcd")
	case l.WALHeld:
		return refuse("run the agent in etcd's PID namespace or the host's, as etcd's user or with CAP_SYS_PTRACE", "wal-in-use: somebody who is not seen holds the WAL")
	}
	return ok("free")
}

func exchange(f *Facts) Result {
	t := f.Trial
	switch {
	case t.Mount != "" && filepath.Base(t.Mount) != "wal":
		return refuse("mount its parent instead", "%s is a mount point: it cannot be exchanged", t.Mount)
	case t.Exchange != nil:
		return refuse("", "%v", t.Exchange)
	case t.FileSystem == "":
		return refuse("", "not tried: the member directory was not seen")
	case t.Overlay:
		return warn("put the data directory on a volume: a directory of the image's layers cannot be exchanged", "on an overlay file system, where it works for what was written since")
	}
	return ok("RENAME_EXCHANGE works (%s)", t.FileSystem)
}

func space(f *Facts) Result {
	s := f.Space
	switch {
	case errors.Is(s.Err, walsurgery.ErrNoSpace):
		return refuse(failover.DiskFull.Remedy(), "%s: %v", failover.DiskFull, s.Err)
	case s.Err == nil && s.Need == 0:
		return refuse("", "not checked")
	case s.Err != nil:
		return refuse("let the other checks of the data directory pass first", "not checked: %v", s.Err)
	}
	if s.Free < 2*s.Need {
		return warn("", "%d MB free, %d MB needed: less than twice that", s.Free>>20, s.Need>>20)
	}
	return ok("%d MB free, %d MB needed", s.Free>>20, s.Need>>20)
}

func process(f *Facts) Result {
	p := f.Process
	switch {
	case p.Err != nil:
		return refuse("", "%v", p.Err)
	case !p.Running && p.Mode == etcdproc.ModeSupervise:
		return refuse("the agent starts it: run the agent; to move a running member under it, check while etcd still runs", "etcd-down: no etcd runs on this data directory")
	case !p.Running:
		return refuse("", "etcd-down: no process has %s open", filepath.Join(f.Settings.DataDir, "member", "snap", "db"))
	case p.Others > 0:
		return refuse("end all but one", "%d processes have the database open", p.Others+1)
	case p.Paused:
		return refuse("let it go on (SIGCONT)", "process %d is paused", p.PID)
	}
	return ok("process %d, %s mode", p.PID, p.Mode)
}

func signalled(f *Facts) Result {
	p := f.Process
	switch {
	case !p.Running && p.Mode == etcdproc.ModeSupervise:
		return ok("etcd will be a child of the agent")
	case !p.Running:
		return warn("", "not tried: no etcd was found")
	case p.Signal != nil:
		return refuse("", "process %d: %v", p.PID, p.Signal)
	}
	return ok("process %d takes signals from here", p.PID)
}

// supported are the release lines that twok knows.
func supported(v string) bool {
	return strings.HasPrefix(v, "3.5.") || strings.HasPrefix(v, "3.6.") || strings.HasPrefix(v, "3.7.")
}

func version(f *Facts) Result {
	p := f.Process
	switch {
	case p.VersionErr != nil && !p.Running && p.Mode == etcdproc.ModeSignal:
		return warn("", "version-unknown: %v", p.VersionErr)
	case p.VersionErr != nil:
		return refuse("", "version-unknown: %v", p.VersionErr)
	case !supported(p.Version):
		return refuse("", "etcd %s", p.Version)
	case p.StaleReads:
		return warn("upgrade to 3.5.28, 3.6.9 or later", "etcd %s can serve stale reads as a leader that was paused and woke up (etcd issue 20418)", p.Version)
	}
	return ok("etcd %s", p.Version)
}

func flags(f *Facts) Result {
	p := f.Process
	if p.FlagsErr != nil {
		return refuse("start etcd; run the agent as etcd's user or with CAP_SYS_PTRACE", "%v", p.FlagsErr)
	}
	bad, where := dangerous(p.Flags)
	switch {
	case bad != "":
		return refuse("", "%s: etcd was told %s%s", failover.EtcdUnsafe, bad, where)
	case p.Mode == etcdproc.ModeSupervise && absolute(p.Flags.DataDir) != absolute(f.Settings.DataDir):
		return refuse("give both the same --data-dir", "etcd was told --data-dir %s, the agent %s", p.Flags.DataDir, f.Settings.DataDir)
	case p.ToldErr != nil:
		return refuse("give etcd's own command behind --", "%v", p.ToldErr)
	}
	if p.Told != nil {
		switch next, file := dangerous(*p.Told); {
		case next != "":
			return refuse("", "%s: the command behind -- has %s%s", failover.EtcdUnsafe, next, file)
		case p.Told.DataDir != "" && absolute(p.Told.DataDir) != absolute(f.Settings.DataDir):
			return refuse("give both the same --data-dir", "the command behind -- has --data-dir %s, the agent %s", p.Told.DataDir, f.Settings.DataDir)
		}
	}
	return ok("none that twok refuses%s", where)
}

// dangerous are the flags under which the rules do not hold, and where they stand if that is a file.
func dangerous(e etcdproc.Flags) (names, where string) {
	var bad []string
	for _, x := range []struct {
		is   bool
		name string
	}{{e.ForceNewCluster, "--force-new-cluster"}, {e.UnsafeNoFsync, "--unsafe-no-fsync"}, {!e.PreVote, "--pre-vote=false"}} {
		if x.is {
			bad = append(bad, x.name)
		}
	}
	if e.ConfigFile != "" {
		where = " in " + e.ConfigFile
	}
	return strings.Join(bad, ", "), where
}

func absolute(dir string) string {
	if a, err := filepath.Abs(dir); err == nil {
		return a
	}
	return dir
}

func answers(f *Facts) Result {
	e := f.Etcd
	switch {
	case e.Err != nil:
		return refuse("", "%s: a linearizable member list: %v", f.Settings.ClientURL, e.Err)
	case e.Leader == 0:
		return refuse("", "no-leader: %s has none", arbiter.FormatID(e.Member))
	case e.Peer != nil:
		return refuse("", "etcd-down: %v", e.Peer)
	case e.Alarm:
		return refuse(failover.EtcdAlarm.Remedy(), "etcd-alarm: NOSPACE")
	case e.Token != nil:
		return refuse("with etcd's authentication on, the client certificate's common name must be a user with the root role", "the key of the pair token: %v", e.Token)
	}
	return ok("member %s of cluster %s, leader %s", arbiter.FormatID(e.Member), arbiter.FormatID(e.Cluster), arbiter.FormatID(e.Leader))
}

func voters(f *Facts) Result {
	e := f.Etcd
	names := strings.Join(e.Voters, ", ")
	switch {
	case e.Err != nil:
		return refuse("let etcd answer first", "not checked: etcd gives no linearizable member list")
	case !e.Listed:
		return refuse("wait until this member was promoted, or add it", "%s is none of the voters (%s)", arbiter.FormatID(e.Member), names)
	case len(e.Voters) > 2:
		return refuse("", "third-voter: %s", names)
	case len(e.Voters) < 2 && f.Arbiter.Alone:
		return refuse("bring the other member back: it returns by itself when it answers", "this member is alone: it has the only copy of the newest writes")
	case len(e.Voters) < 2:
		return refuse("", "only %s", names)
	case len(e.Learners) > 0:
		return warn("promote it or remove it", "%s, and a learner: %s", names, strings.Join(e.Learners, ", "))
	}
	return ok("%s", names)
}

func otherMember(f *Facts) Result {
	if len(f.Other) == 0 {
		return refuse("", "not checked: no other voter is known")
	}
	for _, o := range f.Other {
		switch {
		case o.Self:
			return refuse("let each member advertise its own address (--advertise-client-urls)", "the client URL of %s leads to this member", o.Name)
		case o.Peer != nil:
			return refuse("", "%s: %v", o.Name, o.Peer)
		case o.Client != nil:
			return refuse("", "%s: client port: %v", o.Name, o.Client)
		}
	}
	return ok("%s answers on peer and client port", f.Other[0].Name)
}

func minor(v string) string {
	w := strings.SplitN(v, ".", 3)
	if len(w) < 2 {
		return v
	}
	return w[0] + "." + w[1]
}

func mixed(f *Facts) Result {
	for _, o := range f.Other {
		switch {
		case f.Process.VersionErr != nil || o.Version == "":
			return warn("let both members answer", "not compared: not both versions are known")
		case minor(o.Version) != minor(f.Process.Version):
			return warn("", "etcd %s here, %s at %s", f.Process.Version, o.Version, o.Name)
		}
	}
	if len(f.Other) == 0 {
		return warn("let both members answer", "not compared: no other voter is known")
	}
	return ok("etcd %s at both", minor(f.Process.Version))
}

func probed(f *Facts) Result {
	a := f.Arbiter
	switch {
	case !a.Probed:
		return refuse("wait for the probe", "store-not-tried: the probe has not ended yet")
	case a.ProbeErr != nil:
		return refuse("", "store-not-tried: %v", a.ProbeErr)
	case a.Report.Problem != nil:
		return refuse(a.Report.Problem.Remedy, "store-untrusted: %s", a.Report.Problem)
	}
	return ok("%d races, each with one winner; read p50 %v, p99 %v; swap p50 %v, p99 %v", a.Report.Rounds,
		brief(a.Report.Read.P50), brief(a.Report.Read.P99), brief(a.Report.Swap.P50), brief(a.Report.Swap.P99))
}

func brief(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

func circular(f *Facts) Result {
	a := f.Arbiter
	switch {
	case a.IsCircular:
		return refuse("", "store-untrusted: %v", a.Circular)
	case a.Circular != nil:
		return refuse("let the store and etcd answer", "not checked: %v", a.Circular)
	case !a.Asked:
		return refuse("let etcd answer", "not checked yet")
	case a.SharedHost != "":
		return warn("", "the store is on the host of %s: it is lost with it, and nobody goes on alone then", a.SharedHost)
	}
	return ok("the store does not stand on the pair")
}

func record(f *Facts) Result {
	a := f.Arbiter
	why := a.Status.Reason()
	switch {
	case a.Status == failover.Absent && f.Etcd.Err == nil && f.Etcd.Member != 0 && f.Etcd.Token == nil && !f.Etcd.HasToken:
		return ok("none yet: the agent of the member that leads creates it")
	case why != failover.None && a.ReadErr != nil:
		return refuse(why.Remedy(), "%s: %v", why, a.ReadErr)
	case why != failover.None:
		return refuse(why.Remedy(), "%s", why)
	case f.Etcd.Err == nil && a.Cluster != f.Etcd.Cluster:
		return refuse(failover.RecordForeign.Remedy(), "%s: it is of cluster %s, this is %s", failover.RecordForeign,
			arbiter.FormatID(a.Cluster), arbiter.FormatID(f.Etcd.Cluster))
	}
	return ok("%s, generation %d", a.Record, a.Gen)
}

// agentsCure: these end by themselves once agents run.
func agentsCure(r failover.Reason) bool {
	switch r {
	case failover.RecordMissing, failover.TokenMissing, failover.TokenBad, failover.TokenMisnamed, failover.TokenLate, failover.TokenPending:
		return true
	}
	return false
}

func token(f *Facts) Result {
	a := f.Arbiter
	switch {
	case !a.Assessed:
		return refuse("let etcd and the arbiter answer", "not armed: not known yet")
	case a.Armed:
		return ok("armed")
	case a.Alone && a.Reason == failover.None:
		return warn("bring the other member back", "not armed: this member leads alone")
	case a.Reason == failover.None:
		return refuse("wait", "not armed: etcd has no leader, or its member list is not known yet")
	case !f.Running && a.Reason == failover.RecordMissing:
		return ok("not armed yet: %s: the agents create record and token", a.Reason)
	case !f.Running && agentsCure(a.Reason):
		return warn(a.Reason.Remedy(), "not armed: %s", a.Reason)
	}
	return refuse(a.Reason.Remedy(), "not armed: %s", a.Reason)
}

func timing(f *Facts) Result {
	s, p := f.Settings, f.Process
	switch {
	case s.ClaimAfter <= 0:
		return refuse("", "not checked: claim-after is not known")
	case p.FlagsErr == nil && s.ClaimAfter < 2*p.Flags.Election:
		return refuse("", "claim-after is %v, etcd's election timeout %v: an ordinary election would look like a lost site", s.ClaimAfter, p.Flags.Election)
	case p.FlagsErr == nil && s.Election < p.Flags.Election:
		return warn("give --election-timeout, or none in supervise mode", "the agent reckons with an election timeout of %v, etcd has %v", s.Election, p.Flags.Election)
	case len(f.Arbiter.Report.Warnings) > 0:
		return warn("raise --claim-after or use a nearer store", "%s", strings.Join(f.Arbiter.Report.Warnings, "; "))
	}
	text := fmt.Sprintf("claim-after %v", s.ClaimAfter)
	if p.FlagsErr == nil {
		text += fmt.Sprintf(", election timeout %v", p.Flags.Election)
	}
	if f.Arbiter.Probed && f.Arbiter.ProbeErr == nil {
		text += fmt.Sprintf(", arbiter p99 %v", brief(max(f.Arbiter.Report.Read.P99, f.Arbiter.Report.Swap.P99)))
	}
	return ok("%s", text)
}

// clockSlack is what the clocks of two machines may differ by without a word.
const clockSlack = 5 * time.Second

func clock(f *Facts) Result {
	ahead := f.Arbiter.Written.Sub(f.Now)
	switch {
	case f.Arbiter.Written.IsZero():
		return ok("%s; nothing to compare with", f.Now.UTC().Format(time.RFC3339))
	case ahead > clockSlack:
		return warn("", "this clock says %s, the record was written at %s by its writer's", f.Now.UTC().Format(time.RFC3339), f.Arbiter.Written.UTC().Format(time.RFC3339))
	}
	return ok("%s, not before the record was written", f.Now.UTC().Format(time.RFC3339))
}

func health(f *Facts) Result {
	h := f.Health
	switch {
	case f.Settings.HealthListen == "":
		return warn("", "none: nobody sees whether this member is armed but in the log")
	case h.Own:
		return ok("%s, where this member's agent answers", f.Settings.HealthListen)
	case h.Err != nil:
		return refuse("", "%v", h.Err)
	}
	return ok("%s is free", f.Settings.HealthListen)
}
