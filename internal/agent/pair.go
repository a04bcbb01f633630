package agent

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

// pairOf returns the two members of a list that is a pair: two voters, and no
// other member.
func pairOf(ms []*pb.Member) (pair [2]uint64, ok bool) {
	if len(ms) != 2 || ms[0].IsLearner || ms[1].IsLearner {
		return pair, false
	}
	return [2]uint64{min(ms[0].ID, ms[1].ID), max(ms[0].ID, ms[1].ID)}, true
}
