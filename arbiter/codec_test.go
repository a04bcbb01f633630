package arbiter

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// largest has every field set, History full, and every number at the bound for
// which the package promises that a fitted record encodes.
func largest() Record {
	const n = 1e16 - 17
	pos := Position{n, n}
	r := Record{
		ID: NewID(), Nonce: NewNonce(), ClaimNonce: NewNonce(), ClusterID: ^uint64(0), Generation: n,
		Survivor:  Member{^uint64(0), strings.Repeat("m", 64)},
		Reason:    strings.Repeat("r", MaxReason),
		CreatedAt: maxTime, ClaimedAt: maxTime, WrittenAt: maxTime,
		ClaimEnd: pos, Fork: pos, Confirmed: pos, ConfirmedAt: maxTime,
		WholeGeneration: n, WholeMembers: [2]uint64{^uint64(0), ^uint64(0) - 1}, WholeAt: maxTime,
		MarkGeneration: n, MarkIndex: n,
		Drain: true, Pause: true, Forced: true,
	}
	for i := range r.History {
		g := r.Generation - uint64(2*(HistoryLen-1-i))
		r.History[i] = HistoryEntry{First: g - 1, Last: g, Survivor: ^uint64(0), Fork: pos, Forced: true, At: maxTime}
	}
	return r
}

func plain() Record {
	return Record{
		ID: "5f0cafe", Nonce: "n2", ClaimNonce: "n1", ClusterID: 0xcdf818194e3a8c32, Generation: 3,
		Survivor: Member{0x8e9e05c52164694d, "m1"}, Reason: "no contact for 3s",
		CreatedAt: 1767322800123, ClaimedAt: 1767322900000, WrittenAt: 1767322900001,
		ClaimEnd: Position{1041, 7}, Fork: Position{1042, 8},
		WholeGeneration: 2, WholeMembers: [2]uint64{0x8e9e05c52164694d, 0xfd422379fda50e48}, WholeAt: 1767322850000,
		History: [HistoryLen]HistoryEntry{
			{First: 1, Last: 2, Survivor: 0xfd422379fda50e48, Fork: Position{9, 2}, Forced: true, By: "alice@m2", At: 1767322840000},
			{First: 3, Last: 3, Survivor: 0x8e9e05c52164694d, At: 1767322900000},
		},
	}
}

func newborn() Record {
	return Record{ID: NewID(), Nonce: NewNonce(), ClusterID: 7, Generation: 1}
}

// Rules: P1, P2, P3.
func TestEncodeGolden(t *testing.T) {
	got, err := Encode(plain())
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/record.json"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the format changed; a new format needs a new version\ngot:\n%s\nwant:\n%s", got, want)
	}
}

// Rules: P11, P13.
func TestLargestRecordFits(t *testing.T) {
	r := largest()
	b, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) >= 4096 {
		t.Fatalf("%d bytes", len(b))
	}
	t.Logf("%d bytes", len(b))
	if back, err := Decode(b); err != nil || back != r {
		t.Fatalf("decode: %v\ngot  %+v\nwant %+v", err, back, r)
	}

	r.Reason = strings.Repeat("\x01\"\u2028\xff", 5000)
	r.Survivor.Name = strings.Repeat("\u00e4", 1000)
	if _, err := Encode(r); err == nil {
		t.Fatal("encoded a record with a reason of 30 kB")
	}
	if _, err := Encode(Fit(r)); err != nil {
		t.Fatalf("a fitted record does not encode: %v", err)
	}
	for i := range r.History {
		r.History[i].By = strings.Repeat("\u00e4\n", 100)
	}
	if r = Fit(r); r.History[HistoryLen-1].By != "" {
		t.Fatal("no room, and who forced it is kept")
	}
	if _, err := Encode(r); err != nil {
		t.Fatal(err)
	}
	r.Reason, r.History[0].Fork = "", Position{}
	for i := range r.History {
		r.History[i].By, r.History[i].Fork = strings.Repeat("\u00e4\n", 100), Position{}
	}
	if r = Fit(r); len(r.History[HistoryLen-1].By) != MaxBy-MaxBy%3 || r.History[0].By != "" {
		t.Fatalf("who forced it is kept of the newest that have room: %+v", r.History)
	}
	if b, err = Encode(r); err != nil || len(b) > MaxSize-notes || len(b) < MaxSize-notes-MaxBy-len(`"by":"",`) {
		t.Fatalf("a fitted record: %d bytes, %v", len(b), err)
	}
}

