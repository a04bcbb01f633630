package force

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/failover"
)

// QuietFor is how long a record has to stay as it is, by the observer's own clock, before the survivor that it
// names counts as dead: a survivor confirms about once a minute (P10, P18, P20).
const QuietFor = 3 * time.Minute

// readLimit ends one read of a register that is silent.
const readLimit = 10 * time.Second

var (
	// ErrMember: the member is not known, ambiguous, of another cluster, or a learner. Nothing overrides this.
	ErrMember = errors.New("this member cannot be named")
	// ErrAlive: the other side answers, or its agent wrote the record a short while ago.
	ErrAlive = errors.New("the other side may be alive")
	// ErrPaused: the record's pause flag is set.
	ErrPaused = errors.New("the record is paused")
	// ErrChanged: the record changed since it was looked at. Nothing was written.
	ErrChanged = errors.New("the record changed meanwhile")
	// ErrUnknown: whether the record was written is not known; it may yet be.
	ErrUnknown = errors.New("the outcome is not known")
)

// Sight is what one client URL said.
type Sight struct {
	URL     string
	Member  uint64 // its member ID; zero if it did not answer
	Cluster uint64
	Name    string // by its own list
	Leader  uint64
	Learner bool
	Term    uint64
	Commit  uint64           // the commit index as it knows it
	Members []etcdapi.Member // its own list; a learner shows none
	Err     error            // it did not answer
}

// See asks each URL, all at the same time.
func See(ctx context.Context, d *etcdapi.Dialer, urls []string) []Sight {
	sights := make([]Sight, len(urls))
	var g sync.WaitGroup
	for i, url := range urls {
		g.Go(func() { sights[i] = see(ctx, d, url) })
	}
	g.Wait()
	return sights
}

func see(ctx context.Context, d *etcdapi.Dialer, url string) Sight {
	s := Sight{URL: url}
	c, err := d.Client(url)
	if err != nil {
		s.Err = err
		return s
	}
	defer func() { s.Err = errors.Join(s.Err, c.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := etcdapi.Status(ctx, c)
	if err != nil {
		s.Err = err
		return s
	}
	s.Member, s.Cluster, s.Leader, s.Learner = st.Header.MemberId, st.Header.ClusterId, st.Leader, st.IsLearner
	s.Term, s.Commit = st.RaftTerm, st.RaftIndex
	list, err := c.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return s // a learner, or auth: what the status said is enough
	}
	for _, m := range list.Members {
		s.Members = append(s.Members, etcdapi.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner})
		if m.ID == s.Member {
			s.Name = m.Name
		}
	}
	return s
}

// Local is what the named member's data directory says, where the command can read it. Zero: it cannot.
type Local struct {
	Dir     string
	Member  uint64
	Cluster uint64
	Name    string
	Last    arbiter.Position // the end of the log
}

// Case is a forced claim that is being considered.
type Case struct {
	Record  arbiter.Record
	Version arbiter.Version
	Member  arbiter.Member
	End     arbiter.Position // how far the named member's log surely goes; zero: not known
	EndIs   string           // what End is
	Ordered bool             // the record holds this very order already
	Sights  []Sight
	Unseen  bool // nobody who answered knows the member: only its ID was given
}

// Consider finds the member that want names, by name or by ID in hexadecimal, and judges it.
//
// Errors: ErrMember, ErrPaused.
func Consider(rec arbiter.Record, v arbiter.Version, sights []Sight, local Local, want string) (Case, error) {
	c := Case{Record: rec, Version: v, Sights: sights}
	for _, s := range sights {
		if s.Member != 0 && s.Cluster != rec.ClusterID {
			return c, fmt.Errorf("%s is of cluster %s, the record of %s: %w", s.URL, arbiter.FormatID(s.Cluster), arbiter.FormatID(rec.ClusterID), ErrMember)
		}
	}
	if local.Member != 0 && local.Cluster != rec.ClusterID {
		return c, fmt.Errorf("%s is of cluster %s, the record of %s: %w", local.Dir, arbiter.FormatID(local.Cluster), arbiter.FormatID(rec.ClusterID), ErrMember)
	}
	var err error
	if c.Member, c.Unseen, err = find(rec, sights, local, want); err != nil {
		return c, err
	}
	if by := learner(sights, c.Member.ID); by != "" {
		return c, fmt.Errorf("%s is a learner, says %s: it holds no vote, and perhaps not every write that its survivor acknowledged: %w", printName(c.Member), by, ErrMember)
	}
	for _, s := range sights {
		if s.Member == c.Member.ID && s.Commit > c.End.Index {
			c.End, c.EndIs = arbiter.Position{Index: s.Commit, Term: s.Term}, "the commit index that "+s.URL+" knows"
		}
	}
	if local.Member == c.Member.ID && local.Last.Index >= c.End.Index {
		c.End, c.EndIs = local.Last, "the end of the log in "+local.Dir
	}
	if rec.Pause {
		return c, ErrPaused
	}
	c.Ordered = failover.Ordered(rec, c.Member.ID)
	return c, nil
}

