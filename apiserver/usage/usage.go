// SPDX-License-Identifier: Apache-2.0

// Package usage serves metrics.k8s.io: the CPU and memory usage of nodes and of pods' containers. The API server calls it when a client
// reads NodeMetrics or PodMetrics. It then asks the kubelets of these nodes; it never polls by itself.
//
// Invariants:
//  1. Without requests of clients there are no requests to kubelets, and no timer except the one that drops old samples.
//  2. One request to a kubelet at a time, and none while its last answer is younger than fresh.
//  3. A kubelet that does not answer delays a response about other nodes by at most patience; if its last request failed,
//     not at all.
//  4. A kubelet's metrics count only for pods on its own node.
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
	// fresh is the age up to which a sample is reused. An autoscaler asks every 15 seconds.
	fresh = 10 * time.Second
	// oldest is the age up to which a sample is the start of a rate.
	oldest = 2 * time.Minute
	// pause is the time between two samples if there is no earlier one.
	pause = time.Second
	// patience limits how long a response waits for kubelets.
	patience = 4 * time.Second
	// timeout limits one request to a kubelet.
	timeout = 10 * time.Second
	// atOnce limits the concurrent requests, doubtful those to kubelets whose last request failed.
	atOnce, doubtful = 32, 8
)

// Fetch requests /metrics/resource from a node's kubelet.
type Fetch func(ctx context.Context, node string) (*http.Response, error)

// Collector keeps the last samples of recently requested nodes.
type Collector struct {
	fetch  Fetch
	log    *slog.Logger
	turns  chan struct{}
	doubts chan struct{}
	ctx    context.Context //nolint:containedctx // of the requests, which may outlive the responses; Close ends it
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	nodes  map[string]*state
	forget *time.Timer // nil: there are no samples
	closed bool
}

// state is the state of a node.
type state struct {
	last    *sample
	figures figures
	asked   time.Time // when its last request ended
	failed  bool      // whether that failed
	logged  bool      // whether the failure, and the one before, was logged
	flight  chan struct{}
}

// New returns an empty collector.
func New(fetch Fetch, log *slog.Logger) *Collector {
	c := &Collector{fetch: fetch, log: log, turns: make(chan struct{}, atOnce), doubts: make(chan struct{}, doubtful), nodes: map[string]*state{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close cancels the requests and drops all samples.
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

// of returns the usage of nodes by name, as far as it is available within patience.
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

// start requests samples from kubelets without a fresh one, and returns the requests worth waiting for.
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

// sweep drops the samples of nodes that were not requested for long.
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

// refresh requests one sample, or two without an earlier one.
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
		return // the collector is closed
	}
	if err != nil && c.ctx.Err() == nil {
		// The first failure is no warning: a node may be asked before its kubelet listens.
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

// ask waits for its turn and requests one sample.
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
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // the status is enough
		return nil, fmt.Errorf("kubelet answers %s: %s", resp.Status, text)
	}
	return parse(resp.Body, time.Now())
}
