package preflight

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/probe"
	"twok/walsurgery"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// fit are the facts of a member with which nothing is wrong.
func fit() *Facts {
	day := 24 * time.Hour
	cert := func(what string, local bool) Certificate {
		return Certificate{What: what, Local: local, NotBefore: now.Add(-day), NotAfter: now.Add(90 * day)}
	}
	own := cert("--client-cert", true)
	peer := cert("--peer-cert", true)
	return &Facts{
		Now: now,
		Settings: Settings{DataDir: "/data", ClientURL: "https://10.0.0.1:2379", PeerURL: "https://10.0.0.1:2380",
			ClaimAfter: 20 * time.Second, Election: time.Second, HealthListen: "127.0.0.1:7380"},
		Dir:   Dir{IsDir: true, Owner: 123, User: 123},
		Locks: Locks{Seen: true, WALHeld: true},
		Trial: Trial{FileSystem: "xfs"},
		Space: Space{Free: 40 << 30, Need: 192 << 20},
		Process: Process{
			Process: etcdproc.Process{Mode: etcdproc.ModeSignal, Running: true, StartID: etcdproc.StartID{PID: 4711}},
			Flags:   etcdproc.Flags{PreVote: true, DataDir: "/data", Election: time.Second}, Version: "3.6.16",
		},
		Etcd:   Etcd{Cluster: 0xc, Member: 0xa, Leader: 0xb, Voters: []string{"a", "b"}, Listed: true, HasToken: true},
		Other:  []Other{{Name: "b", Version: "3.6.15"}},
		Client: Certificates{TLS: true, Own: &own, Served: []Certificate{cert("https://10.0.0.1:2379", true), cert("https://10.0.0.2:2379", false)}},
		Peer:   Certificates{TLS: true, Own: &peer, Served: []Certificate{cert("https://10.0.0.1:2380", true), cert("https://10.0.0.2:2380", false)}},
		Arbiter: Arbiter{
			Probed: true, Asked: true, Status: failover.Readable, Record: "5c1f", Cluster: 0xc, Gen: 7,
			Report: probe.Report{Rounds: 10, Read: probe.Latency{P50: 2345 * time.Microsecond, P99: 9 * time.Millisecond},
				Swap: probe.Latency{P50: 5 * time.Millisecond, P99: 31456 * time.Microsecond}},
			Written: now.Add(-time.Minute), Armed: true, Assessed: true,
		},
	}
}

// A member with which nothing is wrong passes every check.
//
// Rules: P11.
func TestFit(t *testing.T) {
	for _, r := range Run(fit()) {
		if r.State != OK || r.Remedy != "" {
			t.Errorf("%+v", r)
		}
	}
}

// Nothing seen is nothing passed: without any fact every check that looks at something refuses or warns.
//
// Rules: P11.
func TestNothingSeenIsNoPass(t *testing.T) {
	var passed []string
	for _, r := range Run(&Facts{Now: now}) {
		if r.State == OK {
			passed = append(passed, r.Name)
		}
	}
	// The settings say that there is no TLS; there is no record to compare clocks with.
	want := []string{"client-certificate", "peer-certificate", "clock"}
	if !slices.Equal(passed, want) {
		t.Errorf("%q pass without a fact, want %q", passed, want)
	}
}

var errBoom = errors.New("boom")

