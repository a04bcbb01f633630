package walsurgery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"twok/internal/failpoint"
)

// bigPair is a pair whose etcds have themselves begun further segments of 64 MB,
// killed under load. One version, or all with TWOK_LONG.
func bigPair(t *testing.T, version string) *crashed {
	t.Helper()
	pair := newPair(t, version, t.TempDir())
	for _, m := range pair {
		m.start()
	}
	c := pair[0].awaitLeader()
	val := strings.Repeat("x", 512<<10)
	var mu sync.Mutex
	cr := &crashed{pair: pair, ids: [2]uint64{pair[0].id(), pair[1].id()}}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 66 {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				key := fmt.Sprintf("w/big/%d/%d", w, i)
				if _, err := c.Put(ctx, key, val); err == nil {
					mu.Lock()
					cr.acked = append(cr.acked, key)
					mu.Unlock()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	stop := make(chan struct{})
	out := writers(c, 8, 5000, stop)
	time.Sleep(200 * time.Millisecond)
	pair[0].kill()
	pair[1].kill()
	close(stop)
	cr.acked = append(cr.acked, <-out...)
	return cr
}

// A log of several segments that etcd itself began: killed at every step of the
// append and of the rewrite, after each segment of it too, then the survivor
// leads alone and the loser returns with its rewritten log.
//
// Rules: P8, P9, P12.
func TestSeveralSegments(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 400 MB")
	}
	vs := []string{"3.6"}
	if long() {
		vs = versions
	}
	for _, version := range vs {
		t.Run(version, func(t *testing.T) {
			cr := bigPair(t, version)
			survivor, loser := cr.pair[0], cr.pair[1]
			l, err := Inspect(nil, survivor.wal())
			if err != nil {
				t.Fatal(err)
			}
			sum, before := l.Summary(), slices.Collect(l.Entries())
			l.Close()
			if sum.Segments < 3 || sum.First.Index != 1 || len(before) != sum.Entries {
				t.Fatalf("%s: %d entries", sum, len(before))
			}
			segs := sum.Segments

			other := fmt.Sprintf("%x", cr.ids[1])
			for _, step := range steps(t, "wal/append/", 5) {
				mustDie(t, step, "append", survivor.wal(), other)
				after := entriesOf(t, survivor.wal())
				if len(after) < len(before) || !slices.EqualFunc(after[:len(before)], before, sameEntry) {
					t.Fatalf("%s: entries changed", step)
				}
			}
			mustCut(t, "append", survivor.wal(), other)
			survivor.start()
			leadsAlone(t, survivor, cr.acked)

			rejoin(t, survivor, loser, cr.acked, func(id uint64) {
				hash, entries, newID := segmentsHash(t, loser.wal()), entriesOf(t, loser.wal()), fmt.Sprintf("%x", id)
				specs := []string{}
				for _, step := range steps(t, "wal/rewrite/", 5) {
					specs = append(specs, step+"=kill")
				}
				for n := 2; n <= segs; n++ {
					specs = append(specs, fmt.Sprintf("%s=kill@%d", stepRewriteSegment, n))
				}
				slices.SortStableFunc(specs, func(a, b string) int { return orderOf(a) - orderOf(b) })
				for _, spec := range specs {
					if st, out := cut(t, spec, "rewrite", loser.wal(), newID); st.Exited() && loser.id() != id {
						t.Fatalf("%s: %v %s", spec, st, out)
					}
					if got := loser.id(); got != id && segmentsHash(t, loser.wal()) != hash {
						t.Fatalf("%s: the old log changed", spec)
					}
				}
				mustCut(t, "rewrite", loser.wal(), newID)
				if !slices.EqualFunc(entriesOf(t, loser.wal()), entries, sameEntry) {
					t.Fatal("the rewrite changed the entries")
				}
				if r, err := Replaced(loser.wal()); err != nil || len(r) != 1 || segmentsHash(t, r[0]) != hash {
					t.Fatalf("set aside: %v %v", r, err)
				}
				if n := namesIn(t, filepath.Dir(loser.wal())); len(n) != 3 {
					t.Fatalf("left behind: %v", n)
				}
			})
		})
	}
}

// orderOf sorts the kills so that those before the exchange come first.
func orderOf(spec string) int {
	switch {
	case strings.HasPrefix(spec, stepRewriteExchanged):
		return 1
	case strings.HasPrefix(spec, stepRewriteAside):
		return 2
	}
	return 0
}

// The append itself begins a segment, at each of its three saves; killed at each
// step etcd still starts, and the append done again completes.
//
// Rules: P8, P9.
func TestAppendBeginsSegment(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for n, step := range append(steps(t, "wal/append/", 5), "") {
			i := n % 2
			m, other := cr.restore(t, i), fmt.Sprintf("%x", cr.ids[1-i])
			before := entriesOf(t, m.wal())
			args := []string{"append", m.wal(), other}
			spec := ""
			if step != "" {
				spec = step + "=kill"
			}
			// One byte: every save that is flushed begins a segment.
			st, out := cutWith(t, []string{failpoint.Env + "=" + spec, "SURGEON_SEGMENT=1"}, args...)
			if st.Success() != (step == "") {
				t.Fatalf("%q: %v %s", step, st, out)
			}
			after := entriesOf(t, m.wal())
			if len(after) < len(before) || !slices.EqualFunc(after[:len(before)], before, sameEntry) {
				t.Fatalf("%q: entries changed", step)
			}
			if segs, err := segmentNames(m.wal()); err != nil || len(segs) < 2 && step != stepAppendBegin {
				t.Fatalf("%q: %d segments, %v", step, len(segs), err)
			}
			mustCut(t, args...)
			m.start()
			leadsAlone(t, m, cr.acked)
			m.kill()
		}
	})
}

