package lostwrites

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// state is etcd's key space, leases, users and alarms while entries are applied to it, in memory: what
// applierV3 does with them (server/etcdserver/apply, txn; server/storage/mvcc; server/lease). It starts as the database is.
type state struct {
	d         *dir
	current   int64 // revision
	compacted int64
	live      []string       // keys that the database has, sorted
	over      map[string]*kv // keys written since; nil: deleted
	added     []string       // those of them that are not in live, sorted
	leases    map[int64]int64
	leased    map[int64]map[string]bool
	auth      authState
	alarms    map[alarm]bool
}

// kv is the present state of a key.
type kv struct {
	create, mod, version, lease int64
	value                       Value
}

func (k *kv) state() State {
	if k == nil {
		return State{Known: true}
	}
	return State{Known: true, Exists: true, Mod: k.mod, Lease: k.lease, Value: k.value, Create: k.create, Version: k.version}
}

func newState(d *dir) *state {
	s := &state{d: d, current: d.newest, compacted: d.compacted, over: map[string]*kv{}, leases: map[int64]int64{},
		leased: map[int64]map[string]bool{}, auth: d.auth.clone(), alarms: map[alarm]bool{}}
	for key, at := range d.byKey {
		r := d.revs[at[len(at)-1]]
		if r.tomb {
			continue
		}
		s.live = append(s.live, key)
		if r.lease != 0 {
			s.attach(key, r.lease)
		}
	}
	slices.Sort(s.live)
	for id, ttl := range d.leases {
		s.leases[id] = ttl
	}
	for a := range d.alarms {
		s.alarms[a] = true
	}
	return s
}

func (s *state) attach(key string, lease int64) {
	if s.leased[lease] == nil {
		s.leased[lease] = map[string]bool{}
	}
	s.leased[lease][key] = true
}

func (s *state) get(key string) *kv {
	if k, ok := s.over[key]; ok {
		return k
	}
	at := s.d.byKey[key]
	if len(at) == 0 {
		return nil
	}
	r := s.d.revs[at[len(at)-1]]
	if r.tomb {
		return nil
	}
	return &kv{create: r.create, mod: r.main, version: r.version, lease: r.lease, value: r.value}
}

// keys are the live ones of a range, sorted. end as in a request: empty is the key alone, "\x00" has no end.
func (s *state) keys(key, end []byte) []string {
	if len(end) == 0 {
		if s.get(string(key)) == nil {
			return nil
		}
		return []string{string(key)}
	}
	var out []string
	for _, list := range [][]string{s.live, s.added} {
		i, _ := slices.BinarySearch(list, string(key))
		for ; i < len(list) && within(list[i], key, end); i++ {
			if s.get(list[i]) != nil {
				out = append(out, list[i])
			}
		}
	}
	slices.Sort(out)
	return out
}

// within: mkGteRange and the index's order.
func within(k string, key, end []byte) bool {
	switch {
	case len(end) == 0:
		return k == string(key)
	case len(end) == 1 && end[0] == 0:
		return k >= string(key)
	}
	return k >= string(key) && k < string(end)
}

// effect collects the changes of one entry: one main revision, if there are any.
type effect struct {
	s       *state
	main    int64
	changes []revision
}

func (f *effect) set(key string, k *kv) {
	s := f.s
	if old := s.get(key); old != nil && old.lease != 0 {
		delete(s.leased[old.lease], key)
	}
	if k != nil && k.lease != 0 {
		s.attach(key, k.lease)
	}
	if _, ok := s.over[key]; !ok {
		if _, ok := slices.BinarySearch(s.live, key); !ok {
			i, _ := slices.BinarySearch(s.added, key)
			s.added = slices.Insert(s.added, i, key)
		}
	}
	s.over[key] = k
}

func (f *effect) put(p *pb.PutRequest, value Value) {
	key := string(p.Key)
	old := f.s.get(key)
	n := &kv{create: f.main, mod: f.main, version: 1, lease: p.Lease, value: value}
	if old != nil {
		n.create, n.version = old.create, old.version+1
		if p.IgnoreValue {
			n.value = old.value
		}
		if p.IgnoreLease {
			n.lease = old.lease
		}
	}
	f.set(key, n)
	f.changes = append(f.changes, revision{main: f.main, sub: int64(len(f.changes)), key: key, old: old.state(), create: n.create, version: n.version, lease: n.lease, value: n.value})
}

func (f *effect) remove(keys []string) {
	for _, key := range keys {
		old := f.s.get(key)
		f.set(key, nil)
		f.changes = append(f.changes, revision{main: f.main, sub: int64(len(f.changes)), tomb: true, key: key, old: old.state()})
	}
}

// Why an entry has no effect: what its client was told.
var (
	errDenied   = errors.New("permission denied, or an outdated authentication")
	errNoLease  = errors.New("lease not found")
	errLease    = errors.New("the lease exists already, or its TTL is too large")
	errNoKey    = errors.New("key not found")
	errNoSpace  = errors.New("database space exceeded")
	errDamaged  = errors.New("corrupt cluster")
	errRevision = errors.New("the revision is in the future or compacted")
)

