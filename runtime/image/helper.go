// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/registry"
	"keelson/runtime/image/unpack"
)

// Pulls run in helper processes of the same program, one for each tenant (see Config.Helper): what registries answer is
// read, parsed and unpacked there, with limited memory. A helper is started by a tenant's first pull and ends when it
// has nothing to do. It works on the store's directory as other processes do, so all that comes back are progress, the
// image's id, or an error.
//
//	store                                          helper (ServeHelper)
//	helperSetup, once             -- stdin -->     opens the store
//	                              <-- stdout --    helperReply: ready, once
//	helperRequest: pull           -- stdin -->     Store.Pull
//	                              <-- stdout --    helperReply: taken
//	helperRequest: cancel         -- stdin -->     cancels it
//	                              <-- stdout --    helperReply: progress, end
//	end of file                   -- stdin -->     cancels all, cleans up, ends
//
// A helper that ends before it is ready did not start: that is the node's fault. A pull that was not taken begins once
// more in another helper. The leftovers of a helper that did not end by itself are collected.
type (
	helperSetup struct {
		Dir           string            `json:"dir"`
		Registries    registry.Settings `json:"registries"`
		MaxLayerBytes int64             `json:"maxLayerBytes"`
		ReserveBytes  int64             `json:"reserveBytes"`
		Downloads     int               `json:"downloads"`
		Memory        int64             `json:"memory"`
		LockPatience  time.Duration     `json:"lockPatience"`
	}
	helperRequest struct {
		ID     int64          `json:"id"`
		Cancel bool           `json:"cancel,omitempty"` // the pull with this id
		Ref    string         `json:"ref,omitempty"`
		Auth   *registry.Auth `json:"auth,omitempty"`
	}
	helperReply struct {
		Ready bool     `json:"ready,omitempty"` // of the process, not of a pull
		ID    int64    `json:"id"`
		Taken bool     `json:"taken,omitempty"` // the pull begins
		End   bool     `json:"end,omitempty"`
		Done  int64    `json:"done,omitempty"` // bytes, if neither Taken nor End
		Total int64    `json:"total,omitempty"`
		Image string   `json:"image,omitempty"` // id, if there is no error
		Error string   `json:"error,omitempty"`
		Kinds []string `json:"kinds,omitempty"` // names in helperKinds of what the error is
		// Warning is what the registry warns of, in a reply of its own.
		Warning string `json:"warning,omitempty"`
	}
)

// helperKinds are the errors that callers ask for, by their names in replies.
var helperKinds = map[string]error{
	"reference":    manifest.ErrReference,
	"not found":    manifest.ErrNotFound,
	"unauthorized": manifest.ErrUnauthorized,
	"unavailable":  manifest.ErrUnavailable,
	"invalid":      manifest.ErrInvalid,
	"no space":     unpack.ErrNoSpace,
	"unreachable":  registry.ErrUnreachable,
	"locked":       errLocked,
}

const (
	helperMemory = 512 << 20        // bytes of one helper, beyond what it has at its start
	helperIdle   = 15 * time.Second // after which a helper without work ends
	helperGrace  = 5 * time.Second  // to end a pull that was canceled
	maxReply     = 64 << 10         // bytes of one reply
)

var (
	// ErrHelper is the error of pulls whose helper process ended.
	ErrHelper = errors.New("helper process ended")
	// ErrNoHelper is the error of pulls that no helper process began. The image has no part in it.
	ErrNoHelper = errors.New("this node cannot start a helper process for image pulls")
	// errLost is the error of a pull that was handed to a helper which ended before it took it.
	errLost = errors.New("it ended before it began")
)

// helpers starts helper processes and keeps them while they are used.
type helpers struct {
	command   []string
	setup     helperSetup
	idle      time.Duration
	processes *processes
	collect   func() // what a process left behind
	log       *slog.Logger

	mu       sync.Mutex
	byTenant map[string]*helper
}

// helper is one process. The fields below mu of helpers are guarded by that.
type helper struct {
	cmd   *exec.Cmd
	stdin *os.File
	gone  chan struct{} // closed when the process has ended and its calls have failed
	stuck atomic.Bool   // it was killed, because it held a lock for too long

	ready bool
	calls map[int64]*call
	last  int64       // id of the newest call
	end   *time.Timer // ends the idle process; nil while there are calls
}

// call is one pull of a helper.
type call struct {
	warn  func(text string)
	meter *meter
	taken bool          // guarded by mu of helpers
	done  chan struct{} // closed when image and err are set
	image string
	err   error
}

