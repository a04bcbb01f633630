package walsurgery

import (
	"fmt"
	"hash/crc32"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
)

func parseMetadata(raw []byte) (Metadata, error) {
	var m etcdserverpb.Metadata
	if err := proto.Unmarshal(raw, &m); err != nil {
		return Metadata{}, unexpected("metadata do not decode: %v", err)
	}
	if m.GetNodeID() == 0 {
		return Metadata{}, unexpected("metadata name no member")
	}
	return Metadata{MemberID: m.GetNodeID(), ClusterID: m.GetClusterID()}, nil
}

// parseEntry reads the head of a raftpb.Entry as protobuf does.
func parseEntry(b []byte) (entryRef, error) {
	var e entryRef
	var typ uint64
	var data []byte
	for len(b) > 0 {
		num, wt, n := protowire.ConsumeTag(b)
		if n < 0 {
			return e, protowire.ParseError(n)
		}
		b = b[n:]
		if wt == protowire.VarintType && num >= 1 && num <= 3 {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return e, protowire.ParseError(n)
			}
			switch num {
			case 1:
				typ = v
			case 2:
				e.term = v
			case 3:
				e.index = v
			}
			b = b[n:]
			continue
		}
		n = protowire.ConsumeFieldValue(num, wt, b)
		if n < 0 {
			return e, protowire.ParseError(n)
		}
		if num == 4 && wt == protowire.BytesType {
			data, _ = protowire.ConsumeBytes(b)
		}
		b = b[n:]
	}
	switch typ {
	case uint64(raftpb.EntryNormal):
		e.kind = KindNormal
	case uint64(raftpb.EntryConfChange):
		e.kind = KindConfChange
		if _, err := parseChange(data); err != nil {
			e.kind = KindOther
		}
	default:
		e.kind = KindOther
	}
	return e, nil
}

// parseChange decodes a V1 change.
func parseChange(b []byte) (Change, error) {
	var cc raftpb.ConfChange
	if err := proto.Unmarshal(b, &cc); err != nil {
		return Change{}, unexpected("membership change does not decode: %v", err)
	}
	if t := cc.GetType(); t < raftpb.ConfChangeAddNode || t > raftpb.ConfChangeAddLearnerNode {
		return Change{}, unexpected("membership change of unknown type %d", t)
	}
	c := Change{Type: ChangeType(cc.GetType()), NodeID: cc.GetNodeId()}
	if len(cc.Context) > 0 {
		c.Context = slices.Clone(cc.Context)
	}
	return c, nil
}

// load reads e's data again and verifies them by the CRC on both sides of it.
func (s *scan) load(e entryRef) Entry {
	out := Entry{Index: e.index, Term: e.term, Kind: KindOther}
	b := make([]byte, e.n)
	if _, err := s.segs[e.seg].f.ReadAt(b, e.off); err != nil {
		out.Err = fmt.Errorf("read entry %d again: %w", e.index, err)
		return out
	}
	if crc32.Update(e.before, castagnoli, b) != e.after {
		out.Err = corrupt("read entry %d again: %s changed meanwhile", e.index, s.segs[e.seg].name)
		return out
	}
	var pb raftpb.Entry
	if err := proto.Unmarshal(b, &pb); err != nil {
		out.Err = unexpected("entry %d does not decode: %v", e.index, err)
		return out
	}
	switch e.kind {
	case KindNormal:
		out.Kind, out.Data = KindNormal, pb.Data
	case KindConfChange:
		c, err := parseChange(pb.Data)
		if err != nil {
			out.Data, out.Err = pb.Data, fmt.Errorf("entry %d: %w", e.index, err)
			return out
		}
		out.Kind, out.Change = KindConfChange, c
	default:
		out.Data, out.Err = pb.Data, unexpected("entry %d is of type %s or holds a change that does not decode", e.index, pb.GetType())
	}
	return out
}
