package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/internal/failover"
)

// story feeds testdata/*.jsonl lines, each with a site in front, and returns "site kind".
func tellStory(t *testing.T, file string, s *Story) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range splitLines(data) {
		site, rest, _ := strings.Cut(line, " ")
		dir := t.TempDir()
		path := filepath.Join(dir, "trace")
		if err := os.WriteFile(path, []byte(rest+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := FollowTrace(ctx, path, func(l TraceLine) {
			for _, e := range s.Trace(site, l) {
				got = append(got, fmt.Sprintf("%s %s", e.Site, e.Kind))
			}
			cancel()
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// TestStoryOfALink: a cut link with both agents claiming, one wins, the other returns.
//
// Rules: none (the laboratory itself).
func TestStoryOfALink(t *testing.T) {
	s := NewStory()
	got := tellStory(t, "link.jsonl", s)
	want := []string{
		"a no-leader", "b no-leader", "a claim", "a stop", "a named", "a append", "b claim", "a lead",
		"b stop", "b gave-up", "b lost", "b learner", "b rewritten", "b caught-up", "b hash", "b promoted", "a token",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if s.Survivor() != "a" {
		t.Errorf("survivor %q", s.Survivor())
	}
	s.Cut()
	if s.Survivor() != "" {
		t.Error("the next cut has a survivor already")
	}
}

// TestGaveUp: a member gives up a claim that it began; an etcd that is let start on its empty directory gives up nothing.
//
// Rules: none (the laboratory itself).
func TestGaveUp(t *testing.T) {
	for from, want := range map[string]int{"leaderless": 0, "starting": 0, "rechecking": 0, "fenced": 0, "stopping": 1, "deciding": 1, "claiming": 1, "appending": 1} {
		if got := NewStory().Trace("a", TraceLine{From: from, To: "releasing", Reason: "none"}); len(got) != want {
			t.Errorf("from %s: %v, want %d events", from, got, want)
		}
	}
}

// TestTokenTellsThePromotion: whichever agent's line is read first, the promotion is told before the token that proves it.
//
// Rules: P14.
func TestTokenTellsThePromotion(t *testing.T) {
	at := func(ms int64) TraceTime { return TraceTime{time.UnixMilli(ms)} }
	back := []TraceLine{
		{T: at(1), From: "preparing", To: "catching-up"},
		{T: at(2), From: "catching-up", To: "promoting"},
		{T: at(4), From: "promoting", To: "following"},
	}
	token := TraceLine{T: at(3), Event: "token-written", Outcome: "done", From: "leading", To: "leading"}
	for place := range len(back) + 1 {
		s := NewStory()
		var events []Event
		for i, l := range back {
			if i == place {
				events = append(events, s.Trace("a", token)...)
			}
			events = append(events, s.Trace("b", l)...)
		}
		if place == len(back) {
			events = append(events, s.Trace("a", token)...)
		}
		slices.SortStableFunc(events, func(x, y Event) int { return x.At.Compare(y.At) })
		var got []string
		for _, e := range events[len(events)-2:] {
			got = append(got, e.Site+" "+string(e.Kind))
		}
		if want := []string{"b promoted", "a token"}; !slices.Equal(got, want) {
			t.Errorf("the token read at place %d: %q", place, got)
		}
	}
}

// TestFirstWriteImpliesLead: a write acknowledged before the agent noticed.
//
// Rules: none (the laboratory itself).
func TestFirstWriteImpliesLead(t *testing.T) {
	s := NewStory()
	s.Trace("b", TraceLine{From: "appending", To: "rechecking"})
	var got []string
	for _, e := range s.FirstWrite(time.Now(), "") {
		got = append(got, e.Site+" "+string(e.Kind))
	}
	for _, e := range s.Trace("b", TraceLine{From: "leaderless", To: "alone"}) {
		got = append(got, string(e.Kind))
	}
	if want := []string{"b lead", " first-write"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := s.FirstWrite(time.Now(), ""); len(e) != 1 {
		t.Errorf("%v", e)
	}
}

// TestStoryNamesExist: every phase, event, action and reason that the story
// looks for is one of the core's.
//
// Rules: none (the laboratory itself).
func TestStoryNamesExist(t *testing.T) {
	known := map[string]bool{}
	for _, p := range failover.Phases() {
		known[p.String()] = true
	}
	for _, a := range failover.ActionKinds() {
		known[a.String()] = true
	}
	for _, e := range failover.EventKinds() {
		known[e.String()] = true
	}
	for _, r := range failover.Reasons() {
		known[r.String()] = true
	}
	src, err := os.ReadFile("story.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := bytes.Cut(src, []byte("func (s *Story) Trace("))
	if !ok {
		t.Fatal("story.go has no Trace")
	}
	code, _, _ = bytes.Cut(code, []byte("\n}\n"))
	n := 0
	known["done"] = true // an outcome, named by the agent
	for i, s := range strings.Split(string(code), `"`) {
		if i%2 == 1 && s != "" && !strings.Contains(s, " ") {
			n++
			if !known[s] {
				t.Errorf("story.go looks for %q, which the core does not know", s)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d names were found in story.go", n)
	}
}

// TestFollowTrace: a file that appears later, a line in two parts, a bad line.
//
// Rules: none (the laboratory itself).
func TestFollowTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lines := make(chan TraceLine)
	done := make(chan error)
	go func() { done <- FollowTrace(ctx, path, func(l TraceLine) { lines <- l }) }()
	time.Sleep(30 * time.Millisecond)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprint(f, `{"t":1500,"from":"a","to"`)
	time.Sleep(30 * time.Millisecond)
	fmt.Fprint(f, `:"b"}`+"\n"+`{"t":"2026-01-02T03:04:05.5Z","actions":["swap"]}`+"\n")
	if l := <-lines; l.T.UnixMilli() != 1500 || l.From != "a" || l.To != "b" {
		t.Errorf("%+v", l)
	}
	if l := <-lines; l.T.UnixMilli() != 1767323045500 || !slices.Equal(l.Actions, []string{"swap"}) {
		t.Errorf("%+v", l)
	}
	fmt.Fprint(f, "no JSON\n")
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no JSON") {
		t.Errorf("a bad line: %v", err)
	}
}