// A field added to Record and forgotten in the codec would be lost in the next swap.
// Rules: P1.
func TestLargestHasEveryField(t *testing.T) {
	v := reflect.ValueOf(largest())
	for i := range v.NumField() {
		if v.Field(i).IsZero() && v.Type().Field(i).Name != "Extra" {
			t.Errorf("%s is zero: the test of the largest record does not cover it", v.Type().Field(i).Name)
		}
	}
	e := reflect.ValueOf(largest().History[0])
	for i := range e.NumField() {
		if e.Field(i).IsZero() && e.Type().Field(i).Name != "Extra" && e.Type().Field(i).Name != "By" { // By yields to lack of room
			t.Errorf("History: %s is zero", e.Type().Field(i).Name)
		}
	}
}

// Rules: P11.
func TestEncodeRefuses(t *testing.T) {
	big := plain()
	big.Reason = strings.Repeat("x", MaxSize)
	if _, err := Encode(big); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "reason has 4095") {
		t.Errorf("too large: %v", err)
	}
	for name, change := range map[string]func(*Record){
		"no id":                     func(r *Record) { r.ID = "" },
		"id with a slash":           func(r *Record) { r.ID = "a/b" },
		"long id":                   func(r *Record) { r.ID = strings.Repeat("a", 65) },
		"no nonce":                  func(r *Record) { r.Nonce = "" },
		"claim nonce with a space":  func(r *Record) { r.ClaimNonce = "a b" },
		"no cluster":                func(r *Record) { r.ClusterID = 0 },
		"generation 0":              func(r *Record) { r.Generation = 0 },
		"survivor without id":       func(r *Record) { r.Survivor.ID = 0 },
		"claims without survivor":   func(r *Record) { r.Survivor = Member{} },
		"survivor without claim":    func(r *Record) { r.History = [HistoryLen]HistoryEntry{} },
		"newest claim by another":   func(r *Record) { r.Survivor.ID++ },
		"newest claim is older":     func(r *Record) { r.Generation++ },
		"newest claim is newer":     func(r *Record) { r.Generation--; r.WholeGeneration = 1 },
		"history out of order":      func(r *Record) { r.History[0], r.History[1] = r.History[1], r.History[0] },
		"history overlaps":          func(r *Record) { r.History[1].First = 2 },
		"history backwards":         func(r *Record) { r.History[0].First, r.History[0].Last = 2, 1 },
		"history from 0":            func(r *Record) { r.History[0].First = 0 },
		"history with a hole":       func(r *Record) { r.History[0] = HistoryEntry{} },
		"history nobody":            func(r *Record) { r.History[0].Survivor = 0 },
		"history fork half":         func(r *Record) { r.History[0].Fork.Term = 0 },
		"claim end half":            func(r *Record) { r.ClaimEnd.Index = 0 },
		"confirmed_at alone":        func(r *Record) { r.ConfirmedAt = 1 },
		"whole without generation":  func(r *Record) { r.WholeGeneration = 0 },
		"whole above generation":    func(r *Record) { r.WholeGeneration = 4 },
		"whole with one member":     func(r *Record) { r.WholeMembers[1] = 0 },
		"whole with the same twice": func(r *Record) { r.WholeMembers[1] = r.WholeMembers[0] },
		"mark without generation":   func(r *Record) { r.MarkIndex = 9 },
		"mark without index":        func(r *Record) { r.MarkGeneration = 1 },
		"mark above generation":     func(r *Record) { r.MarkGeneration, r.MarkIndex = 4, 9 },
		"time before 1970":          func(r *Record) { r.ClaimedAt = -1 },
		"time after 9999":           func(r *Record) { r.History[0].At = maxTime + 1 },
		"name not UTF-8":            func(r *Record) { r.Survivor.Name = "\xff" },
		"reason not UTF-8":          func(r *Record) { r.Reason = "\xff" },
		"extra not JSON":            func(r *Record) { r.Extra = "{" },
		"extra not an object":       func(r *Record) { r.Extra = "[1]" },
		"extra without fields":      func(r *Record) { r.Extra = "{}" },
		"extra not canonical":       func(r *Record) { r.Extra = `{"y":1,"x":2}` },
		"extra with a known field":  func(r *Record) { r.Extra = `{"drain":true}` },
		"entry's extra not JSON":    func(r *Record) { r.History[0].Extra = "x" },
		"entry's extra known field": func(r *Record) { r.History[0].Extra = `{"at":1}` },
	} {
		r := plain()
		change(&r)
		if b, err := Encode(r); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	r := newborn()
	r.Confirmed = Position{1, 1}
	if _, err := Encode(r); !errors.Is(err, ErrInvalid) {
		t.Errorf("confirmation without survivor: %v", err)
	}
}

