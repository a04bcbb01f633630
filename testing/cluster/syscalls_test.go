package cluster

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What strace saw is read as it is: own files are counted by who synced them, of an interrupted call the beginning alone, and a sync of everything, or of somebody
// else's file, is an error.
//
// Rules: F14.
func TestSynced(t *testing.T) {
	c := &Cluster{Options: Options{Dir: t.TempDir(), Twok: "/somewhere/twok"}}
	dir := filepath.Join(c.Options.Dir, "strace")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "DIR", c.Options.Dir)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("etcd.12", "12   fdatasync(9<DIR/a/data/member/snap/db> <unfinished ...>\n14 fsync(3<DIR/a/data>) = 0\n12   <... fdatasync resumed>) = 0\n13 +++ exited with 0 +++\n")
	write("twok.7", "7 fsync(3<DIR/b/data/twok-memory.json.tmp>) = 0\n")
	write("twok.sh", "sync()\n") // no log
	want := map[Sync]int{{false, "a", "data/member/snap/db"}: 1, {false, "a", "data"}: 1, {true, "b", "data/twok-memory.json.tmp"}: 1}
	if got, err := c.Synced(); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, line := range []string{"7 sync() = 0", "7 syncfs(3<DIR/a/data>) = 0", "7 fsync(3</etc/passwd>) = 0", "7 fsync(3) = 0", "7 fdatasync(3<DIRx/a/data>) = 0"} {
		write("twok.8", line+"\n")
		if got, err := c.Synced(); err == nil {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// The kinds of tokens, and that each pair has JWT keys of its own, which etcd alone can read.
//
// Rules: F25.
func TestTokens(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		flags, err := tokens(dir, "jwt")
		if err != nil || !strings.Contains(strings.Join(flags, " "), "priv-key="+filepath.Join(dir, "jwt.key")) {
			t.Errorf("%q, %v", flags, err)
		}
	}
	var keys []string
	for _, dir := range []string{a, b} {
		path := filepath.Join(dir, "jwt.key")
		key, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", fi, err)
		}
		keys = append(keys, string(key))
	}
	if keys[0] == keys[1] {
		t.Error("two pairs have one key")
	}
	if _, err := tokens(a, "other"); err == nil {
		t.Error("a kind that there is not")
	}
}
