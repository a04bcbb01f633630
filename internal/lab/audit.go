package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// AuditMember is one member as the audit reaches it: by its real ports.
type AuditMember struct {
	Name, ClientURL, PeerURL string
	TLS                      *TLS // nil: plain text
}

// AuditMembers are both sites of the cluster.
func (c *Cluster) AuditMembers() []AuditMember {
	var m []AuditMember
	for _, name := range Sites {
		s := c.sites[name]
		m = append(m, AuditMember{Name: name, ClientURL: s.ClientURL, PeerURL: s.PeerURL, TLS: c.cfg.TLS})
	}
	return m
}

// AuditReport is what an audit found. OK says whether it is as it must be.
type AuditReport struct {
	Acked   int64 `json:"acked"`   // acknowledged writes that were looked for
	Unknown int64 `json:"unknown"` // writes without an answer, which may be there or not
	// Lost keys were acknowledged and are not there, Altered ones have another
	// value or revision than was acknowledged, Foreign ones nobody wrote. Each as
	// "member key", or "linearizable key". At most 100 are named; Findings counts all.
	Lost    []string `json:"lost"`
	Altered []string `json:"altered"`
	Foreign []string `json:"foreign"`

	LostKeys int64 `json:"lost_keys"` // distinct keys lost or altered at any member
	Findings int64 `json:"findings"`  // lost, altered and foreign, all members

	Revision    int64             `json:"revision"` // at which the hashes were taken
	Hashes      map[string]uint32 `json:"hashes"`   // by member
	HashesEqual bool              `json:"hashes_equal"`
	// Membership is empty if the members' lists are the two voters and nothing
	// else; otherwise it says what is wrong.
	Membership string `json:"membership"`
}

// OK: nothing lost, altered or foreign, equal hashes, two voters.
func (r AuditReport) OK() bool {
	return r.Findings == 0 && r.HashesEqual && r.Membership == ""
}

// String is one line.
func (r AuditReport) String() string {
	s := fmt.Sprintf("%d acknowledged, %d unknown, %d lost, hashes equal %t", r.Acked, r.Unknown, r.LostKeys, r.HashesEqual)
	if r.Membership != "" {
		s += ", " + r.Membership
	}
	for _, l := range [][]string{r.Lost, r.Altered, r.Foreign} {
		for i, k := range l {
			if i == 3 {
				s += ", ..."
				break
			}
			s += ", " + k
		}
	}
	return s
}

const namedKeys = 100

// Audit checks what the writer knows at this moment: every acknowledged write is
// there, with its value and its revision, in a linearizable read at the first
// member and on each member by its own data (serializable reads, once it holds
// the revision of the linearizable one: what that saw, each must have); the key
// spaces hash equally at that revision; and the cluster is exactly two voters. The writer may go on writing.
// An error means that it was not checked: retry or count it as a failure; Acked and
// Unknown are right then, too.
func Audit(ctx context.Context, w *Writer, members []AuditMember) (AuditReport, error) {
	r := AuditReport{Hashes: map[string]uint32{}}
	log := w.outcomes()
	var newest int64
	for _, l := range log {
		for _, rev := range l {
			if rev > 0 {
				r.Acked++
				newest = max(newest, rev)
			} else {
				r.Unknown++
			}
		}
	}
	bad := map[string]bool{}
	var lists []string
	for i, m := range members {
		cfg, err := m.TLS.Client()
		if err != nil {
			return r, fmt.Errorf("audit: client of %s: %w", m.Name, err)
		}
		cl, err := dialEtcd(m.ClientURL, cfg)
		if err != nil {
			return r, fmt.Errorf("audit: client of %s: %w", m.Name, err)
		}
		defer cl.Close()
		if i == 0 {
			if err := r.scan(ctx, cl, w, log, "linearizable", newest, bad); err != nil {
				return r, fmt.Errorf("audit at %s: %w", m.Name, err)
			}
		}
		if err := r.scan(ctx, cl, w, log, m.Name, max(newest, r.Revision), bad, clientv3.WithSerializable()); err != nil {
			return r, fmt.Errorf("audit at %s: %w", m.Name, err)
		}
		list, problem, err := memberList(ctx, cl)
		if err != nil {
			return r, fmt.Errorf("audit at %s: member list: %w", m.Name, err)
		}
		if problem != "" {
			r.Membership = m.Name + " says: " + problem
		}
		lists = append(lists, list)
	}
	r.LostKeys = int64(len(bad))
	if len(slices.Compact(slices.Clone(lists))) > 1 {
		r.Membership = "the members' lists differ: " + strings.Join(lists, " | ")
	}
	return r, r.compareHashes(ctx, members)
}

