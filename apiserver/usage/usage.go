// SPDX-License-Identifier: Apache-2.0

// Package usage serves metrics.k8s.io: the CPU and memory usage of nodes and of pods' containers. The API server calls
// it when a client reads NodeMetrics or PodMetrics. It then asks the kubelets of these nodes; it never polls by itself.
//
// Invariants:
//  1. Without requests of clients there are no requests to kubelets, and no timer except the one that drops old
//     samples.
//  2. One request to a kubelet at a time, and none while its last answer is younger than sampleTTL.
//  3. A kubelet that does not answer delays a response about other nodes by at most waitTimeout; if its last request
//     failed, not at all.
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
	// sampleTTL is the age up to which a sample is reused. An autoscaler asks every 15 seconds.
	sampleTTL = 10 * time.Second
	// maxSampleAge is the age up to which a sample is the start of a rate.
	maxSampleAge = 2 * time.Minute
	// samplePause is the time between two samples if there is no earlier one.
	samplePause = time.Second
	// waitTimeout limits how long a response waits for kubelets.
	waitTimeout = 4 * time.Second
	// requestTimeout limits one request to a kubelet.
	requestTimeout = 10 * time.Second
	// maxRequests limits the concurrent requests, maxRetryRequests those to kubelets whose last request failed.
	maxRequests, maxRetryRequests = 32, 8
)

// Fetch requests /metrics/resource from a node's kubelet.
type Fetch func(ctx context.Context, node string) (*http.Response, error)

// Collector keeps the last samples of recently requested nodes.
type Collector struct {
	fetch        Fetch
	log          *slog.Logger
	requestSlots chan struct{}
	retrySlots   chan struct{}
	ctx          context.Context //nolint:containedctx // the requests may outlive the responses; Close ends it
	cancel       context.CancelFunc
	work         sync.WaitGroup

	mu         sync.Mutex
	nodes      map[string]*nodeState
	sweepTimer *time.Timer // nil: there are no samples
	closed     bool
}

// nodeState is the state of a node.
type nodeState struct {
	last        *sample
	usage       nodeUsage
	lastRequest time.Time // when its last request ended
	failed      bool      // whether that failed
	logged      bool      // whether the failure, and the one before, was logged
	inFlight    chan struct{}
}

// New returns an empty collector.
func New(fetch Fetch, log *slog.Logger) *Collector {
	c := &Collector{
		fetch:        fetch,
		log:          log,
		requestSlots: make(chan struct{}, maxRequests),
		retrySlots:   make(chan struct{}, maxRetryRequests),
		nodes:        map[string]*nodeState{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close cancels the requests and drops all samples.
func (c *Collector) Close() {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	if c.sweepTimer != nil {
		c.sweepTimer.Stop()
	}
	clear(c.nodes)
	c.mu.Unlock()
	c.work.Wait()
}

// usageOf returns the usage of nodes by name, as far as it is available within waitTimeout.
func (c *Collector) usageOf(ctx context.Context, nodes []string) map[string]nodeUsage {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for _, flight := range c.start(nodes) {
		select {
		case <-flight:
		case <-ctx.Done():
		}
	}
	out := make(map[string]nodeUsage, len(nodes))
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range nodes {
		if s := c.nodes[name]; s != nil && s.last != nil && now.Sub(s.lastRequest) < maxSampleAge {
			out[name] = s.usage
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
			s = &nodeState{}
			c.nodes[name] = s
		}
		if s.inFlight == nil && (s.lastRequest.IsZero() || now.Sub(s.lastRequest) >= sampleTTL) {
			s.inFlight = make(chan struct{})
			was := s.last
			if was != nil && now.Sub(s.lastRequest) > maxSampleAge {
				was = nil
			}
			turns := c.requestSlots
			if s.failed {
				turns = c.retrySlots
			}
			c.work.Go(func() { c.refresh(name, was, turns) })
		}
		if s.inFlight != nil && !s.failed {
			wait = append(wait, s.inFlight)
		}
	}
	if c.sweepTimer == nil {
		c.sweepTimer = time.AfterFunc(2*maxSampleAge, c.sweep)
	}
	return wait
}

// sweep drops the samples of nodes that were not requested for long.
func (c *Collector) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for name, s := range c.nodes {
		if s.inFlight == nil && now.Sub(s.lastRequest) >= maxSampleAge {
			delete(c.nodes, name)
		}
	}
	if c.sweepTimer = nil; len(c.nodes) > 0 && !c.closed {
		c.sweepTimer = time.AfterFunc(2*maxSampleAge, c.sweep)
	}
}

// refresh requests one sample, or two without an earlier one.
func (c *Collector) refresh(node string, was *sample, slots chan struct{}) {
	now, err := c.requestSample(node, slots)
	if err == nil && was == nil {
		select {
		case <-time.After(samplePause):
			was = now
			now, err = c.requestSample(node, slots)
		case <-c.ctx.Done():
			err = c.ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	nodeState := c.nodes[node]
	if nodeState == nil {
		return // the collector is closed
	}
	if err != nil && c.ctx.Err() == nil {
		// The first failure is no warning: a node may be asked before its kubelet listens.
		level := slog.LevelDebug
		if nodeState.failed && !nodeState.logged {
			level = slog.LevelWarn
			nodeState.logged = true
		}
		c.log.Log(c.ctx, level, "kubelet does not report what its node and pods use", "node", node, "err", err)
	}
	nodeState.logged = nodeState.logged && err != nil
	nodeState.lastRequest = time.Now()
	nodeState.failed = err != nil
	if err != nil {
		nodeState.last = nil
		nodeState.usage = nodeUsage{}
	} else {
		nodeState.last = now
		nodeState.usage = compute(was, now)
	}
	close(nodeState.inFlight)
	nodeState.inFlight = nil
}

// requestSample waits for its turn and requests one sample.
func (c *Collector) requestSample(node string, slots chan struct{}) (*sample, error) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
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
