package failover

// UnsureVote says whether the Raft below another member's etcd perhaps does not count self, a voter in every member
// list, as one: a learner whose peer URLs were changed before it was promoted. changes are those of the log up to
// the applied index, oldest first.
//
// At a restart etcd 3.6 makes Raft's configuration anew from the log, from its last snapshot on. There the change of URLs
// writes what the database says now, a voter, into the data by which the changes are judged, and the
// promotion is rejected as one of no learner (server/etcdserver/api/membership, UpdateRaftAttributes; 3.5 keeps
// such data of its own, 3.7 starts from the database). Before 3.6.12, and in 3.5 before the same mending (etcd #21694), the
// change itself made a voter of the learner in the database, and never in Raft. Either way the other member of a
// pair leads alone, without any claim, and goes on when the link is cut: on real etcd TestVoteThatARestartForgets.
//
// A change that came before the log's beginning is not seen.
func UnsureVote(self uint64, changes []PlacedChange) (unsure bool) {
	is, moved := unheard, false
	for _, c := range changes {
		if c.ID != self {
			continue
		}
		switch c.Kind {
		case ChangeAddLearner:
			if is == unheard {
				is = learning
			}
		case ChangeAdd:
			is = voting
		case ChangeUpdate:
			unsure = unsure || is == learning
			moved = is == unheard // and so it stays while this is asked for
		case ChangePromote:
			unsure = unsure || (moved && is == unheard) // its addition has left the log
			is = voting
		}
	}
	return unsure
}
