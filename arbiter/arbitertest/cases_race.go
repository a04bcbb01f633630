package arbitertest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"twok/arbiter"
)

const (
	racers = 8
	rounds = 10
)

func caseCreateRace(k *kit) {
	for round := range rounds {
		f := k.fixture()
		k.race(fmt.Sprintf("round %d", round), f, k.clients(f, racers), arbiter.Absent)
	}
}

func caseSwapRace(k *kit) {
	f := k.fixture()
	clients := k.clients(f, racers)
	value := record(1)
	k.swapped("create", clients[0], arbiter.Absent, value)
	for round := range rounds {
		_, v, err := read(clients[round%racers])
		k.must(err)
		k.race(fmt.Sprintf("round %d", round), f, clients, v)
	}
	// One client, used from many goroutines, is no different.
	one := k.client(f)
	_, v, err := read(one)
	k.must(err)
	same := make([]arbiter.Register, racers)
	for i := range same {
		same[i] = one
	}
	k.race("one shared client", f, same, v)
}

// race lets all clients swap from one version at once and insists on one winner.
func (k *kit) race(when string, f Fixture, clients []arbiter.Register, prev arbiter.Version) {
	values := make([][]byte, len(clients))
	errs := make([]error, len(clients))
	var start, done sync.WaitGroup
	start.Add(1)
	for i, r := range clients {
		values[i] = record(uint64(i + 1))
		done.Go(func() {
			start.Wait()
			errs[i] = swap(r, prev, values[i])
		})
	}
	start.Done()
	done.Wait()
	winners := 0
	for i, err := range errs {
		if err == nil {
			winners++
			k.holds(fmt.Sprintf("%s: the winner's value", when), clients[(i+1)%len(clients)], values[i])
			continue
		}
		// Unknown would be honest, but a store in good health knows.
		k.classed(fmt.Sprintf("%s: a loser", when), err, arbiter.ErrConflict, arbiter.ErrUnavailable)
	}
	if winners != 1 {
		k.failf("%s: %d of %d swaps from one version were applied: %q", when, winners, len(clients), errs)
	}
}

// caseStorm: read, add one, swap; every success must be in the final counter.
func caseStorm(k *kit) {
	const goal = 200
	f := k.fixture()
	clients := k.clients(f, racers)
	k.swapped("create", clients[0], arbiter.Absent, []byte("0"))
	var successes atomic.Int64
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i, r := range clients {
		wg.Go(func() {
			for tries := 0; successes.Load() < goal; tries++ {
				if tries > 100*goal {
					errs[i] = fmt.Errorf("no progress in %d tries", tries)
					return
				}
				ok, err := increment(r)
				if err != nil {
					errs[i] = err
					return
				}
				if ok {
					successes.Add(1)
				}
			}
		})
	}
	wg.Wait()
	k.must(errors.Join(errs...))
	value, _, err := read(clients[0])
	k.must(err)
	if want := strconv.FormatInt(successes.Load(), 10); string(value) != want {
		k.failf("%s swaps succeeded and the counter is %s", want, value)
	}
}

// increment is false, nil if somebody else was first.
func increment(r arbiter.Register) (bool, error) {
	value, v, err := read(r)
	if err != nil {
		return false, err
	}
	n, err := strconv.Atoi(string(value))
	if err != nil {
		return false, fmt.Errorf("read %.60q at %+v in place of a number", value, v)
	}
	switch err := swap(r, v, []byte(strconv.Itoa(n+1))); arbiter.Class(err) {
	case nil:
		return true, nil
	case arbiter.ErrConflict, arbiter.ErrUnavailable:
		return false, nil
	default:
		return false, err
	}
}

// caseTorn: readers beside a writer see only whole values, each under the one
// version that belongs to it, and never absent.
func caseTorn(k *kit) {
	const writes = 60
	f := k.fixture()
	w := k.client(f)
	fill := func(i int) []byte { // of different lengths, each recognisable anywhere
		return bytes.Repeat([]byte{'a' + byte(i%26)}, 1500+i*37)
	}
	k.swapped("create", w, arbiter.Absent, fill(0))
	var mu sync.Mutex
	seen := map[string][]byte{}
	var stop atomic.Bool
	readers := k.clients(f, 4)
	errs := make([]error, len(readers))
	var wg sync.WaitGroup
	for i, r := range readers {
		wg.Go(func() {
			last := 0
			for !stop.Load() {
				value, v, err := read(r)
				if err == nil {
					last, err = whole(value, v, last, fill)
				}
				if err == nil {
					mu.Lock()
					if old, ok := seen[v.Tag()]; ok && !bytes.Equal(old, value) {
						err = fmt.Errorf("version %q belongs to two values", v.Tag())
					}
					seen[v.Tag()] = value
					mu.Unlock()
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	var err error
	for i := 1; i <= writes && err == nil; i++ {
		var v arbiter.Version
		if _, v, err = read(w); err == nil {
			err = swap(w, v, fill(i))
		}
	}
	stop.Store(true)
	wg.Wait()
	k.must(errors.Join(append(errs, err)...))
}

// whole returns which value it is; it never goes back.
func whole(value []byte, v arbiter.Version, last int, fill func(int) []byte) (int, error) {
	if !v.Exists() {
		return 0, errors.New("absent during an overwrite")
	}
	i := (len(value) - 1500) / 37
	if i < 0 || !bytes.Equal(value, fill(i)) {
		return 0, fmt.Errorf("a torn value of %d bytes: %.20q ... at %q", len(value), value, v.Tag())
	}
	if i < last {
		return 0, fmt.Errorf("read value %d after value %d", i, last)
	}
	return i, nil
}
