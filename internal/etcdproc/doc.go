// Package etcdproc finds, stops, starts and supervises the etcd of one data directory.
//
// Two modes behind one interface, [Etcd]:
//
//   - signal (the mode of record): etcd is somebody else's process (kubelet, systemd, Talos). It is
//     found, signalled and watched, never started. Whoever runs it restarts it. Needs a shared or
//     the host's PID namespace, and etcd's user or CAP_SYS_PTRACE.
//   - supervise: etcd is a child of the agent (`twok agent … -- etcd …flags…`).
//
// How etcd is found: a process that has the inode of member/snap/db, or of a WAL segment, open for
// writing (/proc/PID/fd, /proc/PID/fdinfo). That holds across mount namespaces, for an etcd that
// waits for the flock, and needs no knowledge of names or command lines. WAL segments count
// because an online defrag closes the database for a moment. Readers (tar, cp) are not matched. Never
// matched: this process and every process of the same executable, which covers its children
// between fork and exec (they have a copy of the lock's descriptor) and other twok commands.
//
// States in supervise mode (one goroutine, Run, starts processes; all under one mutex):
//
//	held      Stop was called, or MayStart said no. Nothing runs, nothing is started. Start, Restart → due.
//	due       Something is to be started when the backoff is over. An etcd that already runs on the
//	          data directory (an orphan of a killed agent) is adopted instead.
//	running   A child or an adopted process. Its end → due, with backoff unless it was asked for.
//
// Invariants:
//
//  1. Stop returns nil only when every etcd of the data directory that was there at the call is
//     gone: all threads ended, files closed, locks free, ports closed (F15). A child is also reaped: no
//     zombie is left. An adopted process is reaped by its own parent.
//  2. After Stop nothing is started in supervise mode until Start or Restart, whatever Stop returned.
//  3. A process is signalled through a pidfd that was checked against its start time: never a
//     successor with the same number.
//  4. A stopped (SIGSTOP) or hung etcd delays Stop by the grace, then gets SIGKILL (F13). Nothing here asks etcd.
//  5. The end of Run's context stops etcd in supervise mode and leaves it alone in signal mode. No
//     membership is touched (F4).
//  6. Restarts are never given up; the backoff is capped (F18). Exit codes decide nothing.
//  7. A child has its own process group: a Ctrl-C at the terminal reaches the agent alone, which
//     decides. It has no parent-death signal: an agent that is killed leaves etcd running (F19), and the next
//     one adopts it. Its output should be a file or a terminal: a pipe into the agent breaks with it, and
//     etcd dies of SIGPIPE at its next log line.
//
// Linux 5.3 or later (pidfd_open).
package etcdproc
