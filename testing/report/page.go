package report

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"twok/testing/history"
)

// The page's measures.
const (
	bin     = 100 * time.Millisecond
	width   = 1100.0 // of the plots
	left    = 110.0
	lane    = 24.0
	plot    = 90.0
	textRow = 13.0
	silence = 500 * time.Millisecond // without an acknowledged write, from which it is marked
)

// ledBy are the colours of the sites in the leader's lane.
var ledBy = map[string]string{"a": "#2a6f97", "b": "#c77d2b"}

// colours of the agents' phases; whatever is not named is on its way from one to another.
var colours = map[string]string{
	"leading": "#2a9d4b", "alone": "#136b2e", "following": "#5b8def", "leaderless": "#d9534f", "lost": "#8e5ea2", "fenced": "#222222",
	"catching-up": "#b39ddb", "promoting": "#b39ddb", "joining": "#b39ddb", "preparing": "#b39ddb",
}

// Page writes timeline.html into the result's directory: one picture, nothing to load. It shows writes per tenth of a second and
// the slowest of them at each site, the agents' phases with the generation, which site leads, how long nobody's write was
// acknowledged, what did not run, and the moments. phases are those of each site's agent, start is the history's beginning.
func (r Result) Page(h history.History, phases map[string][]history.Phase, start time.Time) error {
	end := bin
	for _, m := range r.Moments {
		end = max(end, m.At)
	}
	for i := range h.Ops {
		end = max(end, time.Duration(h.Ops[i].Return))
	}
	x := func(t time.Duration) float64 { return left + width*float64(min(max(t, 0), end))/float64(end) }
	var b bytes.Buffer
	y := 20.0
	label := func(y float64, s string) {
		fmt.Fprintf(&b, `<text x="4" y="%.0f">%s</text>`+"\n", y, html.EscapeString(s))
	}
	top := y
	var lanes bytes.Buffer // above the silences
	for _, site := range []string{"a", "b"} {
		y = r.writes(&lanes, h, site, y, end, x, label)
		y = r.agent(&lanes, stays(phases[site], start, end), site, y, x, label)
		y = r.etcd(&lanes, site, y, end, x, label)
	}
	y = r.leaders(&lanes, func(site string) []stay { return stays(phases[site], start, end) }, y, x, label)
	for _, s := range silences(h, end) {
		wide := x(s.to) - x(s.from)
		text := fmt.Sprintf("%.2f s", (s.to - s.from).Seconds())
		if wide > 200 {
			text = "no write acknowledged: " + text
		}
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.0f" width="%.1f" height="%.0f" fill="#fbe3e2"/><text x="%.1f" y="%.0f" fill="#a33">%s</text>`+"\n",
			x(s.from), top, wide, y-top, x(s.from)+3, top+12, text)
	}
	b.Write(lanes.Bytes())
	for t := time.Duration(0); t <= end; t += tick(end) {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#ddd"/><text x="%.1f" y="%.0f">%g s</text>`+"\n", x(t), x(t), top, y, x(t)+2, y+12, t.Seconds())
	}
	bottom := y
	y += 30
	beside := 0.0 // where the last number ends
	for i, m := range r.Moments {
		beside = max(x(m.At)-3, beside)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#c00" stroke-dasharray="3 3"/><text x="%.1f" y="%.0f" fill="#c00">%d</text>`+"\n",
			x(m.At), x(m.At), top-6, bottom, beside, top-8, i+1)
		beside += 8 * float64(1+len(strconv.Itoa(i+1)))
		fmt.Fprintf(&b, `<text x="4" y="%.0f">%d. %8.3f s  %s</text>`+"\n", y, i+1, m.At.Seconds(), html.EscapeString(m.Text))
		y += textRow
	}
	verdict := r.Line()
	page := fmt.Sprintf(`<!doctype html>
<meta charset="utf-8"><title>%[1]s</title>
<style>body{font:13px monospace;margin:1em}pre{white-space:pre-wrap}</style>
<h1 style="font-size:15px">%[1]s</h1>
<pre>%[2]s</pre>
<svg width="%.0[3]f" height="%.0[4]f" xmlns="http://www.w3.org/2000/svg" style="font:11px monospace;background:#fff">
%[5]s</svg>
<p>Green bars: acknowledged writes a second, by tenths of one, red ones: of unknown outcome. Dots: the slowest acknowledged write of each tenth.
Lanes: the agents' phases with the generation that they know (%[6]s; grey: on the way from one to another), then whether etcd runs, and below who leads, as the agents have it. Dashed boxes: it does not run, or is frozen.
Pale red: nobody's write was acknowledged for at least half a second.
Red lines: the moments below.</p>
`, html.EscapeString(r.Name), html.EscapeString(verdict), left+width+20, y+10, b.String(), legend())
	return os.WriteFile(filepath.Join(r.Dir, "timeline.html"), []byte(page), 0o644)
}

