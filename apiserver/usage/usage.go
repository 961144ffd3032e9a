// SPDX-License-Identifier: Apache-2.0

// Package usage answers for metrics.k8s.io: what nodes, and the containers of pods, use of cpu and memory. The server asks it when
// somebody reads NodeMetrics or PodMetrics; it asks the kubelets of the nodes in question then, and never by itself.
//
// Invariants:
//  1. Nobody asks: no request to a kubelet, no timer but one that ends what is remembered, and then nothing.
//  2. One request to a kubelet at a time, and none while its last answer is younger than fresh.
//  3. A kubelet that does not answer delays an answer about other nodes by no more than patience, and when its last request failed by
//     nothing.
//  4. A kubelet's figures count for pods on its own node only.
package usage

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	// fresh is the age up to which figures are given again. An autoscaler asks every 15 seconds.
	fresh = 10 * time.Second
	// oldest is the age up to which an earlier sample is where the rate begins.
	oldest = 2 * time.Minute
	// pause is between two samples when there is no earlier one.
	pause = time.Second
	// patience bounds how long an answer waits for kubelets.
	patience = 4 * time.Second
	// timeout bounds one request to a kubelet.
	timeout = 10 * time.Second
	// atOnce bounds the requests under way, doubtful those of them to kubelets whose last request failed.
	atOnce, doubtful = 32, 8
)

// Fetch asks a node's kubelet for /metrics/resource.
type Fetch func(ctx context.Context, node string) (*http.Response, error)

// Collector keeps the last samples of the nodes that somebody asked about lately.
type Collector struct {
	fetch  Fetch
	log    *slog.Logger
	turns  chan struct{}
	doubts chan struct{}
	ctx    context.Context //nolint:containedctx // of the requests, which outlive the answers that wait for them; Close ends it
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	nodes  map[string]*state
	forget *time.Timer // nil: nothing is remembered
	closed bool
}

// state is what is known of a node.
type state struct {
	last    *sample
	figures figures
	asked   time.Time // when its last request ended
	failed  bool      // and whether that failed
	logged  bool      // that it failed, and the one before
	flight  chan struct{}
}

// New returns a collector that knows nothing.
func New(fetch Fetch, log *slog.Logger) *Collector {
	c := &Collector{fetch: fetch, log: log, turns: make(chan struct{}, atOnce), doubts: make(chan struct{}, doubtful), nodes: map[string]*state{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the requests under way and forgets everything.
func (c *Collector) Close() {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	if c.forget != nil {
		c.forget.Stop()
	}
	clear(c.nodes)
	c.mu.Unlock()
	c.work.Wait()
}

// of returns the figures of nodes, by name, as far as they are to be had within patience.
func (c *Collector) of(ctx context.Context, nodes []string) map[string]figures {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, flight := range c.start(nodes) {
		select {
		case <-flight:
		case <-ctx.Done():
		}
	}
	out := make(map[string]figures, len(nodes))
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range nodes {
		if s := c.nodes[name]; s != nil && s.last != nil && now.Sub(s.asked) < oldest {
			out[name] = s.figures
		}
	}
	return out
}

// start has the kubelets asked whose figures are not fresh, and returns what is worth waiting for.
func (c *Collector) start(nodes []string) []chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(nodes) == 0 {
		return nil
	}
	now := time.Now()
	var wait []chan struct{}
	for _, name := range nodes {
		s := c.nodes[name]
		if s == nil {
			s = &state{}
			c.nodes[name] = s
		}
		if s.flight == nil && (s.asked.IsZero() || now.Sub(s.asked) >= fresh) {
			s.flight = make(chan struct{})
			was := s.last
			if was != nil && now.Sub(s.asked) > oldest {
				was = nil
			}
			turns := c.turns
			if s.failed {
				turns = c.doubts
			}
			c.work.Go(func() { c.refresh(name, was, turns) })
		}
		if s.flight != nil && !s.failed {
			wait = append(wait, s.flight)
		}
	}
	if c.forget == nil {
		c.forget = time.AfterFunc(2*oldest, c.sweep)
	}
	return wait
}

// sweep forgets what nobody has asked about for long, also while others are asked about.
func (c *Collector) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for name, s := range c.nodes {
		if s.flight == nil && now.Sub(s.asked) >= oldest {
			delete(c.nodes, name)
		}
	}
	if c.forget = nil; len(c.nodes) > 0 && !c.closed {
		c.forget = time.AfterFunc(2*oldest, c.sweep)
	}
}

// refresh asks one kubelet, twice when no earlier sample tells a rate.
func (c *Collector) refresh(node string, was *sample, turns chan struct{}) {
	now, err := c.ask(node, turns)
	if err == nil && was == nil {
		select {
		case <-time.After(pause):
			was = now
			now, err = c.ask(node, turns)
		case <-c.ctx.Done():
			err = c.ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.nodes[node]
	if s == nil {
		return // closed
	}
	if err != nil && c.ctx.Err() == nil {
		// Once is nothing: a node that has just registered is asked before its kubelet listens.
		level := slog.LevelDebug
		if s.failed && !s.logged {
			level, s.logged = slog.LevelWarn, true
		}
		c.log.Log(c.ctx, level, "kubelet does not tell what its node and pods use", "node", node, "err", err)
	}
	s.logged = s.logged && err != nil
	s.asked, s.failed = time.Now(), err != nil
	if err != nil {
		s.last, s.figures = nil, figures{}
	} else {
		s.last, s.figures = now, compute(was, now)
	}
	close(s.flight)
	s.flight = nil
}

// ask waits for a turn and asks once.
func (c *Collector) ask(node string, turns chan struct{}) (*sample, error) {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	resp, err := c.fetch(ctx, node)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // the status says enough
		return nil, fmt.Errorf("kubelet answers %s: %s", resp.Status, text)
	}
	return parse(resp.Body, time.Now())
}