// sub replaces one piece of the encoded plain record and insists that it was there.
func sub(t *testing.T, old, new string) string {
	t.Helper()
	b, err := Encode(plain())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(b), old) != 1 {
		t.Fatalf("%q occurs %d times in %s", old, strings.Count(string(b), old), b)
	}
	return strings.Replace(string(b), old, new, 1)
}

// Rules: P11; F11.
func TestDecodeClasses(t *testing.T) {
	good, err := Encode(plain())
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		in   string
		want error
	}{
		{"nothing", "", ErrEmpty},
		{"a blank", " ", ErrWhitespace},
		{"blank lines", "\r\n\t \n", ErrWhitespace},
		{"no-break space", "\u00a0\u2028", ErrWhitespace},
		{"text", "hello", ErrGarbage},
		{"NUL", "\x00", ErrGarbage},
		{"byte order mark", "\ufeff" + string(good), ErrGarbage},
		{"not UTF-8", sub(t, `"m1"`, "\"\xff\""), ErrGarbage},
		{"two values", string(good) + string(good), ErrGarbage},
		{"trailing text", string(good) + "x", ErrGarbage},
		{"trailing bracket", string(good) + "}", ErrGarbage},
		{"trailing comma", `{"format":"twok-record",}`, ErrGarbage},
		{"field twice", sub(t, `"generation":3,`, `"generation":3,"generation":3,`), ErrGarbage},
		{"field twice in survivor", sub(t, `"name":"m1"`, `"name":"m1","name":"m1"`), ErrGarbage},
		{"unknown field twice", sub(t, `"generation":3,`, `"generation":3,"x":1,"x":1,`), ErrGarbage},
		{"unknown field twice inside", sub(t, `"generation":3,`, `"generation":3,"x":{"y":1,"y":1},`), ErrGarbage},
		{"nested too deep", sub(t, `"generation":3,`, `"generation":3,"x":`+strings.Repeat("[", 99)+strings.Repeat("]", 99)+","), ErrGarbage},
		{"generation a string", sub(t, `"generation":3,`, `"generation":"3",`), ErrGarbage},
		{"generation with exponent", sub(t, `"generation":3,`, `"generation":3e0,`), ErrGarbage},
		{"generation with fraction", sub(t, `"generation":3,`, `"generation":3.0,`), ErrGarbage},
		{"generation negative", sub(t, `"generation":3,`, `"generation":-3,`), ErrGarbage},
		{"generation too large", sub(t, `"generation":3,`, `"generation":18446744073709551616,`), ErrGarbage},
		{"generation null", sub(t, `"generation":3,`, `"generation":null,`), ErrGarbage},
		{"generation 0", sub(t, `"generation":3,`, `"generation":0,`), ErrGarbage},
		{"generation in capitals only", sub(t, `"generation":3,`, `"Generation":3,`), ErrGarbage},
		{"cluster as a number", sub(t, `"cdf818194e3a8c32"`, `123`), ErrGarbage},
		{"cluster in capitals", sub(t, `"cdf818194e3a8c32"`, `"CDF818194E3A8C32"`), ErrGarbage},
		{"cluster short", sub(t, `"cdf818194e3a8c32"`, `"cdf8"`), ErrGarbage},
		{"cluster signed", sub(t, `"cdf818194e3a8c32"`, `"+df818194e3a8c32"`), ErrGarbage},
		{"no nonce", sub(t, `"nonce":"n2",`, ``), ErrGarbage},
		{"survivor a string", sub(t, `{"id":"8e9e05c52164694d","name":"m1"}`, `"m1"`), ErrGarbage},
		{"survivor without id", sub(t, `{"id":"8e9e05c52164694d","name":"m1"}`, `{"name":"m1"}`), ErrGarbage},
		{"unknown field in survivor", sub(t, `"name":"m1"`, `"nick":"m1"`), ErrGarbage},
		{"unknown field in position", sub(t, `"claim_end":{`, `"claim_end":{"x":1,`), ErrGarbage},
		{"time as a number", sub(t, `"created_at":"2026-01-02T03:00:00.123Z"`, `"created_at":1767322800123`), ErrGarbage},
		{"time with offset", sub(t, `"2026-01-02T03:00:00.123Z"`, `"2026-01-02T03:00:00.123+01:00"`), ErrGarbage},
		{"time in microseconds", sub(t, `"2026-01-02T03:00:00.123Z"`, `"2026-01-02T03:00:00.123456Z"`), ErrGarbage},
		{"time before 1970", sub(t, `"2026-01-02T03:00:00.123Z"`, `"1926-01-02T03:00:00.123Z"`), ErrGarbage},
		{"whole with one member", sub(t, `,"fd422379fda50e48"]`, `]`), ErrGarbage},
		{"forced a string", sub(t, `"forced":true,`, `"forced":"true",`), ErrGarbage},
		{"history an object", sub(t, `"history":[`, `"x":1,"history":{},"y":[`), ErrGarbage},
		{"empty entry", sub(t, `"history":[`, `"history":[{},`), ErrGarbage},
		{"17 entries", sub(t, `"history":[`, `"history":[`+strings.Repeat(`{},`, 15)), ErrGarbage},
		{"too large", sub(t, `"generation":3,`, `"generation":3,"x":"`+strings.Repeat("x", MaxSize)+`",`), ErrGarbage},
		{"huge", `"` + strings.Repeat("x", maxForeign) + `"`, ErrGarbage},
		{"no version", sub(t, `"version":1,`, ``), ErrGarbage},
		{"version 0", sub(t, `"version":1,`, `"version":0,`), ErrGarbage},
		{"version a string", sub(t, `"version":1,`, `"version":"2",`), ErrGarbage},
		{"version negative", sub(t, `"version":1,`, `"version":-1,`), ErrGarbage},
		{"null", "null", ErrForeign},
		{"a number", "17", ErrForeign},
		{"an array", "[]", ErrForeign},
		{"an empty object", "{}", ErrForeign},
		{"somebody's object", `{"leader":"a","version":1}`, ErrForeign},
		{"another format", `{"format":"other","version":1}`, ErrForeign},
		{"format a number", `{"format":1,"version":1}`, ErrForeign},
		{"a large foreign object", `{"x":"` + strings.Repeat("x", 2*MaxSize) + `"}`, ErrForeign},
		{"version 2", sub(t, `"version":1,`, `"version":2,`), ErrFuture},
		{"version 2, all else different", `{"version":2,"format":"twok-record","generation":"x"}`, ErrFuture},
		{"version 2^70", `{"version":1180591620717411303424,"format":"twok-record"}`, ErrFuture},
	}
	for i := range good[:len(good)-2] { // the last two bytes are "}\n"
		cases = append(cases, struct {
			name string
			in   string
			want error
		}{fmt.Sprintf("truncated at %d", i+1), string(good[:i+1]), ErrGarbage})
	}
	sentinels := []error{ErrEmpty, ErrWhitespace, ErrGarbage, ErrForeign, ErrFuture}
	for _, c := range cases {
		if strings.TrimSpace(c.in) == "" && c.want == ErrGarbage {
			t.Fatalf("%s: not a test of garbage", c.name)
		}
		r, err := Decode([]byte(c.in))
		if r != (Record{}) {
			t.Errorf("%s: a record beside the error: %+v", c.name, r)
		}
		for _, s := range sentinels {
			if errors.Is(err, s) != (s == c.want) {
				t.Errorf("%s: %v; is %q: %v", c.name, err, s, errors.Is(err, s))
			}
		}
	}
}

