package check

import (
	"fmt"
	"slices"
	"strings"

	"twok/testing/history"
)

// clients says whether a key is the clients' own.
func clients(key string) bool {
	if len(key) < 2 {
		return false
	}
	i := strings.IndexByte(key, '/')
	return i > 0 && strings.ContainsRune("ulrt", rune(key[0]))
}

// once says whether the operation's keys are written by it alone.
func once(o *history.Op) bool { return o.Kind == history.Unique || o.Kind == history.LeasePut }

func acknowledged(r *Result, h history.History, _ Options) {
	if h.Final == nil {
		r.missing("nobody looked at what is there at the end")
		return
	}
	byValue := map[string]*history.Op{}
	revoked := map[string]*history.Op{} // by key
	for i := range h.Ops {
		o := &h.Ops[i]
		for _, w := range o.Writes {
			if !w.Delete {
				byValue[w.Value] = o
			}
			if o.Kind == history.Revoke {
				revoked[w.Key] = o
			}
		}
		if o.Lease != 0 && o.Outcome == history.Failed && noLease(o) {
			r.bad("the lease %x was granted, and %s of client %d was told that there is none", o.Lease, o.Kind, o.Client)
		}
	}
	places := []place{{name: "linearizable read", live: h.Final.Linear}}
	for _, m := range h.Final.Members {
		places = append(places, place{name: "API of " + m.Site, live: m.Keys},
			place{name: "disk of " + m.Site, live: liveOf(m.Disk), disk: m.Disk, compact: m.DiskCompact})
	}
	if len(h.Final.Members) != 2 {
		r.missing("%d members were looked at, want 2", len(h.Final.Members))
	}
	for _, p := range places {
		if len(p.live) == 0 {
			r.missing("nothing was found in the %s", p.name)
			continue
		}
		p.check(r, h.Ops, byValue, revoked)
	}
	leases(r, h)
}

func noLease(o *history.Op) bool { return strings.Contains(o.Error, "lease not found") }

// gone says whether the lease that o revokes is gone after it: because of it, or of its first try, whose answer was lost.
func gone(o *history.Op) bool { return o.Outcome == history.OK || noLease(o) }

// leases: each lease that was granted and not revoked is known, over the API and on disk, and each that was revoked is not.
func leases(r *Result, h history.History) {
	granted := map[int64]bool{}
	revoked := map[int64]*history.Op{}
	for i := range h.Ops {
		switch o := &h.Ops[i]; {
		case o.Kind == history.Grant && o.Outcome == history.OK:
			granted[o.Lease] = true
		case o.Kind == history.Revoke && o.Outcome != history.Failed:
			revoked[o.Lease] = o
		}
	}
	if len(granted) == 0 {
		return
	}
	for _, m := range h.Final.Members {
		for _, p := range []struct {
			where  string
			leases []int64
		}{{"API of " + m.Site, m.Leases}, {"disk of " + m.Site, m.DiskLeases}} {
			if p.leases == nil {
				r.missing("nobody looked for leases in the %s", p.where)
				continue
			}
			for id := range granted {
				r.Checked++
				there, o := slices.Contains(p.leases, id), revoked[id]
				if !there && o == nil {
					r.bad("%s: the lease %x, which was granted, is not there", p.where, id)
				} else if there && o != nil && gone(o) {
					r.bad("%s: the lease %x is there, which was revoked", p.where, id)
				}
			}
		}
	}
}

// place is somewhere where writes have to be.
type place struct {
	name    string
	live    []history.KV
	disk    []history.Change // with disk, every revision above compact
	compact int64
}