func tick(end time.Duration) time.Duration {
	for _, d := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second} {
		if end/d <= 15 {
			return d
		}
	}
	return time.Minute
}

func legend() string {
	var out []string
	for _, n := range slices.Sorted(func(yield func(string) bool) {
		for n := range colours {
			if !yield(n) {
				return
			}
		}
	}) {
		out = append(out, fmt.Sprintf(`<span style="color:%s">%s</span>`, colours[n], n))
	}
	return strings.Join(out, ", ")
}

// writes draws a site's writes and returns where the next thing begins.
func (r Result) writes(b *bytes.Buffer, h history.History, site string, y float64, end time.Duration, x func(time.Duration) float64, label func(float64, string)) float64 {
	n := int(end/bin) + 1
	acked, unknown, slow := make([]int, n), make([]int, n), make([]time.Duration, n)
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Site != site || len(o.Writes) == 0 {
			continue
		}
		at := min(int(time.Duration(max(o.Return, o.Call))/bin), n-1)
		switch {
		case o.Outcome == history.OK:
			acked[at]++
			slow[at] = max(slow[at], time.Duration(o.Return-o.Call))
		case o.Outcome == history.Unknown:
			unknown[at]++
		}
	}
	most, slowest := 1, time.Millisecond
	for i := range n {
		most, slowest = max(most, acked[i], unknown[i]), max(slowest, slow[i])
	}
	label(y+12, "writes at "+site)
	label(y+26, fmt.Sprintf("bars: to %d/s", most*int(time.Second/bin)))
	label(y+40, fmt.Sprintf("dots: to %d ms", slowest.Milliseconds()))
	w := max(width*float64(bin)/float64(end)-0.5, 0.5)
	for i := range n {
		at := x(time.Duration(i) * bin)
		for _, v := range []struct {
			n      int
			colour string
		}{{acked[i], "#9ad0a8"}, {unknown[i], "#e79a97"}} {
			if hgt := plot * float64(v.n) / float64(most); v.n > 0 {
				fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" fill-opacity="0.8"/>`+"\n", at, y+plot-hgt, w, hgt, v.colour)
			}
		}
		if slow[i] > 0 {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="1.5"/>`+"\n", at+w/2, y+plot-plot*float64(slow[i])/float64(slowest))
		}
	}
	return y + plot + 4
}

type span struct{ from, to time.Duration }

// silences are the times without an acknowledged write at either site, from the first one on.
func silences(h history.History, end time.Duration) (out []span) {
	var acked []time.Duration
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Outcome == history.OK && len(o.Writes) > 0 {
			acked = append(acked, time.Duration(o.Return))
		}
	}
	slices.Sort(acked)
	for i, from := range acked {
		to := end
		if i+1 < len(acked) {
			to = acked[i+1]
		}
		if to-from >= silence {
			out = append(out, span{from, to})
		}
	}
	return out
}

// stay is a phase as it is drawn.
type stay struct {
	history.Phase
	span
}

// stays are the phases of an agent that are in the picture.
func stays(ph []history.Phase, start time.Time, end time.Duration) (out []stay) {
	for i, p := range ph {
		s := stay{p, span{max(time.Duration(p.At-start.UnixNano()), 0), end}}
		if i+1 < len(ph) {
			s.to = min(time.Duration(ph[i+1].At-start.UnixNano()), end)
		}
		if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}

// away are the times in which a site's program did not run.
func (r Result) away(site string, programs ...string) (out []Absence) {
	for _, a := range r.Absent {
		if a.Site == site && slices.Contains(programs, a.Program) {
			out = append(out, a)
		}
	}
	return out
}

// without is what is left of a span.
func (s span) without(away []Absence) []span {
	left := []span{s}
	for _, a := range away {
		var next []span
		for _, l := range left {
			for _, x := range []span{{l.from, min(l.to, a.From)}, {max(l.from, a.To), l.to}} {
				if x.from < x.to {
					next = append(next, x)
				}
			}
		}
		left = next
	}
	return left
}

// agent draws a site's agent: its phases, and where it did not run.
func (r Result) agent(b *bytes.Buffer, ph []stay, site string, y float64, x func(time.Duration) float64, label func(float64, string)) float64 {
	label(y+15, "agent of "+site)
	away := r.away(site, Agent)
	for _, p := range ph {
		colour := colours[p.Name]
		if colour == "" {
			colour = "#aaaaaa"
		}
		for _, s := range p.without(away) {
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s"><title>%s, generation %d</title></rect>`+"\n",
				x(s.from), y+2, max(x(s.to)-x(s.from), 0.7), lane-4, colour, html.EscapeString(p.Name), p.Generation)
			if x(s.to)-x(s.from) > 75 {
				fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#fff">%s %d</text>`+"\n", x(s.from)+3, y+15, html.EscapeString(p.Name), p.Generation)
			}
		}
	}
	for _, a := range away {
		r.gone(b, a, y+2, lane-4, x)
	}
	return y + lane
}