// Rules: P1, P11.
func TestUnknownFieldsSurvive(t *testing.T) {
	in := sub(t, `"history":[`+"\n"+`{"first":1,`, `"zeta":{"b":[1,null,1e400],"a":"\u003c<ü"},"Drain":1,"history":[{"first":1,"why":{"k":0.10},`)
	r, err := Decode([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"Drain":1,"zeta":{"a":"<<ü","b":[1,null,1e400]}}`; r.Extra != want {
		t.Errorf("Extra is %s, want %s", r.Extra, want)
	}
	if want := `{"why":{"k":0.10}}`; r.History[0].Extra != want {
		t.Errorf("History[0].Extra is %s, want %s", r.History[0].Extra, want)
	}
	r.Nonce = "another"
	r.Drain = true
	out, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"zeta":{"a":"<<ü","b":[1,null,1e400]}`, `"Drain":1`, `"why":{"k":0.10}}`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("lost %s in\n%s", want, out)
		}
	}
	if back, err := Decode(out); err != nil || back != r {
		t.Errorf("decode: %v\ngot  %+v\nwant %+v", err, back, r)
	}
}

// Rules: P1, P2.
func TestCodecRoundTripRandom(t *testing.T) {
	seed := time.Now().UnixNano()
	rnd := rand.New(rand.NewSource(seed))
	for i := range 1000 {
		r := random(rnd)
		b, err := Encode(r)
		if err != nil {
			t.Fatalf("seed %d, record %d: %v\n%+v", seed, i, err, r)
		}
		again, err := Encode(r)
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("seed %d, record %d: two encodings differ (%v)", seed, i, err)
		}
		back, err := Decode(b)
		if err != nil || back != r {
			t.Fatalf("seed %d, record %d: %v\ngot  %+v\nwant %+v", seed, i, err, back, r)
		}
	}
}

