package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/member"
)

// MemoryName is the file beside the member directory that keeps what an agent
// remembers. Losing it changes no role (F9).
const MemoryName = "twok-memory.json"

// memory is what outlives the agent's process: its own last claim (P16), the
// highest generation read of each record (P17), and addresses, which a crash-looping
// etcd cannot be asked for.
type memory struct {
	mu   sync.Mutex
	path string
	d    memoryFile
	due  bool // the file is behind d: its last write failed
}

type memoryFile struct {
	Own  ownFile           `json:"own_claim"`
	Seen map[string]uint64 `json:"generations_seen"`
	Site siteInfo          `json:"site"`

	Probed   string `json:"arbiter_probed,omitempty"` // the arbiter whose store last passed its probe
	ProbedAs uint64 `json:"probed_as,omitempty"`      // the member ID that named the scratch register then
}

type ownFile struct {
	RecordID   string           `json:"record_id,omitempty"`
	Generation uint64           `json:"generation,omitempty"`
	Nonces     []string         `json:"claim_nonces,omitempty"`
	End        arbiter.Position `json:"log_end"`
	Fork       arbiter.Position `json:"fork"`
}

// siteInfo is how this member and its neighbour are reached.
type siteInfo struct {
	MemberID uint64           `json:"member_id,omitempty"` // for when the WAL cannot say it any more
	Name     string           `json:"name,omitempty"`
	PeerURLs []string         `json:"peer_urls,omitempty"`
	Other    []etcdapi.Member `json:"other,omitempty"`
	Version  uint32           `json:"etcd_version,omitempty"`
}

// loadMemory reads the file. One that cannot be understood is set aside: it is
// no reason to keep an agent from running, and no role depends on it.
func loadMemory(dataDir string) (m *memory, warn error, err error) {
	m = &memory{path: filepath.Join(dataDir, MemoryName)}
	m.d.Seen = map[string]uint64{}
	b, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the agent's memory: %w", err)
	}
	var d memoryFile
	if uerr := json.Unmarshal(b, &d); uerr != nil {
		aside := m.path + ".unreadable"
		if err := os.Rename(m.path, aside); err != nil {
			return nil, nil, fmt.Errorf("the agent's memory %s is unreadable (%v) and cannot be set aside: %w", m.path, uerr, err)
		}
		return m, fmt.Errorf("the agent's memory was unreadable (%w), it is kept as %s", uerr, aside), nil
	}
	if d.Seen == nil {
		d.Seen = map[string]uint64{}
	}
	m.d = d
	return m, nil, nil
}

// own is the stored claim, as the core knows it.
func (m *memory) own() failover.Own {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := failover.Own{RecordID: m.d.Own.RecordID, Generation: m.d.Own.Generation, End: m.d.Own.End, Fork: m.d.Own.Fork}
	copy(o.Nonces[:], m.d.Own.Nonces)
	return o
}

// setOwn stores a claim, durably, before its swap is sent (P16).
func (m *memory) setOwn(o failover.Own) error {
	return m.change(func(d *memoryFile) bool {
		d.Own = ownFile{RecordID: o.RecordID, Generation: o.Generation, End: o.End, Fork: o.Fork}
		for _, n := range o.Nonces {
			if n != "" {
				d.Own.Nonces = append(d.Own.Nonces, n)
			}
		}
		return true
	})
}

// seen is what see has noted. The map is not changed any more.
func (m *memory) seen() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.d.Seen
}

// see returns the highest generation read before for this record, and notes this one (P17). What could not be written is
// written with the next read.
func (m *memory) see(recordID string, generation uint64) (before uint64, err error) {
	err = m.change(func(d *memoryFile) bool {
		before = d.Seen[recordID]
		if generation <= before {
			return m.due
		}
		seen := make(map[string]uint64, len(d.Seen)+1)
		for k, v := range d.Seen {
			seen[k] = v
		}
		seen[recordID] = generation
		d.Seen = seen
		return true
	})
	return before, err
}

func (m *memory) site() siteInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.d.Site
}

func (m *memory) setSite(f func(*siteInfo) bool) error {
	return m.change(func(d *memoryFile) bool { return f(&d.Site) })
}

// probed is the arbiter whose store last passed.
func (m *memory) probed() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.d.Probed
}

// setProbed notes that the arbiter's store passed, with a scratch register named after that member; an
// empty arbiter, that it failed.
func (m *memory) setProbed(arbiter string, as uint64) error {
	return m.change(func(d *memoryFile) bool {
		changed := d.Probed != arbiter || as != 0 && d.ProbedAs != as
		d.Probed = arbiter
		if as != 0 {
			d.ProbedAs = as
		}
		return changed
	})
}

// probeAs is the member ID that names the scratch register: the one under which a store passed before. A member that
// returns has a new ID, and a store that permits names one by one knows the old one.
func (m *memory) probeAs(member uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.d.ProbedAs != 0 {
		return m.d.ProbedAs
	}
	return member
}

// change writes the file if f says that something changed. After an error the
// value in memory is the new one all the same; only its durability is not given.
func (m *memory) change(f func(*memoryFile) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !f(&m.d) || m.path == "" { // borrowed
		return nil
	}
	b, err := json.MarshalIndent(m.d, "", "  ")
	if err != nil {
		return fmt.Errorf("the agent's memory: %w", err)
	}
	m.due = true
	if err := writeDurably(m.path, append(b, '\n')); err != nil {
		return fmt.Errorf("the agent's memory: %w", err)
	}
	m.due = false
	return nil
}

// writeDurably replaces a file: written beside it, synced, renamed, the directory synced.
func writeDurably(path string, b []byte) (err error) {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, member.GiveToOwner(f), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Identity is what the agent of this data directory last knew of its own member: its name and ID, empty and zero
// if it never ran. It reads the memory file and changes nothing.
func Identity(dataDir string) (name string, id uint64, err error) {
	b, err := os.ReadFile(filepath.Join(dataDir, MemoryName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("the agent's memory: %w", err)
	}
	var d memoryFile
	if err := json.Unmarshal(b, &d); err != nil {
		return "", 0, fmt.Errorf("the agent's memory %s: %w", filepath.Join(dataDir, MemoryName), err)
	}
	return d.Site.Name, d.Site.MemberID, nil
}
