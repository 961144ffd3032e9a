// SPDX-License-Identifier: Apache-2.0

// Package critest is for tests of both sides of CRI: a Fake runtime in memory, for tests of the kubelet, and a Suite
// that every runtime must pass, the Fake included. The Fake starts no process and needs no privilege.
package critest

import (
	"context"
	"fmt"
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
// times, so it works in a synctest bubble.
type Fake struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	mu         sync.Mutex
	seq        int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*runtimeapi.Image // by id
	subs       map[chan *runtimeapi.ContainerEventResponse]struct{}
	calls      []string
	fails      map[string][]error
	delays     map[string]time.Duration
	program    func(*runtimeapi.ContainerConfig) Program
	exec       func(c *runtimeapi.ContainerConfig, cmd []string) ExecResult
	streamURL  string
	podCIDR    string
	notReady   string
	noUsers    bool
	now        func() time.Time
}

// NewFake returns a runtime with one image, HelloImage. Containers run Hello unless SetProgram is called.
func NewFake() *Fake {
	fake := &Fake{
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]*runtimeapi.Image{},
		subs:       map[chan *runtimeapi.ContainerEventResponse]struct{}{},
		fails:      map[string][]error{},
		delays:     map[string]time.Duration{},
		program:    Hello,
		exec:       HelloExec,
		now:        time.Now,
	}
	fake.AddImage(HelloImage, 4<<20)
	return fake
}

// SetProgram sets the behaviour of containers that are started from now on.
func (f *Fake) SetProgram(p func(*runtimeapi.ContainerConfig) Program) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.program = p
}

// SetExec sets the results of ExecSync.
func (f *Fake) SetExec(e func(c *runtimeapi.ContainerConfig, cmd []string) ExecResult) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.exec = e
}

// SetStreamURL sets the base of the URLs that Exec, Attach and PortForward return ("http://127.0.0.1:1234").
func (f *Fake) SetStreamURL(u string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streamURL = u
}

// SetNotReady makes Status report the runtime as not ready with this message; empty makes it ready again.
func (f *Fake) SetNotReady(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notReady = message
}

// SetUserNamespaces sets whether the runtime supports user namespaces; by default it does.
func (f *Fake) SetUserNamespaces(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noUsers = !yes
}

// FailNext makes the next calls of a method ("PullImage") fail with these errors, in order; for a nil the call
// succeeds.
func (f *Fake) FailNext(verb string, errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails[verb] = append(f.fails[verb], errs...)
}

// Delay makes every call of a method take at least d.
func (f *Fake) Delay(verb string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays[verb] = d
}

// Calls returns the methods called so far, in order, except those that only read.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// AddImage adds an image.
func (f *Fake) AddImage(ref string, size uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addImageLocked(ref, size)
}

// Exit ends a running container by itself. It reports whether it was running.
func (f *Fake) Exit(containerID string, code int32) bool { return f.end(containerID, code, "") }

// OOMKill ends a running container as the OOM killer does.
func (f *Fake) OOMKill(containerID string) bool { return f.end(containerID, 137, "OOMKilled") }

// StopSandbox makes a sandbox NotReady without a call of the kubelet; its containers end with 137.
func (f *Fake) StopSandbox(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sandboxes[id]; s != nil {
		f.stopSandboxLocked(s)
	}
}

// Containers returns the ids of containers with this name (all when empty), oldest first.
func (f *Fake) Containers(name string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*container
	for _, c := range f.containers {
		if name == "" || c.config.GetMetadata().GetName() == name {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *container) int { return a.seq - b.seq })
	ids := make([]string, 0, len(out))
	for _, c := range out {
		ids = append(ids, c.id)
	}
	return ids
}

// Config returns what a container was created with; nil when there is none.
func (f *Fake) Config(containerID string) *runtimeapi.ContainerConfig {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[containerID]; c != nil {
		return c.config
	}
	return nil
}

// begin records a call, waits for its Delay and returns its FailNext error.
func (f *Fake) begin(ctx context.Context, verb string) error {
	f.mu.Lock()
	f.calls = append(f.calls, verb)
	return f.delayOrFail(ctx, verb)
}

// beginRead is begin for methods that only read, which are not recorded.
func (f *Fake) beginRead(ctx context.Context, verb string) error {
	f.mu.Lock()
	return f.delayOrFail(ctx, verb)
}

// delayOrFail waits for a method's Delay and returns its FailNext error. The caller holds mu; delayOrFail unlocks it.
func (f *Fake) delayOrFail(ctx context.Context, verb string) error {
	var err error
	if q := f.fails[verb]; len(q) > 0 {
		err = q[0]
		f.fails[verb] = q[1:]
	}
	d := f.delays[verb]
	f.mu.Unlock()
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

// idLocked makes an id of the usual form. Ids sort by age.
func (f *Fake) idLocked() (string, int) {
	f.seq++
	return fmt.Sprintf("%064x", f.seq), f.seq
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