// learner is who says that the member is a learner: it itself, or, if it does not answer, a list, and no other list shows it
// as a voter. Empty: nobody.
func learner(sights []Sight, id uint64) (by string) {
	for _, s := range sights {
		if s.Member == id && s.Learner {
			return s.URL
		}
	}
	for _, s := range sights {
		if s.Member == id {
			return ""
		}
		for _, m := range s.Members {
			switch {
			case m.ID != id:
			case !m.Learner:
				return ""
			case by == "":
				by = s.URL
			}
		}
	}
	return by
}

func printName(m arbiter.Member) string {
	if m.Name == "" {
		return arbiter.FormatID(m.ID)
	}
	return fmt.Sprintf("%s (%s)", m.Name, arbiter.FormatID(m.ID))
}

// find resolves a name or an ID. What a member says of itself comes before what others say of it: after a return a site's
// member has a new ID, and an old list may not know it.
func find(rec arbiter.Record, sights []Sight, local Local, want string) (m arbiter.Member, unseen bool, err error) {
	own, told := map[uint64]string{}, map[uint64]string{}
	if local.Member != 0 {
		own[local.Member] = local.Name
	}
	for _, s := range sights {
		if s.Member != 0 {
			own[s.Member] = s.Name
		}
		for _, x := range s.Members {
			if told[x.ID] == "" {
				told[x.ID] = x.Name
			}
		}
	}
	for _, id := range []uint64{rec.WholeMembers[0], rec.WholeMembers[1], rec.Survivor.ID} {
		if id != 0 && told[id] == "" {
			told[id] = ""
		}
	}
	if told[rec.Survivor.ID] == "" && rec.Survivor.ID != 0 {
		told[rec.Survivor.ID] = rec.Survivor.Name
	}
	for _, known := range []map[uint64]string{own, told} {
		var ids []uint64
		for id, name := range known {
			if name == want && name != "" {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		switch {
		case len(ids) == 1:
			return arbiter.Member{ID: ids[0], Name: want}, false, nil
		case len(ids) > 1:
			return m, false, fmt.Errorf("%q names the members %s: %w", want, formatIDs(ids), ErrMember)
		}
	}
	digits := strings.TrimPrefix(want, "0x")
	id, perr := strconv.ParseUint(digits, 16, 64)
	if perr != nil || id == 0 {
		return m, false, fmt.Errorf("no member that can be seen is called %q: %w", want, ErrMember)
	}
	for _, known := range []map[uint64]string{own, told} {
		if name, ok := known[id]; ok {
			if name == "" {
				name = told[id]
			}
			return arbiter.Member{ID: id, Name: name}, false, nil
		}
	}
	if len(digits) != len(arbiter.FormatID(0)) {
		return m, false, fmt.Errorf("no member that can be seen is called %q or has this ID; one that cannot be seen needs all %d digits: %w", want, len(arbiter.FormatID(0)), ErrMember)
	}
	return arbiter.Member{ID: id}, true, nil
}

func formatIDs(ids []uint64) string {
	var s []string
	for _, id := range ids {
		s = append(s, arbiter.FormatID(id))
	}
	return strings.Join(s, ", ")
}

// Reference is how far the history that is overridden surely went: the survivor's confirmation, or the commit mark of a
// whole pair (P10, P15). Zero: the record does not say.
func (c Case) Reference() (index uint64, at int64, what string) {
	r := c.Record
	if r.Confirmed.Index != 0 {
		return r.Confirmed.Index, r.ConfirmedAt, "confirmed by the survivor"
	}
	if r.MarkGeneration == r.Generation && r.MarkIndex != 0 {
		return r.MarkIndex, r.WrittenAt, "the commit mark of the whole pair"
	}
	return 0, 0, ""
}

// GivenUp is how many entries of the log are given up at least: those that the record shows to be committed
// and the named member surely lacks. Not every entry is a write. known is false if either end is not known.
func (c Case) GivenUp() (entries uint64, known bool) {
	ref, _, _ := c.Reference()
	if ref == 0 || c.End.Index == 0 {
		return 0, false
	}
	return ref - min(ref, c.End.Index), true
}

// Alive says what shows that the other side may live: a member that answers, a leader that the named one follows, or a
// record that was written a short while ago, or will be by this clock. Nil: nothing does.
func (c Case) Alive(now time.Time) error {
	var errs []error
	for _, s := range c.Sights {
		switch {
		case s.Member == 0:
		case s.Member != c.Member.ID:
			errs = append(errs, fmt.Errorf("%s answers at %s", printName(arbiter.Member{ID: s.Member, Name: s.Name}), s.URL))
		case s.Leader != 0:
			errs = append(errs, fmt.Errorf("%s has a leader, %s", printName(c.Member), arbiter.FormatID(s.Leader)))
		}
	}
	if w := time.UnixMilli(c.Record.WrittenAt); c.Record.WrittenAt != 0 && now.Sub(w) < QuietFor {
		age := fmt.Sprintf("%v ago", now.Sub(w).Round(time.Second))
		if now.Before(w) {
			age = "at " + w.UTC().Format("2006-01-02 15:04:05Z") + ", by a clock ahead of this one"
		}
		errs = append(errs, fmt.Errorf("the record was written %s", age))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrAlive, errors.Join(errs...))
}

// Watch reads the record until it has stayed the same for this long by the own clock (P20). tell is called after each
// read with the time that is left. An arbiter that does not answer makes it longer, not shorter.
//
// Errors: ErrAlive (it was written), ctx's.
func (c Case) Watch(ctx context.Context, r arbiter.Register, quiet time.Duration, tell func(left time.Duration)) error {
	const every = time.Second
	left, last := quiet, time.Now()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, readLimit)
		_, v, err := r.Read(one)
		cancel()
		now := time.Now()
		if err == nil {
			if v != c.Version {
				return fmt.Errorf("%w: somebody wrote the record while it was watched", ErrAlive)
			}
			left -= now.Sub(last)
		}
		last = now
		tell(max(left, 0))
		if left <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// Order names the member in the record, if that is still what the case was considered with. A reply that is lost is
// looked for in the record (P1).
//
// Errors: ErrChanged, ErrUnknown, or of the arbiter's classes.
func (c Case) Order(ctx context.Context, r arbiter.Register, by string) (arbiter.Record, error) {
	ref, _, _ := c.Reference()
	over := fmt.Sprintf("forced by %s", by)
	if c.Record.Survivor.ID != 0 {
		over += fmt.Sprintf(" over %s of generation %d", printName(c.Record.Survivor), c.Record.Generation)
	}
	if ref != 0 {
		over += fmt.Sprintf(", index %d", ref)
	}
	next := failover.Force(c.Record, c.Member, by, over, failover.Stamp{Nonce: arbiter.NewNonce(), Now: time.Now().UnixMilli()})
	b, err := arbiter.Encode(next)
	if err != nil {
		return next, err
	}
	err = r.CompareAndSwap(ctx, c.Version, b)
	switch arbiter.Class(err) {
	case nil:
		return next, nil
	case arbiter.ErrConflict, arbiter.ErrUnknown:
	default:
		return next, err
	}
	for range 5 {
		data, _, rerr := r.Read(ctx)
		if rerr == nil {
			got, derr := arbiter.Decode(data)
			switch {
			case derr != nil:
				return next, fmt.Errorf("%w: %w", ErrChanged, derr)
			case got.ClaimNonce == next.ClaimNonce || carries(got, next):
				return next, nil
			case got.Generation > c.Record.Generation:
				return next, fmt.Errorf("%w: it names %s by now, %s", ErrChanged, printName(got.Survivor), got.Reason)
			case arbiter.Class(err) == arbiter.ErrConflict:
				return next, ErrChanged
			}
		}
		select {
		case <-ctx.Done():
			return next, fmt.Errorf("%w: %w", ErrUnknown, errors.Join(err, ctx.Err()))
		case <-time.After(500 * time.Millisecond):
		}
	}
	return next, fmt.Errorf("%w: %w", ErrUnknown, err)
}

// Progress is how far an order has come.
type Progress struct {
	Record  arbiter.Record
	Taken   bool // the agent has claimed, and operates
	Leads   bool // the member confirmed that it leads
	Another bool // somebody else was named since
	Void    bool // nobody carried it out, and the pair became whole under it: nothing was given up
}

// Look reads how far an order of this generation has come.
func Look(ctx context.Context, r arbiter.Register, order arbiter.Record) (Progress, error) {
	b, _, err := r.Read(ctx)
	if err != nil {
		return Progress{}, err
	}
	rec, err := arbiter.Decode(b)
	if err != nil {
		return Progress{}, err
	}
	p := Progress{Record: rec}
	switch {
	case rec.ClaimNonce == order.ClaimNonce:
		p.Void = rec.WholeGeneration == rec.Generation
	case !carries(rec, order):
		p.Another = true
	default:
		p.Taken, p.Leads = true, rec.Confirmed.Index != 0 || rec.WholeGeneration == rec.Generation
	}
	return p, nil
}

// carries says whether the claims that rec shows carry this order out: the newest entry of the history is the
// order's own, longer by now; or, of a removed member that claimed under a new ID, the one after it, which nobody ordered.
func carries(rec, order arbiter.Record) bool {
	n := rec.HistoryCount()
	if n == 0 || rec.Generation <= order.Generation || rec.Fork.Index == 0 {
		return false
	}
	is := func(h arbiter.HistoryEntry) bool {
		return h.Forced && h.First <= order.Generation && order.Generation <= h.Last && h.Survivor == order.Survivor.ID
	}
	last := rec.History[n-1]
	if is(last) {
		return last.Last > order.Generation
	}
	return n > 1 && is(rec.History[n-2]) && last.Forced && last.By == "" && last.First == order.Generation+1
}
