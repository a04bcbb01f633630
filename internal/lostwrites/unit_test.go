package lostwrites

import (
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Quote gives back every byte, in characters that neither a shell's single quotes nor a line can end.
//
// Rules: none (the script's form; TestExactly runs it).
func TestQuote(t *testing.T) {
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	for _, b := range [][]byte{all, nil, []byte("ü"), []byte("a b")} {
		q := Quote(b)
		if got, err := strconv.Unquote(q); err != nil || got != string(b) {
			t.Errorf("%q: %q, %v", b, got, err)
		}
		if strings.ContainsFunc(q, func(r rune) bool { return r < ' ' || r > '~' || r == '\'' }) {
			t.Errorf("%q is quoted as %s", b, q)
		}
	}
	if s := oneLine("a\nb\u2028c\r"); strings.ContainsAny(s, "\n\r\u2028") {
		t.Errorf("%q", s)
	}
}

// Permissions as etcd judges them: an outdated revision, no user, points and ranges, ranges that are covered by several
// permissions together, open ends, the root role.
//
// Rules: none (etcd's auth store; TestUsers compares with etcd).
func TestPermissions(t *testing.T) {
	perm := func(key, end string, p authpb.Permission_Type) *authpb.Permission {
		return &authpb.Permission{Key: []byte(key), RangeEnd: []byte(end), PermType: p}
	}
	a := authState{enabled: true, revision: 5,
		users: map[string]*authpb.User{"u": {Name: []byte("u"), Roles: []string{"r", "s"}}, "root": {Roles: []string{"root"}}},
		roles: map[string]*authpb.Role{
			"r": {KeyPermission: []*authpb.Permission{perm("b", "d", authpb.WRITE), perm("p", "", authpb.READWRITE), perm("x", "\x00", authpb.READ)}},
			"s": {KeyPermission: []*authpb.Permission{perm("d", "f", authpb.READWRITE), perm("g", "h", authpb.WRITE)}},
		}}
	for _, c := range []struct {
		user     string
		revision uint64
		key, end string
		perm     authpb.Permission_Type
		want     bool
	}{
		{"u", 5, "b", "", authpb.WRITE, true},
		{"u", 6, "b", "", authpb.WRITE, true},
		{"u", 4, "b", "", authpb.WRITE, false},
		{"u", 0, "b", "", authpb.WRITE, false},
		{"nobody", 5, "b", "", authpb.WRITE, false},
		{"u", 5, "b", "", authpb.READ, false},
		{"u", 5, "a", "", authpb.WRITE, false},
		{"u", 5, "d", "", authpb.WRITE, true},
		{"u", 5, "f", "", authpb.WRITE, false},
		{"u", 5, "b", "f", authpb.WRITE, true},
		{"u", 5, "c", "e", authpb.WRITE, true},
		{"u", 5, "b", "f\x00", authpb.WRITE, false},
		{"u", 5, "b", "h", authpb.WRITE, false},
		{"u", 5, "b", "\x00", authpb.WRITE, false},
		{"u", 5, "p", "", authpb.READ, true},
		{"u", 5, "p", "p\x00", authpb.READ, true},
		{"u", 5, "p", "p\x00\x00", authpb.READ, false},
		{"u", 5, "x", "\x00", authpb.READ, true},
		{"u", 5, "zz", "", authpb.READ, true},
		{"u", 5, "x", "", authpb.WRITE, false},
		{"root", 5, "a", "\x00", authpb.WRITE, true},
		{"root", 4, "a", "", authpb.WRITE, false},
	} {
		h := &pb.RequestHeader{Username: c.user, AuthRevision: c.revision}
		if got := a.may(h, []byte(c.key), []byte(c.end), c.perm); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
	if a.enabled = false; !a.may(&pb.RequestHeader{}, []byte("a"), nil, authpb.WRITE) || !a.admin(&pb.RequestHeader{}) {
		t.Error("without users something is refused")
	}
}