// random is a valid record with any subset of its parts.
func random(rnd *rand.Rand) Record {
	id := func() uint64 { return rnd.Uint64() | 1 }
	some := func() bool { return rnd.Intn(2) == 0 }
	pos := func() (p Position) {
		if some() {
			p = Position{1 + rnd.Uint64()>>(8+rnd.Intn(50)), 1 + rnd.Uint64()>>(8+rnd.Intn(50))}
		}
		return p
	}
	at := func() (ms int64) {
		if some() {
			ms = rnd.Int63n(maxTime)
		}
		return ms
	}
	text := func() string {
		all := []rune("ab \"\\\n\t<>&\u2028\u00e4\x7f\U0001f600")
		s := ""
		for range rnd.Intn(12) {
			s += string(all[rnd.Intn(len(all))])
		}
		return s
	}
	extra := func() string {
		if some() {
			return ""
		}
		return fmt.Sprintf(`{"x_%d":%s}`, rnd.Intn(9), appendString(nil, text()))
	}
	r := Record{
		ID: NewID(), Nonce: NewNonce(), ClusterID: id(), Generation: 1 + uint64(rnd.Intn(9)),
		CreatedAt: at(), WrittenAt: at(), Drain: some(), Pause: some(), Extra: extra(),
	}
	if n := rnd.Intn(HistoryLen + 1); n > 0 {
		g := uint64(0)
		for i := range n {
			first := g + 1 + uint64(rnd.Intn(3))
			g = first + uint64(rnd.Intn(3))
			r.History[i] = HistoryEntry{First: first, Last: g, Survivor: id(), Fork: pos(), Forced: some(), By: text(), At: at(), Extra: extra()}
		}
		r.Generation = g
		r.Survivor = Member{r.History[n-1].Survivor, text()}
		r.Reason, r.ClaimedAt, r.Forced, r.ClaimNonce = text(), at(), some(), NewNonce()
		r.ClaimEnd, r.Fork, r.Confirmed = pos(), pos(), pos()
		if r.Confirmed != (Position{}) {
			r.ConfirmedAt = at()
		}
	}
	if some() {
		r.WholeGeneration, r.WholeMembers, r.WholeAt = r.Generation, [2]uint64{id(), id()}, at()
	}
	if some() {
		r.MarkGeneration, r.MarkIndex = r.Generation, id()
	}
	return r
}