// what is wrong, one thing each; the check that has to notice, and how.
var wrong = []struct {
	name  string
	spoil func(*Facts)
	check string
	state State
	says  string // of the detail
	does  string // of the remedy
	also  string // other checks that may notice it too, by name
}{
	{"no directory", func(f *Facts) { f.Dir = Dir{Err: fs.ErrNotExist} }, "data-dir", Refused, "/data does not exist", "--data-dir", ""},
	{"directory not seen", func(f *Facts) { f.Dir = Dir{Err: errBoom} }, "data-dir", Refused, "boom", "", ""},
	{"a file", func(f *Facts) { f.Dir.IsDir = false }, "data-dir", Refused, "not a directory", "", ""},
	{"not writable", func(f *Facts) { f.Dir.Write = fs.ErrPermission }, "data-dir", Refused, "state-unwritable", "root", ""},
	{"another user's", func(f *Facts) { f.Dir.User = 9 }, "data-dir", Refused, "user 123, this is user 9", "", ""},
	{"another member's URLs", func(f *Facts) { f.Etcd.Data = 0xb }, "data-dir", Refused, "the data are of member 000000000000000b, and https://10.0.0.1:2379 is member 000000000000000a", "--client-url and --peer-url", ""},
	{"memory unreadable", func(f *Facts) { f.Dir.Memory = errBoom }, "data-dir", Refused, "memory: boom", "owner", ""},
	{"--wal-dir", func(f *Facts) { f.Process.Flags.WALDir = "/fast/wal" }, "wal-dir", Refused, "--wal-dir /fast/wal", "without --wal-dir", ""},
	{"own mount", func(f *Facts) { f.Trial.Mount = "/data/member/wal" }, "wal-dir", Refused, "mount of its own", "", ""},
	{"symlink", func(f *Facts) { f.Trial.Link = "/data/member/wal" }, "wal-dir", Refused, "symbolic link", "", ""},
	{"no WAL, flags unknown", func(f *Facts) { f.Locks.WAL, f.Process.FlagsErr = walsurgery.ErrNoWAL, errBoom }, "wal-dir", Refused, "no WAL", "", "locks etcd-flags timing"},
	{"etcd never ran", func(f *Facts) { f.Locks.WAL, f.Locks.DB = walsurgery.ErrNoWAL, fs.ErrNotExist }, "locks", Refused, "never run", "start etcd once", "wal-dir"},
	{"etcd never ran, so no WAL", func(f *Facts) { f.Locks.WAL, f.Locks.DB = walsurgery.ErrNoWAL, fs.ErrNotExist }, "wal-dir", Refused, "never run", "start etcd once", "locks"},
	{"database unreadable", func(f *Facts) { f.Locks.DB = fs.ErrPermission }, "locks", Refused, "permission", "root", ""},
	{"WAL missing", func(f *Facts) { f.Locks.WAL = walsurgery.ErrNoWAL }, "locks", Refused, "no WAL", "", ""},
	{"no locks here", func(f *Facts) { f.Locks.Trial = errBoom }, "locks", Refused, "boom", "local file system", ""},
	{"etcd's WAL elsewhere", func(f *Facts) { f.Locks.WALHeld = false }, "locks", Refused, "another directory", "", ""},
	{"etcd waits", func(f *Facts) { f.Process.Waiting = true }, "locks", Refused, "waits for the lock", "/proc/locks", ""},
	{"somebody unseen", func(f *Facts) { f.Process.Running = false }, "locks", Refused, "wal-in-use", "PID namespace", "etcd-process etcd-signal"},
	{"member is a mount", func(f *Facts) { f.Trial.Mount = "/data/member" }, "exchange", Refused, "mount point", "parent", ""},
	{"no exchange", func(f *Facts) { f.Trial.Exchange = walsurgery.ErrCannotExchange }, "exchange", Refused, "", "ext4, xfs", ""},
	{"overlay", func(f *Facts) { f.Trial.Overlay = true }, "exchange", Warning, "overlay", "volume", ""},
	{"disk full", func(f *Facts) { f.Space.Err = walsurgery.ErrNoSpace }, "free-space", Refused, "disk-full", "128 MB", ""},
	{"disk nearly full", func(f *Facts) { f.Space.Free = 200 << 20 }, "free-space", Warning, "200 MB free, 192 MB needed", "", ""},
	{"space not seen", func(f *Facts) { f.Space.Err = errBoom }, "free-space", Refused, "not checked", "", ""},
	{"not allowed to look", func(f *Facts) { f.Process.Running, f.Process.Err, f.Locks.WALHeld = false, etcdproc.ErrNoAccess, false }, "etcd-process", Refused, "CAP_SYS_PTRACE", "", "etcd-signal"},
	{"etcd is down", func(f *Facts) { f.Process.Running, f.Locks.WALHeld = false, false }, "etcd-process", Refused, "etcd-down", "start etcd", "etcd-signal"},
	{"nobody supervises yet", func(f *Facts) {
		f.Process.Running, f.Locks.WALHeld, f.Process.Mode = false, false, etcdproc.ModeSupervise
	}, "etcd-process", Refused, "etcd-down", "the agent starts it", ""},
	{"two etcds", func(f *Facts) { f.Process.Others = 1 }, "etcd-process", Refused, "2 processes", "end all but one", ""},
	{"paused", func(f *Facts) { f.Process.Paused = true }, "etcd-process", Refused, "paused", "SIGCONT", ""},
	{"not to be signalled", func(f *Facts) { f.Process.Signal = fs.ErrPermission }, "etcd-signal", Refused, "4711", "CAP_KILL", ""},
	{"no version", func(f *Facts) { f.Process.VersionErr = errBoom }, "etcd-version", Refused, "version-unknown", "3.5, 3.6 or 3.7", "mixed-versions"},
	{"no version, no etcd", func(f *Facts) {
		f.Process.VersionErr, f.Process.Running, f.Locks.WALHeld = errBoom, false, false
	}, "etcd-version", Warning, "version-unknown", "3.5, 3.6 or 3.7", "etcd-process etcd-signal mixed-versions"},
	{"etcd 3.4", func(f *Facts) { f.Process.Version = "3.4.30" }, "etcd-version", Refused, "3.4.30", "3.5, 3.6 or 3.7", "mixed-versions"},
	{"etcd 3.8", func(f *Facts) { f.Process.Version = "3.8.0" }, "etcd-version", Refused, "3.8.0", "", "mixed-versions"},
	{"stale reads", func(f *Facts) { f.Process.StaleReads = true }, "etcd-version", Warning, "20418", "3.6.9", ""},
	{"unsafe flags", func(f *Facts) {
		f.Process.Flags.PreVote, f.Process.Flags.UnsafeNoFsync, f.Process.Flags.ForceNewCluster = false, true, true
	}, "etcd-flags", Refused, "etcd-unsafe: etcd was told --force-new-cluster, --unsafe-no-fsync, --pre-vote=false", "", ""},
	{"unsafe flag in a file", func(f *Facts) { f.Process.Flags.PreVote, f.Process.Flags.ConfigFile = false, "/etc/etcd.yml" }, "etcd-flags", Refused, "--pre-vote=false in /etc/etcd.yml", "", ""},
	{"another directory", func(f *Facts) { f.Process.Mode, f.Process.Flags.DataDir = etcdproc.ModeSupervise, "/other" }, "etcd-flags", Refused, "/other", "same --data-dir", ""},
	{"the next command's directory", func(f *Facts) {
		f.Process.Mode, f.Process.Told = etcdproc.ModeSupervise, &etcdproc.Flags{PreVote: true, DataDir: "/other"}
	}, "etcd-flags", Refused, "behind -- has --data-dir /other, the agent /data", "same --data-dir", ""},
	{"the next command is unsafe", func(f *Facts) {
		f.Process.Mode, f.Process.Told = etcdproc.ModeSupervise, &etcdproc.Flags{DataDir: "/data", ConfigFile: "/etc/etcd.yml"}
	}, "etcd-flags", Refused, "etcd-unsafe: the command behind -- has --pre-vote=false in /etc/etcd.yml", "", ""},
	{"no such command", func(f *Facts) {
		f.Process.Mode, f.Process.Told, f.Process.ToldErr = etcdproc.ModeSupervise, &etcdproc.Flags{}, errBoom
	}, "etcd-flags", Refused, "boom", "own command", ""},
	{"a wrapper", func(f *Facts) {
		f.Process.Mode, f.Process.Told = etcdproc.ModeSupervise, &etcdproc.Flags{PreVote: true}
	}, "etcd-flags", OK, "none that twok refuses", "", ""},
	{"flags unknown", func(f *Facts) { f.Process.FlagsErr = errBoom }, "etcd-flags", Refused, "boom", "CAP_SYS_PTRACE", ""},
	{"etcd silent", func(f *Facts) { f.Etcd = Etcd{Err: errBoom} }, "etcd-answers", Refused, "boom", "--client-url", "voters"},
	{"no leader", func(f *Facts) { f.Etcd.Leader = 0 }, "etcd-answers", Refused, "no-leader", "", ""},
	{"peer port silent", func(f *Facts) { f.Etcd.Peer = errBoom }, "etcd-answers", Refused, "boom", "--peer-url", ""},
	{"alarm", func(f *Facts) { f.Etcd.Alarm = true }, "etcd-answers", Refused, "NOSPACE", "disarm", ""},
	{"no right to the token", func(f *Facts) { f.Etcd.Token = errBoom }, "etcd-answers", Refused, "boom", "root role", ""},
	{"no list", func(f *Facts) { f.Etcd = Etcd{Err: errBoom} }, "voters", Refused, "not checked", "etcd answer", "etcd-answers"},
	{"three voters", func(f *Facts) { f.Etcd.Voters = []string{"a", "b", "c"} }, "voters", Refused, "third-voter: a, b, c", "two voters", ""},
	{"one voter", func(f *Facts) { f.Etcd.Voters = []string{"a"} }, "voters", Refused, "only a", "two voters", ""},
	{"alone", func(f *Facts) { f.Etcd.Voters, f.Arbiter.Alone, f.Arbiter.Armed = []string{"a"}, true, false }, "voters", Refused, "only copy", "returns by itself", "token"},
	{"not a voter", func(f *Facts) { f.Etcd.Listed = false }, "voters", Refused, "none of the voters", "promoted", ""},
	{"a learner", func(f *Facts) { f.Etcd.Learners = []string{"l"} }, "voters", Warning, "learner: l", "remove", ""},
	{"other unknown", func(f *Facts) { f.Other = nil }, "other-member", Refused, "not checked", "", "mixed-versions"},
	{"other silent", func(f *Facts) { f.Other[0].Peer = errBoom }, "other-member", Refused, "b: boom", "link", ""},
	{"other's client port", func(f *Facts) { f.Other[0].Client = errBoom }, "other-member", Refused, "client port: boom", "", ""},
	{"other is myself", func(f *Facts) { f.Other[0].Self = true }, "other-member", Refused, "leads to this member", "--advertise-client-urls", ""},
	{"mixed", func(f *Facts) { f.Other[0].Version = "3.7.3" }, "mixed-versions", Warning, "3.6.16 here, 3.7.3 at b", "upgrade", ""},
	{"odd version", func(f *Facts) { f.Other[0].Version = "4" }, "mixed-versions", Warning, "4 at b", "", ""},
	{"version not known", func(f *Facts) { f.Other[0].Version = "" }, "mixed-versions", Warning, "not compared", "", ""},
	{"client certificate expired", func(f *Facts) { f.Client.Own.NotAfter = now }, "client-certificate", Refused, "--client-cert: expired on 2026-03-04", "renew", ""},
	{"client certificate of tomorrow", func(f *Facts) { f.Client.Own.NotBefore = now.Add(time.Second) }, "client-certificate", Refused, "not valid before 2026-03-04T05:06:08Z", "clock", ""},
	{"client certificate short", func(f *Facts) { f.Client.Own.NotAfter = now.Add(ShortTime - time.Second) }, "client-certificate", Warning, "29 days left", "renew", ""},
	{"client certificate very short", func(f *Facts) { f.Client.Own.NotAfter = now.Add(30 * time.Hour) }, "client-certificate", Warning, "30h0m0s left", "renew", ""},
	{"no TLS", func(f *Facts) { f.Client = Certificates{} }, "client-certificate", OK, "no TLS on the client port", "", ""},
	{"client certificate enough", func(f *Facts) { f.Client.Own.NotAfter = now.Add(ShortTime) }, "client-certificate", OK, "30 days", "", ""},
	{"client certificate unreadable", func(f *Facts) { f.Client.Own = &Certificate{What: "--client-cert", Err: errBoom} }, "client-certificate", Refused, "boom", "PEM", ""},
	{"served certificate expired", func(f *Facts) { f.Client.Served[1].NotAfter = now.Add(-time.Hour) }, "client-certificate", Refused, "https://10.0.0.2:2379: expired", "renew", ""},
	{"served by a stranger", func(f *Facts) { f.Client.Served[0].Invalid = errBoom }, "client-certificate", Refused, "https://10.0.0.1:2379: boom", "--client-ca", ""},
	{"served, not seen", func(f *Facts) { f.Client.Served[1] = Certificate{What: "https://10.0.0.2:2379", Err: errBoom} }, "client-certificate", Warning, "not looked at", "", ""},
	{"no certificate at all", func(f *Facts) { f.Client = Certificates{TLS: true} }, "client-certificate", Refused, "no certificate was seen", "", ""},
	{"peer certificate expired", func(f *Facts) { f.Peer.Own.NotAfter = now }, "peer-certificate", Refused, "--peer-cert: expired", "renew", ""},
	{"peer served by a stranger", func(f *Facts) { f.Peer.Served[0].Invalid = errBoom }, "peer-certificate", Refused, "boom", "--peer-ca", ""},
	{"not probed", func(f *Facts) { f.Arbiter.Probed = false }, "arbiter-probe", Refused, "store-not-tried", "wait", ""},
	{"probe without an end", func(f *Facts) { f.Arbiter.ProbeErr = errBoom }, "arbiter-probe", Refused, "boom", "twok arbiter probe", ""},
	{"bad store", func(f *Facts) {
		f.Arbiter.Report.Problem = &probe.Problem{Fault: probe.TwoWinners, What: "two won", Remedy: "use another one"}
	}, "arbiter-probe", Refused, "store-untrusted: two won (two-winners)", "use another one", ""},
	{"circular", func(f *Facts) { f.Arbiter.IsCircular, f.Arbiter.Circular = true, errBoom }, "arbiter-circular", Refused, "boom", "third place", ""},
	{"circularity unknown", func(f *Facts) { f.Arbiter.Circular = errBoom }, "arbiter-circular", Refused, "not checked: boom", "", ""},
	{"circularity not asked", func(f *Facts) { f.Arbiter.Asked = false }, "arbiter-circular", Refused, "not checked", "", ""},
	{"store beside a member", func(f *Facts) { f.Arbiter.SharedHost = "the other member" }, "arbiter-circular", Warning, "host of the other member", "third place", ""},
	{"no record yet", func(f *Facts) {
		f.Arbiter.Status, f.Arbiter.Armed, f.Arbiter.Reason, f.Etcd.HasToken = failover.Absent, false, failover.RecordMissing, false
	}, "record", OK, "none yet", "", "token"},
	{"record gone", func(f *Facts) {
		f.Arbiter.Status, f.Arbiter.Armed, f.Arbiter.Reason = failover.Absent, false, failover.RecordAbsent
	}, "record", Refused, "record-absent", "restore", "token"},
	{"record garbage", func(f *Facts) {
		f.Arbiter.Status, f.Arbiter.ReadErr, f.Arbiter.Armed, f.Arbiter.Reason = failover.Garbage, errBoom, false, failover.RecordGarbage
	}, "record", Refused, "record-garbage: boom", "restore", "token"},
	{"record of another cluster", func(f *Facts) { f.Arbiter.Cluster = 0xd }, "record", Refused, "record-foreign", "its own", ""},
	{"no record yet, so no token", func(f *Facts) {
		f.Arbiter.Status, f.Arbiter.Armed, f.Arbiter.Reason, f.Etcd.HasToken = failover.Absent, false, failover.RecordMissing, false
	}, "token", OK, "agents create record and token", "", ""},
	{"no record yet, agents run", func(f *Facts) {
		f.Running, f.Arbiter.Status, f.Arbiter.Armed, f.Arbiter.Reason, f.Etcd.HasToken = true, failover.Absent, false, failover.RecordMissing, false
	}, "token", Refused, "record-missing", "", ""},
	{"alone, the token", func(f *Facts) { f.Etcd.Voters, f.Arbiter.Alone, f.Arbiter.Armed = []string{"a"}, true, false }, "token", Warning, "leads alone", "other member", "voters"},
	{"not known", func(f *Facts) { f.Arbiter.Assessed = false }, "token", Refused, "not known yet", "", ""},
	{"elsewhere", func(f *Facts) { f.Arbiter.Armed, f.Arbiter.Reason = false, failover.RecordElsewhere }, "token", Refused, "not armed: record-elsewhere", "same arbiter URL", ""},
	{"no token yet", func(f *Facts) { f.Arbiter.Armed, f.Arbiter.Reason = false, failover.TokenMissing }, "token", Warning, "token-missing", "leader's agent", ""},
	{"no token, agents run", func(f *Facts) { f.Running, f.Arbiter.Armed, f.Arbiter.Reason = true, false, failover.TokenMissing }, "token", Refused, "token-missing", "", ""},
	{"leaderless, no reason", func(f *Facts) { f.Arbiter.Armed = false }, "token", Refused, "no leader", "", ""},
	{"claim-after too short", func(f *Facts) { f.Process.Flags.Election = 11 * time.Second }, "timing", Refused, "election timeout 11s", "claim-after", ""},
	{"wrong election timeout", func(f *Facts) { f.Process.Flags.Election = 2 * time.Second }, "timing", Warning, "reckons with an election timeout of 1s, etcd has 2s", "--election-timeout", ""},
	{"slow arbiter", func(f *Facts) { f.Arbiter.Report.Warnings = []string{"the p99 is high"} }, "timing", Warning, "the p99 is high", "nearer store", ""},
	{"no clock to compare with", func(f *Facts) { f.Arbiter.Written = time.Time{} }, "clock", OK, "nothing to compare", "", ""},
	{"clock behind", func(f *Facts) { f.Arbiter.Written = now.Add(clockSlack + time.Second) }, "clock", Warning, "05:06:13", "NTP", ""},
	{"clock a little behind", func(f *Facts) { f.Arbiter.Written = now.Add(clockSlack) }, "clock", OK, "", "", ""},
	{"no health endpoint", func(f *Facts) { f.Settings.HealthListen = "" }, "health-listen", Warning, "none", "--health-listen", ""},
	{"health taken", func(f *Facts) { f.Health.Err = errBoom }, "health-listen", Refused, "boom", "free HOST:PORT", ""},
	{"health taken by the agent", func(f *Facts) { f.Health = Health{Err: errBoom, Own: true} }, "health-listen", OK, "this member's agent", "", ""},
}

