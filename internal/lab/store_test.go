package lab

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A store serves, is killed, and serves again what it had.
//
// Rules: none (the lab).
func TestStore(t *testing.T) {
	for _, kind := range StoreKinds {
		t.Run(kind, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			s, err := StartStore(ctx, kind, filepath.Join(t.TempDir(), "new"), os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(s.URL, kind+"://") {
				t.Errorf("URL %s", s.URL)
			}
			ask := func() error {
				resp, err := http.Get(s.health)
				if err == nil {
					err = resp.Body.Close()
				}
				return err
			}
			for range 2 {
				if err := ask(); err != nil {
					t.Error(err)
				}
				if err := s.Kill(); err != nil {
					t.Fatal(err)
				}
				if ask() == nil {
					t.Error("a killed store answers")
				}
				if err := s.Start(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if ask() == nil {
				t.Error("a closed store answers")
			}
		})
	}
	if _, err := StartStore(t.Context(), "tape", t.TempDir(), os.Stderr); err == nil || !strings.Contains(err.Error(), "choose one of") {
		t.Errorf("an unknown kind: %v", err)
	}
}

// Rules: none (the lab).
func TestArbiterVia(t *testing.T) {
	link := func(target string) (string, error) {
		return "via:" + target[strings.LastIndex(target, ":")+1:] + "0", nil
	}
	for raw, want := range map[string]string{
		"http://h:1/pair": "http://via:10/pair",
		"s3://b/k?endpoint=http%3A%2F%2Fh%3A2&region=r":    "s3://b/k?endpoint=http%3A%2F%2Fvia%3A20&region=r",
		"etcd://h:1,[::1]:2/a/b?tls=false":                 "etcd://via:10,via:20/a/b?tls=false",
		"https://h:1/pair":                                 "",
		"http://h/pair":                                    "",
		"s3://b/k":                                         "",
		"s3://b/k?endpoint=https%3A%2F%2Fh%3A2&path-style": "",
		"etcd://h/k":                                       "",
		"%":                                                "",
	} {
		got, err := ArbiterVia(raw, link)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", raw, got, err, want)
		}
	}
	gone := errors.New("gone")
	for _, raw := range []string{"http://h:1/pair", "etcd://h:1/k"} {
		if _, err := ArbiterVia(raw, func(string) (string, error) { return "", gone }); !errors.Is(err, gone) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