// Rules: P1, P11; F11.
func FuzzDecode(f *testing.F) {
	for _, r := range []Record{plain(), largest(), newborn()} {
		b, err := Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"format":"twok-record","version":1,"id":"a","nonce":"b","cluster_id":"0000000000000001","generation":1,"x":{"y":[1e9,"\ud800"]}}`))
	f.Add([]byte(" "))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err != nil {
			n := 0
			for _, s := range []error{ErrEmpty, ErrWhitespace, ErrGarbage, ErrForeign, ErrFuture} {
				if errors.Is(err, s) {
					n++
				}
			}
			if n != 1 || r != (Record{}) {
				t.Fatalf("%d classes, record %+v: %v", n, r, err)
			}
			return
		}
		b, err := Encode(r)
		if errors.Is(err, ErrTooLarge) {
			return // escapes can make it longer than it was
		}
		if err != nil {
			t.Fatalf("decoded but does not encode: %v", err)
		}
		if back, err := Decode(b); err != nil || back != r {
			t.Fatalf("%v\ngot  %+v\nwant %+v", err, back, r)
		}
	})
}

// Rules: P13.
func TestHistoryHelpers(t *testing.T) {
	r := plain()
	if e, ok := r.Newest(); !ok || e != r.History[1] {
		t.Errorf("Newest: %v %v", e, ok)
	}
	if _, ok := newborn().Newest(); ok {
		t.Error("a new record has a claim")
	}
	if full := largest(); full.HistoryCount() != HistoryLen {
		t.Errorf("HistoryCount of a full history: %d", full.HistoryCount())
	}
	for g, want := range map[uint64]int{1: 0, 2: 0, 3: 1} {
		if e, ok := r.EntryOf(g); !ok || e != r.History[want] {
			t.Errorf("EntryOf(%d): %v %v", g, e, ok)
		}
	}
	for _, g := range []uint64{0, 4} {
		if e, ok := r.EntryOf(g); ok {
			t.Errorf("EntryOf(%d): %v", g, e)
		}
	}
	if !r.Names(r.Survivor.ID) || r.Names(0) || newborn().Names(0) {
		t.Error("Names")
	}
}

// Rules: none (class of an error).
func TestClass(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{nil, nil},
		{fmt.Errorf("x: %w", ErrConflict), ErrConflict},
		{fmt.Errorf("x: %w", ErrUnavailable), ErrUnavailable},
		{fmt.Errorf("x: %w", ErrForbidden), ErrForbidden},
		{fmt.Errorf("x: %w", ErrMisconfigured), ErrMisconfigured},
		{fmt.Errorf("x: %w", ErrUnknown), ErrUnknown},
		{errors.New("anything"), ErrUnknown},
		{fmt.Errorf("%w %w", ErrConflict, ErrUnknown), ErrUnknown},
	} {
		if got := Class(c.err); got != c.want {
			t.Errorf("Class(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

// Rules: P1, P3.
func TestFreshNames(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		for _, s := range []string{NewID(), NewNonce()} {
			if len(s) != 32 || !validToken(s) || seen[s] {
				t.Fatalf("%q", s)
			}
			seen[s] = true
		}
	}
}
