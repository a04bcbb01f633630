package stores

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"twok/arbiter"
)

// A hundred pairs share one store: two members of each swap their own key, all at once.
// No key ever shows another one's value, no update is lost, and each conflict is with the other
// member of the same pair.
//
// Rules: A1, P1.
func TestManyPairs(t *testing.T) {
	const pairs, swaps = 100, 2 // swaps of each member
	for _, s := range stores {
		if s.fault != "" || s.class != nil || s.name == "lighttpd" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			open := s.start(t)
			begin := time.Now()
			var g sync.WaitGroup
			var mu sync.Mutex
			var conflicts int
			for k := range pairs {
				key := fmt.Sprintf("many/pair-%d", k)
				for member := range 2 {
					g.Go(func() {
						n, err := swapOwn(t.Context(), open, key, member, swaps)
						if err != nil {
							t.Errorf("%s, member %d: %v", key, member, err)
						}
						mu.Lock()
						defer mu.Unlock()
						conflicts += n
					})
				}
			}
			g.Wait()
			t.Logf("%d swaps, %d conflicts, %v", pairs*2*swaps, conflicts, time.Since(begin).Round(time.Millisecond))
			if t.Failed() {
				return
			}
			versions := map[string]arbiter.Version{}
			for k := range pairs {
				key := fmt.Sprintf("many/pair-%d", k)
				g.Go(func() {
					r, err := open(key)
					if err != nil {
						t.Error(err)
						return
					}
					b, v, err := r.Read(t.Context())
					if got, ok := parse(key, b); err != nil || !ok || got.n != 2*swaps {
						t.Errorf("%s: %q, %v; want count %d", key, b, err, 2*swaps)
					}
					closeRegister(t, r)
					mu.Lock()
					defer mu.Unlock()
					versions[key] = v
				})
			}
			g.Wait()
			// The version of one key is none of another's.
			r, err := open("many/pair-0")
			if err != nil {
				t.Fatal(err)
			}
			if err := r.CompareAndSwap(t.Context(), versions["many/pair-1"], []byte("x")); arbiter.Class(err) != arbiter.ErrConflict {
				t.Errorf("a swap from another key's version: %v", err)
			}
			closeRegister(t, r)
		})
	}
}

// content is what stands in a key: whose it is, how many swaps were applied, and who made the last.
type content struct{ n, member int }

func (c content) bytes(key string) []byte { return fmt.Appendf(nil, "%s %d %d\n", key, c.n, c.member) }

func parse(key string, b []byte) (c content, ok bool) {
	var of string
	n, err := fmt.Sscanf(string(b), "%s %d %d\n", &of, &c.n, &c.member)
	return c, err == nil && n == 3 && of == key
}

// swapOwn makes a number of swaps of a key, as one of its two members, and returns how
// many conflicts it had.
func swapOwn(ctx context.Context, open opener, key string, member, swaps int) (conflicts int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := open(key)
	if err != nil {
		return 0, err
	}
	defer func() {
		if c, ok := r.(interface{ Close() error }); ok {
			err = errors.Join(err, c.Close())
		}
	}()
	var from content // of the swap that was refused
	var refused bool
	for done := 0; done < swaps; {
		b, v, err := r.Read(ctx)
		if arbiter.Class(err) == arbiter.ErrUnavailable && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return conflicts, err
		}
		now, ok := parse(key, b)
		if v.Exists() && !ok {
			return conflicts, fmt.Errorf("it holds %q", b)
		}
		if refused && (now.n <= from.n || now.member == member) {
			return conflicts, fmt.Errorf("a swap from %+v was refused, and it holds %+v: not the other member's", from, now)
		}
		next := content{now.n + 1, member}
		err = r.CompareAndSwap(ctx, v, next.bytes(key))
		refused = arbiter.Class(err) == arbiter.ErrConflict
		switch {
		case err == nil:
			done++
		case refused:
			conflicts++
			from = now
		default:
			return conflicts, err
		}
	}
	return conflicts, nil
}
