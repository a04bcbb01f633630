package preflight

import (
	"time"

	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/probe"
)

// Facts are what the checks judge. An error says that the fact beside it could not be seen.
type Facts struct {
	Now     time.Time
	Running bool // an agent asks about itself; else it is asked once, before there need be one

	Settings Settings
	Dir      Dir
	Locks    Locks
	Trial    Trial
	Space    Space
	Process  Process
	Etcd     Etcd
	Other    []Other // the other voters
	Client   Certificates
	Peer     Certificates
	Arbiter  Arbiter
	Health   Health
}

// Settings are the agent's, after its defaults.
type Settings struct {
	DataDir, ClientURL, PeerURL string
	ClaimAfter                  time.Duration
	Election                    time.Duration // as the agent reckons with it
	HealthListen                string        // empty: none
}

// Dir is the data directory.
type Dir struct {
	Err    error // of stat; fs.ErrNotExist: it is not there
	IsDir  bool
	Owner  int // user ID
	User   int // this process's
	Write  error
	Memory error // the agent's memory beside the data is there and cannot be read
}

// Locks are the files that etcd locks, looked at and not locked.
type Locks struct {
	Seen    bool
	DB      error // member/snap/db cannot be opened for reading, or is no regular file; fs.ErrNotExist: etcd never ran
	Trial   error // flock and the locks of the WAL, tried on a scratch file beside them
	WAL     error // of the look at the WAL's lock
	WALHeld bool  // somebody has the WAL's lock
}

// Trial is what was tried in scratch directories.
type Trial struct {
	FileSystem string // empty: nothing was tried
	Exchange   error  // RENAME_EXCHANGE beside wal and beside member
	Overlay    bool   // directories may come from a lower layer, which no trial beside them shows
	Mount      string // of member and member/wal, the one that is a mount point or on another mount; else empty
	Link       string // of the two, the one that is a symbolic link; else empty
}

// Space is the space on the data volume.
type Space struct {
	Free, Need uint64
	Err        error // walsurgery.CheckSpace's own: it refuses
}

// Process is etcd's process, what it was told and its program.
type Process struct {
	etcdproc.Process
	Signal     error // of signal 0 to a running one
	Flags      etcdproc.Flags
	FlagsErr   error
	Version    string
	VersionErr error
	StaleReads bool // this version can serve stale reads (F26)

	// Told is what the command that the agent would start says, and why it cannot be told or started; nil in signal mode.
	Told    *etcdproc.Flags
	ToldErr error
}

// Etcd is the local etcd as it answers.
type Etcd struct {
	Err      error // of the linearizable member list through the own client port
	Cluster  uint64
	Member   uint64
	Data     uint64 // the member whose WAL the data directory holds; 0: not known
	Leader   uint64
	Voters   []string // names or IDs
	Learners []string
	Listed   bool // this member is one of the voters
	Alarm    bool // NOSPACE
	Peer     error
	Token    error // the token's key could not be read
	HasToken bool  // it holds something
}

// Other is another voter.
type Other struct {
	Name         string
	Peer, Client error  // of a look at its peer port and its client port
	Version      string // empty: not known
	Self         bool   // its client URL leads to this member
}

// Certificates are those of one kind of port: the agent's own, and what the ports serve.
type Certificates struct {
	TLS    bool // of the local port
	Own    *Certificate
	Served []Certificate
}

// Certificate is one, or why it was not seen.
type Certificate struct {
	What      string // a file, or the URL of a port
	Local     bool   // the own member's
	Err       error  // it could not be seen
	Invalid   error  // it was seen, and the agent would refuse it for other reasons than its time
	NotBefore time.Time
	NotAfter  time.Time
}

// Arbiter is the store and the record.
type Arbiter struct {
	Probed     bool // the probe came to an end
	ProbeErr   error
	Report     probe.Report
	Circular   error // of the question; nil: it does not stand on the pair
	IsCircular bool
	Asked      bool   // the question was asked
	SharedHost string // whose host the store is on; empty: nobody's

	Status   failover.RecordStatus
	ReadErr  error
	Record   string // its ID
	Cluster  uint64 // as the record says
	Gen      uint64
	Written  time.Time
	Reason   failover.Reason // why not armed
	Armed    bool
	Alone    bool // leads alone as the survivor
	Assessed bool // Reason and Armed are known
}

// Health is the health endpoint's address.
type Health struct {
	Err error
	Own bool // taken by this member's agent
}
