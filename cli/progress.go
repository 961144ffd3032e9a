// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints short lines with times, in color on a terminal.
type progress struct {
	mu   sync.Mutex
	w    io.Writer
	out  *screen // on w
	done bool    // the parent of a detached start has ended
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, out: screenOf(w)}
}

// step prints that a part became ready.
func (p *progress) step(name string, took time.Duration) {
	p.line(fmt.Sprintf("%s%-24s%s %s", p.dim(), name, p.reset(), millis(took)))
}

func (p *progress) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		_, _ = fmt.Fprintln(p.out, s)
	}
}

// ready prints how long the start took, where the APIs are, and the next commands; etcd may be empty. It closes the
// pipe to a waiting parent.
func (p *progress) ready(api, etcd string, took time.Duration, f upFlags) {
	p.line(fmt.Sprintf("%sready in %d ms%s   API at %s", p.bold(), took.Milliseconds(), p.reset(), api))
	if etcd != "" {
		p.line("etcd API at " + etcd)
	}
	next := "keelson kubectl get nodes"
	if f.dataDir != string(defaultDataDir()) {
		next = "keelson kubectl --data-dir " + f.dataDir + " get nodes"
	}
	p.line("next: " + next)
	if f.notifyFD > 0 {
		p.mu.Lock()
		p.done = true
		p.mu.Unlock()
		_ = p.w.(io.Closer).Close()
	}
}

func (p *progress) dim() string   { return p.code("\x1b[2m") }
func (p *progress) bold() string  { return p.code("\x1b[1;32m") }
func (p *progress) reset() string { return p.code("\x1b[0m") }

func (p *progress) code(s string) string {
	if p.out.color {
		return s
	}
	return ""
}

// millis formats a duration with a suitable unit: "41 µs", "3.2 ms", "120 ms", "1.3 s".
func millis(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}