// Each thing that can be wrong is noticed by its check, in words and with a remedy, and by no other one; and each
// check is made to refuse or, where it never does, to warn.
//
// Rules: A0, A1, P11; F26, F28, F31, F38.
func TestWrong(t *testing.T) {
	worst := map[string]State{}
	for _, w := range wrong {
		f := fit()
		w.spoil(f)
		for _, r := range Run(f) {
			if r.Name != w.check {
				if r.State != OK && !strings.Contains(" "+w.also+" ", " "+r.Name+" ") {
					t.Errorf("%s: noticed by %+v too", w.name, r)
				}
				continue
			}
			if r.State != w.state || !strings.Contains(r.Detail, w.says) || !strings.Contains(r.Remedy, w.does) || (r.State != OK) != (r.Remedy != "") {
				t.Errorf("%s: %+v, want %s, %q, %q", w.name, r, w.state, w.says, w.does)
			}
			if s, ok := worst[r.Name]; !ok || r.State < s {
				worst[r.Name] = r.State
			}
		}
	}
	warns := []string{"mixed-versions", "clock"}
	for _, c := range Checks() {
		s, ok := worst[c.Name]
		if !ok || (s != Refused) != slices.Contains(warns, c.Name) {
			t.Errorf("%s: its worst is %s, seen %t", c.Name, s, ok)
		}
	}
}