// newHelpers starts nothing. collect is called after a helper that did not end by itself.
func newHelpers(cfg Config, processes *processes, collect func()) *helpers {
	return &helpers{
		command: cfg.Helper,
		setup: helperSetup{
			Dir:           cfg.Dir,
			Registries:    cfg.Registries,
			MaxLayerBytes: cfg.MaxLayerBytes,
			ReserveBytes:  cfg.ReserveBytes,
			Downloads:     cfg.Downloads,
			Memory:        helperMemory,
			LockPatience:  cfg.lockPatience,
		},
		idle:      helperIdle,
		processes: processes,
		collect:   collect,
		log:       cfg.Log,
		byTenant:  map[string]*helper{},
	}
}

// pull has a helper of the tenant pull an image and returns its id. It ends soon after ctx does: a helper that does not
// end the pull is killed.
func (hs *helpers) pull(ctx context.Context, request Request, m *meter) (string, error) {
	id, err := hs.try(ctx, request, m)
	if errors.Is(err, errLost) && ctx.Err() == nil {
		id, err = hs.try(ctx, request, m)
	}
	return id, err
}

func (hs *helpers) try(ctx context.Context, request Request, m *meter) (string, error) {
	helper, id, call, err := hs.begin(request, m)
	if err != nil {
		return "", err
	}
	defer hs.finish(request.Tenant, helper, id)
	select {
	case <-call.done:
		return call.image, call.err
	case <-ctx.Done():
	}
	if err := helper.send(helperRequest{ID: id, Cancel: true}); err != nil {
		hs.kill(request.Tenant, helper)
	}
	grace := time.NewTimer(helperGrace)
	defer grace.Stop()
	select {
	case <-call.done:
	case <-grace.C:
		hs.log.Warn("image helper does not cancel a pull and is killed", "tenant", request.Tenant, "pid",
			helper.cmd.Process.Pid)
		hs.kill(request.Tenant, helper)
		<-call.done
	}
	return "", context.Cause(ctx)
}

// begin sends a request to the tenant's helper, which it starts when there is none.
func (hs *helpers) begin(request Request, m *meter) (*helper, int64, *call, error) {
	hs.mu.Lock()
	h := hs.byTenant[request.Tenant]
	if h == nil {
		hs.endIdleLocked()
		var err error
		if h, err = hs.start(request.Tenant); err != nil {
			hs.mu.Unlock()
			return nil, 0, nil, err
		}
		hs.byTenant[request.Tenant] = h
	}
	if h.end != nil {
		h.end.Stop()
		h.end = nil
	}
	h.last++
	id := h.last
	c := &call{warn: request.Warn, meter: m, done: make(chan struct{})}
	h.calls[id] = c
	hs.mu.Unlock()
	if err := h.send(helperRequest{ID: id, Ref: request.Ref, Auth: request.Auth}); err != nil {
		hs.kill(request.Tenant, h) // its end fails the call
	}
	return h, id, c, nil
}

// endIdleLocked ends a helper without calls when there are as many helpers as may run. The others have calls, whose
// number is bounded by the places of downloads.
func (hs *helpers) endIdleLocked() {
	if len(hs.byTenant) < hs.setup.Downloads+maxTenants {
		return
	}
	for tenant, h := range hs.byTenant {
		if len(h.calls) > 0 {
			continue
		}
		delete(hs.byTenant, tenant)
		if h.end != nil {
			h.end.Stop()
		}
		h.dismiss()
		return
	}
}

// finish forgets a call. A helper without calls ends after a while.
func (hs *helpers) finish(tenant string, h *helper, id int64) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(h.calls, id)
	if len(h.calls) > 0 || hs.byTenant[tenant] != h {
		return
	}
	if h.end != nil {
		h.end.Stop()
	}
	h.end = time.AfterFunc(hs.idle, func() {
		hs.mu.Lock()
		defer hs.mu.Unlock()
		if len(h.calls) == 0 && hs.byTenant[tenant] == h {
			delete(hs.byTenant, tenant)
			h.dismiss()
		}
	})
}

// dismiss lets a process end; one that does not is killed.
func (h *helper) dismiss() {
	_ = h.stdin.Close()
	time.AfterFunc(helperGrace, h.kill)
}

// start runs a helper process. The caller holds mu.
func (hs *helpers) start(tenant string) (*helper, error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHelper, err)
	}
	defer func() { _ = in.Close() }()
	h := &helper{stdin: stdin, gone: make(chan struct{}), calls: map[int64]*call{}}
	//nolint:noctx // finish or stop ends it; the command is our own
	h.cmd = exec.Command(hs.command[0], hs.command[1:]...)
	h.cmd.Args[0] = "keelson"
	h.cmd.Dir = "/"
	h.cmd.Stdin = in
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C is for this process
	said := &head{}
	h.cmd.Stderr = said
	stdout, err := h.cmd.StdoutPipe()
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		_ = stdin.Close()
		return nil, fmt.Errorf("%w: %w", ErrNoHelper, err)
	}
	hs.processes.add(h)
	if err := h.send(hs.setup); err != nil {
		h.kill() // its end fails the calls
	}
	go hs.read(tenant, h, stdout, said) // ends with the process
	return h, nil
}

