package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/preflight"
	"twok/internal/probe"
)

// results are those of an agent that saw nothing wrong, but for some.
func results(t *testing.T, other map[string]preflight.State) []preflight.Result {
	t.Helper()
	var rs []preflight.Result
	for _, c := range preflight.Checks() {
		r := preflight.Result{Name: c.Name, State: preflight.OK, Detail: "fine"}
		if s, ok := other[c.Name]; ok {
			r = preflight.Result{Name: c.Name, State: s, Detail: "seen", Remedy: "do"}
			delete(other, c.Name)
		}
		rs = append(rs, r)
	}
	if len(other) != 0 {
		t.Fatalf("no such checks: %v", other)
	}
	return rs
}

// What the checks add to a status: a refusal that bars is louder than the core's "armed", and nothing else is
// changed. The HTTP status follows.
//
// Rules: P11.
func TestStatusWithChecks(t *testing.T) {
	armed := Status{Armed: true, Whole: true, Reason: "none", Role: "leading"}
	alone := Status{Unprotected: true, Reason: "none", Role: "alone"}
	elsewhere := Status{Unprotected: true, Reason: "record-elsewhere", Remedy: "x", Role: "leading"}
	for _, c := range []struct {
		name  string
		core  Status
		other map[string]preflight.State
		want  Status
		code  int
		warns []string
	}{
		{"nothing wrong", armed, nil, armed, 200, nil},
		{"a warning", armed, map[string]preflight.State{"exchange": preflight.Warning}, armed, 200, nil},
		{"what the core knows", armed, map[string]preflight.State{"record": preflight.Refused, "voters": preflight.Refused}, armed, 200, nil},
		{"barred", armed, map[string]preflight.State{"exchange": preflight.Refused, "free-space": preflight.Refused},
			Status{Unprotected: true, Whole: true, Reason: "preflight", Remedy: "exchange: do", Role: "leading"}, 503, []string{"exchange: seen", "free-space: seen"}},
		{"nothing is known of etcd", Status{Unprotected: true, Reason: "none", Role: "starting"}, map[string]preflight.State{"client-certificate": preflight.Refused},
			Status{Unprotected: true, Reason: "preflight", Remedy: "client-certificate: do", Role: "starting"}, 503, []string{"client-certificate: seen"}},
		{"alone", alone, nil, alone, 200, nil},
		{"alone and barred", alone, map[string]preflight.State{"wal-dir": preflight.Refused}, alone, 503, []string{"wal-dir: seen"}},
		{"the core's own reason stays", elsewhere, map[string]preflight.State{"wal-dir": preflight.Refused}, elsewhere, 503, []string{"wal-dir: seen"}},
	} {
		a := &Agent{}
		rs := results(t, c.other)
		a.checks.show(rs)
		got := c.core
		a.checks.onto(&got)
		a.status.Store(&got)
		if got.Armed != c.want.Armed || got.Unprotected != c.want.Unprotected || got.Reason != c.want.Reason || got.Remedy != c.want.Remedy || got.Role != c.want.Role || got.Whole != c.want.Whole {
			t.Errorf("%s: %+v", c.name, got)
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/health", nil))
		var body struct {
			Checks   []preflight.Result
			Warnings []string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		if w.Code != c.code || !slices.Equal(body.Checks, rs) || !slices.Equal(body.Warnings, c.warns) || body.Warnings == nil {
			t.Errorf("%s: HTTP %d, %+v", c.name, w.Code, body)
		}
	}
	var none checks
	st := armed
	if none.onto(&st); !st.Armed || st.Checks == nil || st.Warnings == nil {
		t.Errorf("before the first look: %+v", st)
	}
}

// The log has each change once: a refusal that bars at once, everything else when it was so twice.
//
// Rules: P11.
func TestChecksInTheLog(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	a := &Agent{log: zap.New(core)}
	a.status.Store(&Status{Role: "leading"})
	before, told := map[string]preflight.State{}, map[string]preflight.State{}
	look := func(other map[string]preflight.State) {
		rs := results(t, other)
		a.tell(rs, before, told)
	}
	expect := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, l := range logs.TakeAll() {
			m := l.ContextMap()
			got = append(got, l.Level.String()+" "+m["action"].(string)+" "+m["state"].(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	look(map[string]preflight.State{"voters": preflight.Refused, "exchange": preflight.Refused, "mixed-versions": preflight.Warning})
	expect("first", "warn exchange refused")
	look(map[string]preflight.State{"voters": preflight.Refused, "exchange": preflight.Refused, "mixed-versions": preflight.Warning})
	expect("again", "info voters refused", "warn mixed-versions warning")
	look(map[string]preflight.State{"voters": preflight.Refused, "exchange": preflight.Refused, "mixed-versions": preflight.Warning})
	expect("and again")
	look(nil)
	expect("well")
	look(map[string]preflight.State{"voters": preflight.Refused}) // a failover passes by
	expect("a flap", "info exchange ok", "info mixed-versions ok")
	look(nil)
	look(nil)
	expect("well again", "info voters ok")
	a.status.Store(&Status{Role: "starting"}) // a new member: nothing is there yet
	look(map[string]preflight.State{"locks": preflight.Refused})
	expect("a new member")
	look(map[string]preflight.State{"locks": preflight.Refused})
	expect("still new", "info locks refused")
}

// silentEtcd is one that does not run.
type silentEtcd struct{ etcdproc.Etcd }

func (silentEtcd) Process() etcdproc.Process { return etcdproc.Process{Mode: etcdproc.ModeSignal} }
func (silentEtcd) Version(context.Context) (string, error) {
	return "", etcdproc.ErrNotRunning
}
func (silentEtcd) Flags(context.Context) (etcdproc.Flags, error) {
	return etcdproc.Flags{}, etcdproc.ErrNotRunning
}

// A check without an agent changes nothing of an agent's: not its memory, readable or not, and not the record. It
// takes no agent's lock.
//
// Rules: P11, P20; F9.
func TestCheckChangesNothing(t *testing.T) {
	record, scratch := arbitertest.NewMemory(), arbitertest.NewMemory()
	for _, memory := range []string{`{"generations_seen":{"x":7},"site":{}}`, "garbage"} {
		dir := t.TempDir()
		path := filepath.Join(dir, MemoryName)
		if err := os.WriteFile(path, []byte(memory), 0o600); err != nil {
			t.Fatal(err)
		}
		rs, err := Check(t.Context(), Config{
			DataDir: dir, ClientURL: "http://127.0.0.1:1", PeerURL: "http://127.0.0.1:1", Etcd: silentEtcd{},
			Arbiter: record.Client(), Scratch: func(string) (arbiter.Register, error) { return scratch.Client(), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		state := map[string]preflight.Result{}
		for _, r := range rs {
			state[r.Name] = r
		}
		if want := map[bool]preflight.State{true: preflight.Refused, false: preflight.OK}[memory == "garbage"]; state["data-dir"].State != want {
			t.Errorf("%q: %+v", memory, state["data-dir"])
		}
		if state["arbiter-probe"].State != preflight.OK || state["record"].State != preflight.Refused || state["etcd-process"].State != preflight.Refused {
			t.Errorf("%+v", rs)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != memory {
			t.Errorf("the memory is %q now, %v", b, err)
		}
		if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 1 {
			t.Errorf("%q, %v", names, err)
		}
	}
	if _, ok := record.Get(); ok {
		t.Error("there is a record now")
	}
}

// What a running agent's probe and its question about circles found is what its checks judge.
//
// Rules: A1, P11.
func TestChecksTakeInTheProbe(t *testing.T) {
	var c checks
	var a preflight.Arbiter
	if c.arbiter(&a); a.Probed || a.Asked || a.IsCircular {
		t.Errorf("%+v", a)
	}
	c.setCircular(nil)
	c.setProbe(probe.Report{Rounds: 3}, nil)
	if c.arbiter(&a); !a.Probed || !a.Asked || a.Report.Rounds != 3 || a.IsCircular || a.Circular != nil {
		t.Errorf("%+v", a)
	}
	c.setCircular(errors.Join(errors.New("x"), ErrCircular))
	c.setProbe(probe.Report{}, probe.ErrBusy)
	if c.arbiter(&a); !a.IsCircular || !errors.Is(a.ProbeErr, probe.ErrBusy) {
		t.Errorf("%+v", a)
	}
}

// While etcd's files are operated on nothing is tried beside them.
//
// Rules: P7.
func TestChecksWaitForSections(t *testing.T) {
	a := &Agent{}
	for _, p := range failover.Phases() {
		a.status.Store(&Status{Role: p.String()})
		s := failover.State{Phase: p}
		if a.steady() == (inSection(s) || p == failover.Fenced) {
			t.Errorf("%s: steady %t", p, a.steady())
		}
	}
}

// A client port that is up and speaks of certificates is told from one that is silent, as of an etcd that waits for a leader.
//
// Rules: P11; F12.
func TestBarredFrom(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Read(make([]byte, 1)) // the handshake
				conn.Close()
			}()
		}
	}()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for _, x := range []struct {
		url  string
		want bool
	}{
		{"https://" + l.Addr().String(), true}, // nobody vouches for it
		{"https://" + mute.Addr().String(), false},
		{"http://" + l.Addr().String(), false},
		{"https://127.0.0.1:1", false},
	} {
		w := &watcher{cfg: Config{ClientURL: x.url, ClientTLS: &tls.Config{RootCAs: x509.NewCertPool()}}.Default()}
		if got := w.barredFrom(t.Context()); got != x.want {
			t.Errorf("%s: %t", x.url, got)
		}
		if !x.want {
			continue
		}
		w.cfg.ClientURL = "https://" + mute.Addr().String() // as if it took our certificate now
		w.barred.at = time.Time{}
		if !w.barredFrom(t.Context()) || w.barred.is {
			t.Error("the client has no time to come back")
		}
		w.barred.at, w.barred.last = time.Time{}, time.Now().Add(-barredAfter)
		if w.barredFrom(t.Context()) {
			t.Error("once barred, for ever barred")
		}
	}
}

// A running agent looks again when its phase changes, when it does not rest, and at the latest after the wait.
//
// Rules: P11.
func TestChecksPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := checks{phase: make(chan struct{}, 1)}
		rests := func() bool { return true }
		took := func(f func()) time.Duration {
			began := time.Now()
			f()
			return time.Since(began)
		}
		if d := took(func() { c.pause(t.Context(), time.Minute, rests) }); d != time.Minute {
			t.Errorf("undisturbed: %v", d)
		}
		c.wake()
		c.wake()
		if d := took(func() { c.pause(t.Context(), time.Minute, rests) }); d != 0 {
			t.Errorf("after a change: %v", d)
		}
		go func() {
			time.Sleep(7 * time.Second)
			c.wake()
		}()
		if d := took(func() { c.pause(t.Context(), time.Minute, rests) }); d != 7*time.Second {
			t.Errorf("a change meanwhile: %v", d)
		}
		n := 0
		if d := took(func() { c.pause(t.Context(), time.Minute, func() bool { n++; return n < 4 }) }); d != 3*checkCert {
			t.Errorf("a new certificate: %v", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if c.pause(ctx, time.Minute, rests) {
			t.Error("it goes on although the agent ends")
		}
		(&checks{}).wake() // of an agent that makes no checks
	})
}