// etcd draws whether a site's etcd ran.
func (r Result) etcd(b *bytes.Buffer, site string, y float64, end time.Duration, x func(time.Duration) float64, label func(float64, string)) float64 {
	label(y+11, "etcd of "+site)
	away := r.away(site, Etcd)
	for _, s := range (span{0, end}).without(away) {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="#4d4d4d"><title>etcd runs</title></rect>`+"\n", x(s.from), y+2, x(s.to)-x(s.from), lane/2)
	}
	for _, a := range away {
		r.gone(b, a, y+2, lane/2, x)
	}
	return y + lane
}

// gone draws an empty box with the word.
func (r Result) gone(b *bytes.Buffer, a Absence, y, height float64, x func(time.Duration) float64) {
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="#fff" stroke="#999" stroke-dasharray="2 2"><title>%s %s</title></rect>`+"\n",
		x(a.From), y, max(x(a.To)-x(a.From), 1), height, a.Program, a.State)
	if x(a.To)-x(a.From) > 45 {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#666">%s</text>`+"\n", x(a.From)+3, y+height/2+4, a.State)
	}
}

// leaders draws who leads, a above b: two at a time are one agent that does not know it yet, or worse. What does not run leads nobody.
func (r Result) leaders(b *bytes.Buffer, ph func(site string) []stay, y float64, x func(time.Duration) float64, label func(float64, string)) float64 {
	label(y+15, "leader")
	for i, site := range []string{"a", "b"} {
		const half = (lane - 4) / 2
		for _, p := range ph(site) {
			if p.Name != "leading" && p.Name != "alone" {
				continue
			}
			for _, s := range p.without(r.away(site, Etcd, Agent)) {
				fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s"><title>%s: %s, generation %d</title></rect>`+"\n",
					x(s.from), y+2+half*float64(i), max(x(s.to)-x(s.from), 0.7), half, ledBy[site], site, html.EscapeString(p.Name), p.Generation)
				if x(s.to)-x(s.from) > 20 {
					fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#fff">%s</text>`+"\n", x(s.from)+3, y+half*float64(i+1), site)
				}
			}
		}
	}
	return y + lane + 10
}