// send writes one message. A helper that does not read it in time is of no use any more.
func (h *helper) send(message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if err := h.stdin.SetWriteDeadline(time.Now().Add(helperGrace)); err != nil {
		return err
	}
	_, err = h.stdin.Write(append(b, '\n'))
	return err
}

func (h *helper) kill() { _ = h.cmd.Process.Kill() }

// kill kills a helper and lets the tenant's next pull start another one.
func (hs *helpers) kill(tenant string, h *helper) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.byTenant[tenant] == h {
		delete(hs.byTenant, tenant)
	}
	h.kill()
}

// read handles the replies of a helper until it ends, and then fails its calls.
func (hs *helpers) read(tenant string, h *helper, stdout io.Reader, said *head) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		var r helperReply
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			break
		}
		hs.handle(h, &r)
	}
	h.kill() // it may have sent nonsense
	err := h.cmd.Wait()
	why := err
	if why == nil {
		why = errors.New("the runtime stops") // see stop
	}
	if err != nil && len(said.b) > 0 {
		hs.log.Warn("image helper ended", "tenant", tenant, "error", err, "stderr", string(said.b))
	}
	hs.fail(tenant, h, why, said)
	if err != nil {
		hs.collect()
	}
	hs.processes.remove(h)
	close(h.gone)
}

// fail ends the calls of a helper that has ended because of why.
func (hs *helpers) fail(tenant string, h *helper, why error, said *head) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.byTenant[tenant] == h {
		delete(hs.byTenant, tenant)
	}
	_ = h.stdin.Close()
	for id, c := range h.calls {
		delete(h.calls, id)
		switch {
		case !h.ready:
			c.err = fmt.Errorf("%w: %w%s", ErrNoHelper, why, said.line())
		case h.stuck.Load():
			c.err = fmt.Errorf("%w (%w): it held a lock of the image store for too long", ErrNoHelper, why)
		case !c.taken:
			c.err = fmt.Errorf("%w: %w: %w", ErrNoHelper, errLost, why)
		default:
			c.err = fmt.Errorf("%w (%w) while it read or unpacked an image: all that a namespace pulls at a time may "+
				"use %d MiB of memory",
				ErrHelper, why, hs.setup.Memory>>20)
		}
		close(c.done)
	}
}

// handle passes a reply to its call.
func (hs *helpers) handle(h *helper, r *helperReply) {
	hs.mu.Lock()
	h.ready = true
	call := h.calls[r.ID]
	if call != nil {
		call.taken = true
		if r.End {
			delete(h.calls, r.ID)
		}
	}
	hs.mu.Unlock()
	switch {
	case call == nil || r.Taken:
	case r.Warning != "":
		call.warn(r.Warning)
	case !r.End:
		call.meter.set(r.Done, r.Total)
	default:
		call.image = r.Image
		call.err = r.err()
		close(call.done)
	}
}

// err returns the error of a reply.
func (r *helperReply) err() error {
	if r.Error == "" {
		return nil
	}
	var kinds []error
	for _, name := range r.Kinds {
		if kind, ok := helperKinds[name]; ok {
			kinds = append(kinds, kind)
		}
	}
	return &helperError{kinds: kinds, text: r.Error}
}

// helperError is an error of a pull in a helper.
type helperError struct {
	kinds []error // those of helperKinds that it is
	text  string
}

func (e *helperError) Error() string   { return e.text }
func (e *helperError) Unwrap() []error { return e.kinds }

// stop ends all helpers and returns when they have ended.
func (hs *helpers) stop() {
	hs.mu.Lock()
	clear(hs.byTenant)
	all := hs.processes.all()
	for _, h := range all {
		h.dismiss()
	}
	hs.mu.Unlock()
	for _, h := range all {
		<-h.gone
	}
}

// head keeps the first bytes of what is written.
type head struct{ b []byte }

func (t *head) Write(p []byte) (int, error) {
	t.b = append(t.b, p[:min(len(p), 2<<10-len(t.b))]...)
	return len(p), nil
}

// line returns the first line, which is why a process did not start, after a colon.
func (t *head) line() string {
	first, _, _ := strings.Cut(strings.TrimSpace(string(t.b)), "\n")
	if first == "" {
		return ""
	}
	return fmt.Sprintf(": %.200s", first)
}
