package trace

import (
	"errors"

	"twok/arbiter"
	"twok/internal/failover"
)

// start begins an agent, with the memory that it finds. That may be lost, all of it (F9).
func (c *cand) start(f *facts, l *Line) (n need) {
	i := l.Site
	own, s := l.Start.Own, &c.w.Sites[i]
	read := s.Out[0] != nil && s.Out[0].Kind == failover.ReadRecord
	seen := l.Start.Seen[f.record]
	switch {
	case own == (failover.Own{}) && seen == 0:
		s.Own, s.Seen = own, 0
	case own.Generation != s.Own.Generation || f.pos(own.End) != s.Own.End || f.pos(own.Fork) != s.Own.Fork || !c.claim(own.Nonces[0], s.Own.Nonces[0]):
		n.say("it remembers another claim than the model: generation %d, not %d", own.Generation, s.Own.Generation)
	case seen == s.Seen:
	case read && seen > s.Seen && seen <= c.w.Rec.Generation: // the reply to the last read was never told
		s.Seen = seen
	default:
		n.say("it remembers the generation %d, the model %d", seen, s.Seen)
	}
	c.w.Begin(i, l.Start.Params)
	c.last[i] = failover.Obs{}
	if l.Start.ByHand {
		s.S.Phase, s.S.Site, s.Out[1] = failover.Stopping, failover.Stop, &failover.Action{Kind: failover.Stop}
	}
	return n
}

// edit is a person's change of the register. What cannot be read is a version without a record.
func (c *cand) edit(f *facts, l *Line) (n need) {
	w := &c.w
	c.regs[len(c.regs)-1].until = l.Edit.Until
	next := reg{rec: &arbiter.Record{}, status: failover.Readable, until: forever}
	if l.Edit.Version != "" {
		rec, err := arbiter.Decode(l.Edit.Value)
		switch {
		case err == nil:
			r := f.rec(rec)
			if r.ClaimNonce = c.modelClaim(rec.ClaimNonce); r.ClaimNonce == "" && rec.ClaimNonce != "" {
				r.ClaimNonce = w.Stamp().Nonce
				c.claims = append(c.claims, pair[string, string]{rec.ClaimNonce, r.ClaimNonce})
			}
			next.rec = &r
		case errors.Is(err, arbiter.ErrEmpty), errors.Is(err, arbiter.ErrWhitespace):
			next.status = failover.Empty
		case errors.Is(err, arbiter.ErrForeign):
			next.status = failover.Foreign
		case errors.Is(err, arbiter.ErrFuture):
			next.status = failover.Future
		default:
			next.status = failover.Garbage
		}
		for _, v := range c.vers {
			if v.real == l.Edit.Version { // what was there before, restored
				next.ver = v.model
			}
		}
		if next.ver == 0 {
			w.Vers++
			next.ver = w.Vers
			c.vers = append(c.vers, pair[string, uint32]{l.Edit.Version, next.ver})
		}
	}
	w.Ver, w.Rec = next.ver, *next.rec
	c.regs = append(c.regs, next)
	return n
}

func (c *cand) modelClaim(real string) string {
	for _, v := range c.claims {
		if v.real == real {
			return v.model
		}
	}
	return ""
}