// scan reads every key of the writer in pages at one revision, which is least or later.
func (r *AuditReport) scan(ctx context.Context, cl *clientv3.Client, w *Writer, log [][]int64, where string, least int64, bad map[string]bool, opts ...clientv3.OpOption) error {
	seen := make([][]bool, len(log))
	for i, l := range log {
		seen[i] = make([]bool, len(l))
	}
	end := clientv3.GetPrefixRangeEnd(w.cfg.Prefix)
	var at int64 // the revision of all pages: that of the first one
	for from := w.cfg.Prefix; ; {
		resp, err := cl.Get(ctx, from, append([]clientv3.OpOption{
			clientv3.WithRange(end), clientv3.WithLimit(2000), clientv3.WithRev(at)}, opts...)...)
		if err != nil {
			return fmt.Errorf("read the keys: %w", err)
		}
		if at == 0 {
			if at = resp.Header.Revision; len(opts) == 0 {
				r.Revision = at
			}
			if at < least {
				at = 0 // this member is behind: its own data do not count yet
				select {
				case <-ctx.Done():
					return fmt.Errorf("wait for revision %d, which was acknowledged or read (it is at %d): %w", least, resp.Header.Revision, ctx.Err())
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
		}
		for _, kv := range resp.Kvs {
			key := string(kv.Key)
			client, seq, ok := w.parse(key)
			if !ok || client >= len(log) {
				r.find(&r.Foreign, where+" "+key)
				continue
			}
			if seq >= len(log[client]) {
				if w.wrote(client, seq) {
					continue // since this audit began
				}
				r.find(&r.Foreign, where+" "+key)
				continue
			}
			seen[client][seq] = true
			want := log[client][seq]
			if string(kv.Value) != value(key, w.cfg.Size) || kv.Version != 1 || want != 0 && kv.ModRevision != want {
				r.find(&r.Altered, where+" "+key)
				bad[key] = true
			}
		}
		if !resp.More {
			break
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	for client, l := range log {
		for seq, rev := range l {
			if rev != 0 && !seen[client][seq] {
				key := w.key(client, seq)
				r.find(&r.Lost, where+" "+key)
				bad[key] = true
			}
		}
	}
	return nil
}

func (r *AuditReport) find(list *[]string, what string) {
	r.Findings++
	if len(*list) < namedKeys {
		*list = append(*list, what)
	}
}

func (w *Writer) wrote(client, seq int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return seq < len(w.log[client])
}

// memberList is the member's list in one line, and what is wrong with it.
func memberList(ctx context.Context, cl *clientv3.Client) (list, problem string, err error) {
	resp, err := cl.MemberList(ctx)
	if err != nil {
		return "", "", err
	}
	var out []string
	voters := 0
	for _, m := range resp.Members {
		kind := "voter"
		if m.IsLearner {
			kind = "learner"
		} else {
			voters++
		}
		out = append(out, fmt.Sprintf("%x %q %s", m.ID, m.Name, kind))
	}
	slices.Sort(out)
	list = strings.Join(out, ", ")
	if voters != 2 || len(out) != 2 {
		problem = "not two voters but " + list
	}
	return list, problem, nil
}

// compareHashes takes the key-space hashes of all members at one revision.
func (r *AuditReport) compareHashes(ctx context.Context, members []AuditMember) error {
	for {
		err := r.hashesOnce(ctx, members)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit: compare hashes at revision %d: %w: %w", r.Revision, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (r *AuditReport) hashesOnce(ctx context.Context, members []AuditMember) error {
	var compact []int64
	hashes := map[string]uint32{}
	for _, m := range members {
		h, c, err := m.HashKV(ctx, r.Revision)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		hashes[m.Name] = h
		compact = append(compact, c)
	}
	if slices.Min(compact) != slices.Max(compact) {
		return fmt.Errorf("the members compacted at different revisions: %v", compact)
	}
	r.Hashes, r.HashesEqual = hashes, true
	for _, h := range hashes {
		r.HashesEqual = r.HashesEqual && h == hashes[members[0].Name]
	}
	return nil
}

// HashKV asks a member's peer port for the hash of its key space up to revision
// (0: its newest) and for its compact revision. Learners and members without a
// leader answer as well. A revision that the member does not have yet is an error.
func HashKV(ctx context.Context, peerURL string, revision int64) (hash uint32, compactRevision int64, err error) {
	return hashKV(ctx, nil, peerURL, revision)
}

// HashKV is HashKV of this member, over TLS if it has it.
func (m AuditMember) HashKV(ctx context.Context, revision int64) (hash uint32, compactRevision int64, err error) {
	cfg, err := m.TLS.Client()
	if err != nil {
		return 0, 0, err
	}
	return hashKV(ctx, cfg, m.PeerURL, revision)
}

func hashKV(ctx context.Context, cfg *tls.Config, peerURL string, revision int64) (hash uint32, compactRevision int64, err error) {
	client := http.DefaultClient
	if cfg != nil {
		client = &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body := fmt.Sprintf(`{"revision":%d}`, revision)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peerURL+"/members/hashkv", strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("hash of %s at revision %d: %s: %s", peerURL, revision, resp.Status, strings.TrimSpace(string(data)))
	}
	var v struct {
		Hash            *uint32 `json:"hash"`
		CompactRevision int64   `json:"compact_revision"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return 0, 0, fmt.Errorf("hash of %s at revision %d: %w", peerURL, revision, err)
	}
	if v.Hash == nil {
		return 0, 0, fmt.Errorf("hash of %s at revision %d: no hash in %q", peerURL, revision, data)
	}
	return *v.Hash, v.CompactRevision, nil
}