// apply applies one request and returns its changes, all of one revision. A refusal is what etcd told its client, and
// changes nothing. The error is one of reading the data.
func (s *state) apply(index uint64, r *pb.InternalRaftRequest) (changes []revision, refusal, err error) {
	f := &effect{s: s, main: s.current + 1}
	has := func(kind pb.AlarmType) bool {
		for a := range s.alarms {
			if a.kind == kind {
				return true
			}
		}
		return false
	}
	damaged, full := has(pb.AlarmType_CORRUPT), has(pb.AlarmType_NOSPACE)
	keySpace := r.Put != nil || r.DeleteRange != nil || r.Txn != nil || r.Compaction != nil || r.LeaseGrant != nil || r.LeaseRevoke != nil
	switch {
	case keySpace && damaged:
		return nil, errDamaged, nil
	case full && (r.Put != nil || r.LeaseGrant != nil || r.Txn != nil && len(puts(r)) > 0):
		return nil, errNoSpace, nil
	case r.Put != nil:
		if refusal = s.checkPut(r.Header, r.Put); refusal == nil {
			f.put(r.Put, s.value(index, 0, r.Put))
		}
	case r.DeleteRange != nil:
		if refusal = s.mayDelete(r.Header, r.DeleteRange); refusal == nil {
			f.remove(s.keys(r.DeleteRange.Key, r.DeleteRange.RangeEnd))
		}
	case r.Txn != nil:
		refusal, err = s.txn(f, index, r)
	case r.Compaction != nil:
		if c := r.Compaction.Revision; c <= s.compacted || c > s.current {
			return nil, errRevision, nil
		}
		s.compacted = r.Compaction.Revision
	case r.LeaseGrant != nil:
		id := r.LeaseGrant.ID
		if _, ok := s.leases[id]; ok || id == 0 || r.LeaseGrant.TTL > maxTTL {
			return nil, errLease, nil
		}
		s.leases[id] = r.LeaseGrant.TTL
	case r.LeaseRevoke != nil:
		id := r.LeaseRevoke.ID
		if _, ok := s.leases[id]; !ok {
			return nil, errNoLease, nil
		}
		if !s.mayAttach(r.Header, id) {
			return nil, errDenied, nil
		}
		keys := make([]string, 0, len(s.leased[id]))
		for k := range s.leased[id] {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		f.remove(keys)
		delete(s.leases, id)
		delete(s.leased, id)
	case r.Alarm != nil:
		a := alarm{r.Alarm.MemberID, r.Alarm.Alarm}
		switch r.Alarm.Action {
		case pb.AlarmRequest_ACTIVATE:
			if a.kind != pb.AlarmType_NONE {
				s.alarms[a] = true
			}
		case pb.AlarmRequest_DEACTIVATE:
			delete(s.alarms, a)
		}
	default:
		s.auth.administer(r)
	}
	if len(f.changes) > 0 {
		s.current = f.main
	}
	return f.changes, refusal, err
}

const maxTTL = 9000000000 // lease.MaxLeaseTTL

func (s *state) value(index uint64, put int, p *pb.PutRequest) Value {
	return Value{n: len(p.Value), d: s.d, index: index, put: put}
}

// checkPut: checkPutAuth and checkPut, before anything is written.
func (s *state) checkPut(h *pb.RequestHeader, p *pb.PutRequest) error {
	if !s.mayPut(h, p) {
		return errDenied
	}
	return s.canPut(p)
}

func (s *state) mayPut(h *pb.RequestHeader, p *pb.PutRequest) bool {
	return s.auth.may(h, p.Key, nil, authpb.Permission_WRITE) && s.mayAttach(h, p.Lease) &&
		(!p.PrevKv || s.auth.may(h, p.Key, nil, authpb.Permission_READ))
}

func (s *state) canPut(p *pb.PutRequest) error {
	if _, ok := s.leases[p.Lease]; !ok && p.Lease != 0 {
		return errNoLease
	}
	if (p.IgnoreValue || p.IgnoreLease) && s.get(string(p.Key)) == nil {
		return errNoKey
	}
	return nil
}

// mayAttach: checkLeasePuts.
func (s *state) mayAttach(h *pb.RequestHeader, lease int64) bool {
	if s.auth.admin(h) {
		return true
	}
	if _, ok := s.leases[lease]; !ok {
		return true
	}
	for key := range s.leased[lease] {
		if !s.auth.may(h, []byte(key), nil, authpb.Permission_WRITE) {
			return false
		}
	}
	return true
}

func (s *state) mayDelete(h *pb.RequestHeader, d *pb.DeleteRangeRequest) error {
	if !s.auth.may(h, d.Key, d.RangeEnd, authpb.Permission_WRITE) || d.PrevKv && !s.auth.may(h, d.Key, d.RangeEnd, authpb.Permission_READ) {
		return errDenied
	}
	return nil
}

// txn: compares first, then the checks of the branches that were chosen, then their operations, in one revision.
func (s *state) txn(f *effect, index uint64, r *pb.InternalRaftRequest) (refusal, err error) {
	if refusal := s.mayTxn(r.Header, r.Txn); refusal != nil {
		return refusal, nil
	}
	chosen := map[*pb.TxnRequest]bool{}
	if err := s.choose(r.Txn, chosen); err != nil {
		return nil, err
	}
	if refusal := s.checkTxn(r.Txn, chosen); refusal != nil {
		return refusal, nil
	}
	ordinal := map[*pb.PutRequest]int{}
	for i, p := range puts(r) {
		ordinal[p] = i
	}
	s.run(f, index, r.Txn, chosen, ordinal)
	return nil, nil
}

func branch(t *pb.TxnRequest, chosen map[*pb.TxnRequest]bool) []*pb.RequestOp {
	if chosen[t] {
		return t.Success
	}
	return t.Failure
}

// choose: compareToPath. All compares, nested ones too, see the state before the transaction.
func (s *state) choose(t *pb.TxnRequest, chosen map[*pb.TxnRequest]bool) error {
	chosen[t] = true
	for _, c := range t.Compare {
		ok, err := s.compare(c)
		if err != nil {
			return err
		}
		if !ok {
			chosen[t] = false
			break
		}
	}
	for _, op := range branch(t, chosen) {
		if n := op.GetRequestTxn(); n != nil {
			if err := s.choose(n, chosen); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *state) compare(c *pb.Compare) (bool, error) {
	keys := s.keys(c.Key, c.RangeEnd)
	if len(keys) == 0 {
		return c.Target != pb.Compare_VALUE && compareKV(c, &kv{}, nil), nil
	}
	for _, key := range keys {
		k := s.get(key)
		var value []byte
		if c.Target == pb.Compare_VALUE {
			var err error
			if value, err = k.value.Bytes(); err != nil {
				return false, fmt.Errorf("value of %q: %w", key, err)
			}
		}
		if !compareKV(c, k, value) {
			return false, nil
		}
	}
	return true, nil
}

func compareKV(c *pb.Compare, k *kv, value []byte) bool {
	order := func(a, b int64) int {
		switch {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	}
	result := 0
	switch c.Target {
	case pb.Compare_VALUE:
		result = bytes.Compare(value, c.GetValue())
	case pb.Compare_CREATE:
		result = order(k.create, c.GetCreateRevision())
	case pb.Compare_MOD:
		result = order(k.mod, c.GetModRevision())
	case pb.Compare_VERSION:
		result = order(k.version, c.GetVersion())
	case pb.Compare_LEASE:
		result = order(k.lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return result == 0
	case pb.Compare_NOT_EQUAL:
		return result != 0
	case pb.Compare_GREATER:
		return result > 0
	case pb.Compare_LESS:
		return result < 0
	}
	return true
}

// mayTxn: checkTxnPermission looks at both branches.
func (s *state) mayTxn(h *pb.RequestHeader, t *pb.TxnRequest) error {
	for _, c := range t.Compare {
		if !s.auth.may(h, c.Key, c.RangeEnd, authpb.Permission_READ) {
			return errDenied
		}
	}
	for _, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			var err error
			switch o := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				if !s.auth.may(h, o.RequestRange.GetKey(), o.RequestRange.GetRangeEnd(), authpb.Permission_READ) {
					err = errDenied
				}
			case *pb.RequestOp_RequestPut:
				if !s.mayPut(h, o.RequestPut) {
					err = errDenied
				}
			case *pb.RequestOp_RequestDeleteRange:
				err = s.mayDelete(h, o.RequestDeleteRange)
			case *pb.RequestOp_RequestTxn:
				err = s.mayTxn(h, o.RequestTxn)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *state) checkTxn(t *pb.TxnRequest, chosen map[*pb.TxnRequest]bool) error {
	for _, op := range branch(t, chosen) {
		var err error
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if rev := o.RequestRange.GetRevision(); rev != 0 && (rev > s.current || rev < s.compacted) {
				err = errRevision
			}
		case *pb.RequestOp_RequestPut:
			err = s.canPut(o.RequestPut)
		case *pb.RequestOp_RequestTxn:
			err = s.checkTxn(o.RequestTxn, chosen)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *state) run(f *effect, index uint64, t *pb.TxnRequest, chosen map[*pb.TxnRequest]bool, ordinal map[*pb.PutRequest]int) {
	for _, op := range branch(t, chosen) {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			f.put(o.RequestPut, s.value(index, ordinal[o.RequestPut], o.RequestPut))
		case *pb.RequestOp_RequestDeleteRange:
			f.remove(s.keys(o.RequestDeleteRange.Key, o.RequestDeleteRange.RangeEnd))
		case *pb.RequestOp_RequestTxn:
			s.run(f, index, o.RequestTxn, chosen, ordinal)
		}
	}
}
