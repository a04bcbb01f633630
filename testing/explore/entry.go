package explore

// Kind is what a log entry does.
type Kind uint8

// The kinds of entries.
const (
	Empty Kind = iota // of a new leader, or of a claim that has nobody to remove
	Write             // a client's
	Add               // a voter, by a user
	AddLearner
	Promote
	Remove
	TokenWrite // a transaction on the token's key
)

// Entry is one entry of a log. UID tells apart entries that index and term do not.
type Entry struct {
	Kind Kind
	Term uint32
	UID  uint32
	ID   uint64 // Add, AddLearner, Promote, Remove
	Site uint8  // Add, AddLearner: whose peer URL
	// TokenWrite. Prev is the UID of the token that the transaction compares with.
	Tok   Token
	Prev  uint32
	Blind bool // the transaction compares nothing (a rule is off)
}

func (e Entry) conf() bool { return e.Kind >= Add && e.Kind <= Remove }

func (e Entry) boring() bool { return e.Kind == Empty || e.Kind == Write }

// Token is the pair token in a member's key space; UID is its mod revision.
type Token struct {
	UID     uint32
	Gen     uint64
	Pair    [2]uint64
	Term    uint32 // of the list that it was written under
	Entry   uint32 // the term of its entry; zero once that left the log
	Present bool
}

// Peer is a member of a configuration.
type Peer struct {
	ID      uint64
	Site    uint8
	Learner bool
}

const maxPeers = 5

// Conf is a configuration with what etcd keeps beside it.
type Conf struct {
	N     uint8
	Peers [maxPeers]Peer
	Gone  [4]uint64 // removed IDs, newest first
}

func (c *Conf) find(id uint64) *Peer {
	for i := range c.Peers[:c.N] {
		if c.Peers[i].ID == id {
			return &c.Peers[i]
		}
	}
	return nil
}

func (c *Conf) voter(id uint64) bool { p := c.find(id); return p != nil && !p.Learner }

func (c *Conf) voters() (n int) {
	for _, p := range c.Peers[:c.N] {
		if !p.Learner {
			n++
		}
	}
	return n
}

func (c *Conf) gone(id uint64) bool {
	for _, g := range c.Gone {
		if g == id && id != 0 {
			return true
		}
	}
	return false
}

// apply changes the configuration as etcd's membership does: what it rejects changes nothing.
func (c *Conf) apply(e Entry) {
	p := c.find(e.ID)
	switch e.Kind {
	case Add, AddLearner:
		if p != nil || c.gone(e.ID) || c.N == maxPeers {
			return
		}
		for _, q := range c.Peers[:c.N] {
			if q.Site == e.Site {
				return // the peer URL exists
			}
		}
		c.Peers[c.N] = Peer{ID: e.ID, Site: e.Site, Learner: e.Kind == AddLearner}
		c.N++
	case Promote:
		if p != nil {
			p.Learner = false
		}
	case Remove:
		if p == nil {
			return
		}
		for i := range c.Peers[:c.N] {
			if c.Peers[i].ID == e.ID {
				copy(c.Peers[i:], c.Peers[i+1:])
				c.N--
				c.Peers[c.N] = Peer{}
				break
			}
		}
		copy(c.Gone[1:], c.Gone[:])
		c.Gone[0] = e.ID
	}
}

// Base is what the entries before the first one of every log did.
type Base struct {
	Conf Conf
	Tok  Token
}