func (p place) check(r *Result, ops []history.Op, byValue, revoked map[string]*history.Op) {
	live := map[string]history.KV{}
	for _, kv := range p.live {
		live[kv.Key] = kv
		p.foreign(r, byValue, kv.Key, kv.Value, kv.Mod)
	}
	at := map[int64]map[string]history.Change{}
	first := map[string]int64{} // by value, of which each is written once
	for _, c := range p.disk {
		if at[c.Rev] == nil {
			at[c.Rev] = map[string]history.Change{}
		}
		at[c.Rev][c.Key] = c
		if !c.Delete {
			p.foreign(r, byValue, c.Key, c.Value, c.Rev)
			if rev, twice := first[c.Value]; twice && clients(c.Key) {
				r.bad("%s: %s = %s was written at revision %d and once more at %d", p.name, c.Key, short(c.Value), rev, c.Rev)
			}
			first[c.Value] = c.Rev
		}
	}
	newest := map[string]history.Write{} // acknowledged, by key
	newestAt := map[string]int64{}
	deleted := map[string]bool{} // perhaps: nobody knows
	for i := range ops {
		o := &ops[i]
		if o.Kind == history.Delete && o.Outcome == history.Unknown {
			deleted[o.Writes[0].Key] = true
		}
		if !o.Wrote() && !(o.Kind == history.Revoke && gone(o)) {
			continue
		}
		r.Checked++
		for _, w := range o.Writes {
			kv, there := live[w.Key]
			switch {
			case o.Kind == history.Revoke:
				if there {
					r.bad("%s: %s is there, whose lease was revoked", p.name, w.Key)
				}
			case once(o):
				if by := revoked[w.Key]; !there && by != nil && by.Outcome != history.Failed {
					break
				}
				if !there {
					r.bad("%s: %s = %s, acknowledged at revision %d, is not there", p.name, w.Key, short(w.Value), o.Revision)
				} else if kv.Value != w.Value || kv.Mod != o.Revision || kv.Version != 1 {
					r.bad("%s: %s = %s was acknowledged at revision %d; there is %s of revision %d, version %d",
						p.name, w.Key, short(w.Value), o.Revision, short(kv.Value), kv.Mod, kv.Version)
				}
			default:
				if o.Revision > newestAt[w.Key] && (!w.Delete || seenPresent(o, w.Key)) {
					newest[w.Key], newestAt[w.Key] = w, o.Revision
				}
			}
			if p.disk == nil || o.Revision <= p.compact || o.Kind == history.Revoke {
				continue
			}
			c, ok := at[o.Revision][w.Key]
			if w.Delete && !seenPresent(o, w.Key) {
				continue
			}
			if !ok || c.Delete != w.Delete || c.Value != w.Value {
				r.bad("%s: revision %d is not the %s of %s by client %d that was acknowledged with it", p.name, o.Revision, o.Kind, w.Key, o.Client)
			}
		}
	}
	for key, w := range newest {
		// A later write of unknown outcome may have replaced it; an earlier one not.
		rev := newestAt[key]
		switch kv, there := live[key]; {
		case there && kv.Mod < rev:
			r.bad("%s: %s is of revision %d, acknowledged was %d", p.name, key, kv.Mod, rev)
		case there && kv.Mod == rev && (kv.Value != w.Value || w.Delete):
			r.bad("%s: %s is %s at revision %d, acknowledged was %s", p.name, key, short(kv.Value), rev, short(w.Value))
		case !there && !w.Delete && !deleted[key]:
			r.bad("%s: %s, acknowledged at revision %d, is not there, and nobody deleted it", p.name, key, rev)
		}
	}
}

func seenPresent(o *history.Op, key string) bool {
	for _, kv := range o.Seen {
		if kv.Key == key {
			return kv.Present()
		}
	}
	return false
}

// foreign: what is there was written, by an operation that did not fail, and at its revision.
func (p place) foreign(r *Result, byValue map[string]*history.Op, key, value string, rev int64) {
	if !clients(key) {
		return
	}
	o := byValue[value]
	switch {
	case o == nil || !writes(o, key, value):
		r.bad("%s: %s = %s of revision %d was written by nobody", p.name, key, short(value), rev)
	case o.Outcome == history.Failed:
		r.bad("%s: %s = %s of revision %d is there, although etcd refused it (%s)", p.name, key, short(value), rev, o.Error)
	case o.Outcome == history.OK && !o.Applied:
		r.bad("%s: %s = %s of revision %d is there, although its condition did not hold", p.name, key, short(value), rev)
	case o.Outcome == history.OK && o.Revision != rev:
		r.bad("%s: %s = %s was acknowledged at revision %d and is there at %d", p.name, key, short(value), o.Revision, rev)
	}
}

func writes(o *history.Op, key, value string) bool {
	for _, w := range o.Writes {
		if w.Key == key && w.Value == value && !w.Delete {
			return true
		}
	}
	return false
}

func wordsOf(kv history.KV) string {
	if !kv.Present() {
		return kv.Key + " absent"
	}
	return fmt.Sprintf("%s = %s of revision %d, created at %d, version %d", kv.Key, short(kv.Value), kv.Mod, kv.Create, kv.Version)
}

func short(v string) string {
	if len(v) > 24 {
		return v[:24] + "..."
	}
	return v
}

// liveOf is what a database holds now, of all its revisions.
func liveOf(changes []history.Change) []history.KV {
	last := map[string]history.Change{}
	for _, c := range changes {
		if l, ok := last[c.Key]; !ok || l.Rev < c.Rev || l.Rev == c.Rev && l.Sub < c.Sub {
			last[c.Key] = c
		}
	}
	var out []history.KV
	for k, c := range last {
		if !c.Delete {
			out = append(out, history.KV{Key: k, Value: c.Value, Mod: c.Rev, Create: c.Create, Version: c.Version})
		}
	}
	return out
}