// Every check has its texts, and a name that is no reason of the core: both are anchors of one document.
//
// Rules: P11.
func TestTexts(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range failover.Reasons() {
		seen["reason "+r.String()] = true
	}
	for _, c := range Checks() {
		if c.Name == "" || c.Meaning == "" || c.Remedy == "" || seen[c.Name] {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
}

// Only refusals of checks that bar are Barring.
//
// Rules: P11.
func TestBarring(t *testing.T) {
	f := fit()
	f.Trial.Exchange = errBoom          // bars
	f.Space.Free = f.Space.Need         // a warning of one that would
	f.Etcd.Voters = []string{"a"}       // a refusal that the core knows
	f.Client.Own.NotAfter = now.Add(-1) // bars
	var got []string
	for _, r := range Barring(Run(f)) {
		got = append(got, r.Name)
	}
	if want := []string{"exchange", "client-certificate"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What people and programs get.
//
// Rules: P11.
func TestShown(t *testing.T) {
	cases := map[string]func(*Facts){
		"fit": func(*Facts) {},
		"warned": func(f *Facts) {
			f.Client.Own.NotAfter = now.Add(12 * 24 * time.Hour)
			f.Other[0].Version = "3.7.3"
		},
		"refused": func(f *Facts) {
			f.Process.Flags.WALDir = "/fast/wal"
			f.Trial.Exchange = fmt.Errorf("exchange a and b: %w", walsurgery.ErrCannotExchange)
			f.Other[0].Peer = errors.New("no route to host\n  or so")
			f.Etcd.Learners = []string{"<l>"}
		},
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		f := fit()
		cases[name](f)
		rs := Run(f)
		fmt.Fprintf(&b, "--- %s\n", name)
		if err := Table(&b, rs); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n%s\n\n", Verdict(rs))
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		for _, r := range rs {
			if r.State != OK {
				if err := e.Encode(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.WriteString("\n")
	}
	const file = "testdata/shown.golden"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s differs (go test ./internal/preflight -update):\n%s", file, b.String())
	}
	var back []Result
	j, err := json.Marshal(Run(fit()))
	if err == nil {
		err = json.Unmarshal(j, &back)
	}
	if err != nil || !slices.Equal(back, Run(fit())) {
		t.Errorf("not what was written: %v", err)
	}
	if err := json.Unmarshal([]byte(`{"state":"fine"}`), &Result{}); err == nil {
		t.Error("a state that is none is taken")
	}
}
