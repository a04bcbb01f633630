package member

import (
	"errors"
	"strings"
	"testing"

	"twok/internal/failover"
)

func sampleToken() failover.Token {
	return failover.Token{Present: true, RecordID: "0123456789abcdef0123456789abcdef", Generation: 7,
		Cluster: 0xcdf818194e3a8c32, Members: [2]uint64{0x0a, 0xfe1190ac13b33e31}, Term: 1 << 62}
}

func encode(t testing.TB, tok failover.Token, nonce string) []byte {
	t.Helper()
	b, err := EncodeToken(tok, nonce)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Rules: P14.
func TestTokenCodec(t *testing.T) {
	b := encode(t, sampleToken(), "n-1")
	const want = `{"twok_pair":1,"record":"0123456789abcdef0123456789abcdef","generation":7,"cluster":"cdf818194e3a8c32",` +
		`"members":["000000000000000a","fe1190ac13b33e31"],"term":4611686018427387904,"nonce":"n-1"}`
	if string(b) != want {
		t.Fatalf("encoded\n%s, want\n%s", b, want)
	}
	tok, nonce, err := DecodeToken(b)
	if err != nil || tok != sampleToken() || nonce != "n-1" {
		t.Fatalf("decoded %+v, %q, %v", tok, nonce, err)
	}

	for _, edit := range []func(*failover.Token){
		func(k *failover.Token) { k.RecordID = "" },
		func(k *failover.Token) { k.RecordID = "a b" },
		func(k *failover.Token) { k.Generation = 0 },
		func(k *failover.Token) { k.Cluster = 0 },
		func(k *failover.Token) { k.Members[0] = 0 },
		func(k *failover.Token) { k.Members[0], k.Members[1] = k.Members[1], k.Members[0] },
		func(k *failover.Token) { k.Members[1] = k.Members[0] },
		func(k *failover.Token) { k.Term = 0 },
		func(k *failover.Token) { k.Bad = true },
	} {
		tok := sampleToken()
		edit(&tok)
		if b, err := EncodeToken(tok, "n"); !errors.Is(err, ErrTokenBad) {
			t.Errorf("%+v encoded as %s, %v", tok, b, err)
		}
	}
	for _, nonce := range []string{"", `"`, strings.Repeat("n", 65)} {
		if _, err := EncodeToken(sampleToken(), nonce); !errors.Is(err, ErrTokenBad) {
			t.Errorf("nonce %q: %v", nonce, err)
		}
	}
}

// Every single edit of a good value is refused: each byte dropped, doubled or changed.
//
// Rules: P4.
func TestTokenStrict(t *testing.T) {
	good := string(encode(t, sampleToken(), "n-1"))
	refuse := func(v string) {
		t.Helper()
		if tok, nonce, err := DecodeToken([]byte(v)); err == nil {
			again := encode(t, tok, nonce)
			if string(again) != v {
				t.Errorf("%s: accepted as %s", v, again)
			}
		} else if !errors.Is(err, ErrTokenBad) || tok != (failover.Token{}) {
			t.Errorf("%s: %+v, %v", v, tok, err)
		}
	}
	must := func(v string) {
		t.Helper()
		if _, _, err := DecodeToken([]byte(v)); !errors.Is(err, ErrTokenBad) {
			t.Errorf("%q: %v, want ErrTokenBad", v, err)
		}
	}
	for i := range good {
		refuse(good[:i] + good[i+1:])
		refuse(good[:i] + good[i:i+1] + good[i:])
		for _, c := range []byte(" \x00\xff0a\"}") {
			refuse(good[:i] + string(c) + good[i+1:])
		}
		must(good[:i])
	}
	must("")
	must("null")
	must("[]")
	must(" " + good)
	must(good + "\n")
	must(good + good)
	must(strings.Replace(good, `"term"`, `"Term"`, 1))
	must(strings.Replace(good, `"term":`, `"term":1,"term":`, 1))
	must(strings.Replace(good, `"nonce":`, `"extra":1,"nonce":`, 1))
	must(strings.Replace(good, "fe1190", "FE1190", 1))
	must(strings.Replace(good, `:7,`, `:7.0,`, 1))
	must(strings.Replace(good, `:7,`, `:-7,`, 1))
	must(strings.Replace(good, `"twok_pair":1`, `"twok_pair":0`, 1))
	must(strings.Repeat("x", maxToken+1))

	_, _, err := DecodeToken([]byte(`{"twok_pair":2,"whatever":{}}`))
	if !errors.Is(err, ErrTokenFuture) || !errors.Is(err, ErrTokenBad) {
		t.Errorf("version 2: %v", err)
	}
}
