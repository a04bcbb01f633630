package report

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"twok/testing/history"
)

// The page's measures.
const (
	bin     = 100 * time.Millisecond
	width   = 1100.0 // of the plots
	left    = 90.0
	lane    = 24.0
	plot    = 90.0
	textRow = 13.0
)

// colours of the agents' phases; whatever is not named is on its way from one to another.
var colours = map[string]string{
	"leading": "#2a9d4b", "alone": "#136b2e", "following": "#5b8def", "leaderless": "#d9534f", "lost": "#8e5ea2", "fenced": "#222222",
	"catching-up": "#b39ddb", "promoting": "#b39ddb", "joining": "#b39ddb", "preparing": "#b39ddb",
}

// Page writes timeline.html into the result's directory: one picture, nothing to load. It shows writes per tenth of a second and
// the slowest of them at each site, the agents' phases with the generation, and the moments. start is the history's beginning.
func (r Result) Page(h history.History, start time.Time) error {
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
	for _, site := range []string{"a", "b"} {
		y = r.writes(&b, h, site, y, end, x, label)
		y = phases(&b, h, site, y, start, end, x, label)
	}
	for t := time.Duration(0); t <= end; t += tick(end) {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#ddd"/><text x="%.1f" y="%.0f">%g s</text>`+"\n", x(t), x(t), top, y, x(t)+2, y+12, t.Seconds())
	}
	bottom := y
	y += 30
	for i, m := range r.Moments {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#c00" stroke-dasharray="3 3"/><text x="%.1f" y="%.0f" fill="#c00">%d</text>`+"\n",
			x(m.At), x(m.At), top-6, bottom, x(m.At)-3, top-8, i+1)
		fmt.Fprintf(&b, `<text x="4" y="%.0f">%d. %8.3f s  %s</text>`+"\n", y, i+1, m.At.Seconds(), html.EscapeString(m.Text))
		y += textRow
	}
	verdict := r.Line()
	page := fmt.Sprintf(`<!doctype html>
<meta charset="utf-8"><title>%[1]s</title>
<style>body{font:13px monospace;margin:1em}svg{font:11px monospace}pre{white-space:pre-wrap}</style>
<h1 style="font-size:15px">%[1]s</h1>
<pre>%[2]s</pre>
<svg width="%.0[3]f" height="%.0[4]f" xmlns="http://www.w3.org/2000/svg">
%[5]s</svg>
<p>Green bars: writes acknowledged in a tenth of a second, red ones: of unknown outcome. Dots: the slowest acknowledged one.
Lanes: the agents' phases with the generation that they know (%[6]s; grey: on the way from one to another).
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
	label(y+26, fmt.Sprintf("max %d/100ms", most))
	label(y+40, fmt.Sprintf("slowest %d ms", slowest.Milliseconds()))
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

// phases draws what a site's agent was in.
func phases(b *bytes.Buffer, h history.History, site string, y float64, start time.Time, end time.Duration, x func(time.Duration) float64, label func(float64, string)) float64 {
	label(y+15, "agent of "+site)
	if h.Final != nil {
		ph := h.Final.Phases[site]
		for i, p := range ph {
			from, to := time.Duration(p.At-start.UnixNano()), end
			if i+1 < len(ph) {
				to = time.Duration(ph[i+1].At - start.UnixNano())
			}
			if to <= 0 || from >= end {
				continue
			}
			colour := colours[p.Name]
			if colour == "" {
				colour = "#aaaaaa"
			}
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s"><title>%s, generation %d</title></rect>`+"\n",
				x(from), y+2, max(x(to)-x(from), 0.7), lane-4, colour, html.EscapeString(p.Name), p.Generation)
			if x(to)-x(from) > 60 {
				fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#fff">%s %d</text>`+"\n", x(from)+3, y+15, html.EscapeString(p.Name), p.Generation)
			}
		}
	}
	return y + lane + 10
}
