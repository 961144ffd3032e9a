// SPDX-License-Identifier: Apache-2.0

// Package critest is for tests of both sides of CRI: a Fake runtime in memory, for tests of the kubelet, and a Suite
// that every runtime must pass, the Fake included. The Fake starts no process and needs no privilege.
package critest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// HelloImage is the image that the Fake has and the Suite uses.
const HelloImage = "keelson.local/hello:latest"

// Program describes the behaviour of a started container.
type Program struct {
	// Output is written to the log, one stdout line per element.
	Output []string
	// Exits: the container ends by itself, After its start, with Code.
	Exits bool
	After time.Duration
	Code  int32
	// IgnoresTerm makes StopContainer wait for its whole timeout and then kill (code 137).
	IgnoresTerm bool
	// TermCode is the exit code after the stop signal; 143 when zero.
	TermCode int32
}

// ExecResult is the result of an exec in a fake container.
type ExecResult struct {
	Stdout, Stderr []byte
	Code           int32
	// Takes is how long the command runs; ExecSync with a shorter timeout fails with DeadlineExceeded.
	Takes time.Duration
	Err   error
}

// Fake is a runtime in memory. It implements cri.Server and is safe for concurrent use. It uses package time for all
// times, so it works in a synctest bubble. Its parts answer the calls of CRI, each of those that concern it.
type Fake struct {
	*script
	*node
	*images
	*pods
	*watchers
	*streams
	*stats
}

// NewFake returns a runtime with one image, HelloImage. Containers run Hello unless SetProgram is called.
func NewFake() *Fake {
	script := &script{fails: map[string][]error{}, delays: map[string]time.Duration{}}
	node := &node{script: script}
	images := &images{script: script, byID: map[string]*runtimeapi.Image{}}
	watchers := &watchers{subs: map[chan *runtimeapi.ContainerEventResponse]struct{}{}}
	pods := &pods{
		script:     script,
		node:       node,
		images:     images,
		watchers:   watchers,
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		program:    Hello,
	}
	images.AddImage(HelloImage, 4<<20)
	return &Fake{
		script:   script,
		node:     node,
		images:   images,
		pods:     pods,
		watchers: watchers,
		streams:  &streams{script: script, pods: pods, exec: HelloExec},
		stats:    &stats{script: script, pods: pods},
	}
}

// script is what a test has planned for calls, and which were made.
type script struct {
	mu     sync.Mutex
	calls  []string
	fails  map[string][]error
	delays map[string]time.Duration
}

// FailNext makes the next calls of a method ("PullImage") fail with these errors, in order; for a nil the call
// succeeds.
func (s *script) FailNext(verb string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[verb] = append(s.fails[verb], errs...)
}

// Delay makes every call of a method take at least d.
func (s *script) Delay(verb string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays[verb] = d
}

// Calls returns the methods called so far, in order, except those that only read.
func (s *script) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// begin records a call, waits for its Delay and returns its FailNext error.
func (s *script) begin(ctx context.Context, verb string) error {
	s.mu.Lock()
	s.calls = append(s.calls, verb)
	return s.delayOrFail(ctx, verb)
}

// beginRead is begin for methods that only read, which are not recorded.
func (s *script) beginRead(ctx context.Context, verb string) error {
	s.mu.Lock()
	return s.delayOrFail(ctx, verb)
}

// delayOrFail waits for a method's Delay and returns its FailNext error. The caller holds mu; delayOrFail unlocks it.
func (s *script) delayOrFail(ctx context.Context, verb string) error {
	var err error
	if q := s.fails[verb]; len(q) > 0 {
		err = q[0]
		s.fails[verb] = q[1:]
	}
	d := s.delays[verb]
	s.mu.Unlock()
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return err
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q: not found", kind, id)
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func sortedValues[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