// The kill of a process does not lose what it handed to the kernel; a power
// failure does. Every prefix of the append's bytes, cut at any sector, is a log
// that Open repairs and on which the append completes.
//
// Rules: P8, P9.
func TestAppendTornAtAnySector(t *testing.T) {
	smallSegments(t, 1<<20)
	for _, version := range versions {
		base := seed(t, version)
		s, err := scanDir(base)
		if err != nil {
			t.Fatal(err)
		}
		s.close()
		name, from := s.segs[0].name, s.off
		var many []uint64
		for i := range 60 {
			many = append(many, uint64(1000+i))
		}
		full := filepath.Join(fastDir(t), "full")
		must(t, os.CopyFS(full, os.DirFS(base)))
		p := applyTo(t, full, many)
		whole, err := os.ReadFile(filepath.Join(full, name))
		if err != nil {
			t.Fatal(err)
		}
		l, err := Inspect(nil, full)
		if err != nil {
			t.Fatal(err)
		}
		to := l.Summary().LogBytes
		l.Close()
		cuts := 0
		for at := from; at <= to; at += 8 {
			if at%sector != 0 && at != from && at+sector < to && at%(8*13) != 0 {
				continue // each sector boundary, and some frame boundaries and middles
			}
			cuts++
			dir := filepath.Join(fastDir(t), "cut")
			must(t, os.CopyFS(dir, os.DirFS(base)))
			b := slices.Clone(whole)
			clear(b[at:])
			must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
			l, err := Open(nil, dir)
			if err != nil {
				// A frame cut in the middle of a sector is not torn for etcd: it has zeros
				// but no zero sector. That cannot happen to an aligned write; it is refused.
				if at%sector != 0 && typed(err) {
					continue
				}
				t.Fatalf("%s: cut at %d: %v", version, at, err)
			}
			if got := l.Summary().Last; got.Index < p.Last.Index {
				t.Fatalf("%s: cut at %d: the log ends at %s", version, at, got)
			}
			l.Close()
			applyTo(t, dir, many)
			if e := readAsEtcd(dir); e.err != nil || e.hs.Commit != e.last.Index || e.last.Index < p.End.Index {
				t.Fatalf("%s: cut at %d: etcd reads %+v", version, at, e)
			}
		}
		if cuts < 10 {
			t.Fatalf("only %d cuts", cuts)
		}
	}
}

func applyTo(t testing.TB, dir string, remove []uint64) Plan {
	t.Helper()
	l, err := Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Plan(remove)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Apply(p); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}
