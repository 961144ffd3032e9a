// SPDX-License-Identifier: Apache-2.0

// Package supervisor keeps the container supervisor of a runtime running: it starts and upgrades the program, follows
// what it reports, replaces it when it has died, and ends it with all its containers. runtime/server calls it. It knows
// processes by their names in the supervisor only: what they are, and what their end means, is its callers' business.
//
// It has no lock and no record: the supervisor's state is in its process and its directory, and a Client keeps no
// connection.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"keelson/lib/logrotate"
	"keelson/runtime/cgroup"
	"keelson/runtime/shim"
)

// Supervisor is the supervisor of one runtime.
type Supervisor struct {
	client  *shim.Client
	dir     string
	program string
	cgroups *cgroup.Tree
	logs    logrotate.Policy
	log     *slog.Logger
}

// New makes a Supervisor with its state below dir; program is the path of the shim. It starts nothing.
func New(dir, program string, cgroups *cgroup.Tree, logs logrotate.Policy, log *slog.Logger) *Supervisor {
	at := filepath.Join(dir, "shim")
	return &Supervisor{
		client:  shim.New(at),
		dir:     at,
		program: program,
		cgroups: cgroups,
		logs:    logs,
		log:     log,
	}
}

// Client returns the client by which containers are run.
func (s *Supervisor) Client() *shim.Client { return s.client }

// Ensure starts the supervisor or upgrades the one that runs, and configures it.
func (s *Supervisor) Ensure(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make runtime directory: %w", err)
	}
	_, err := shim.Ensure(ctx, s.dir, s.program, func(pid int) error {
		// In a cgroup of its own, because an init system kills all processes in ours when this one stops.
		return s.cgroups.Join("supervisor", pid)
	})
	if err != nil {
		return err
	}
	if err := s.client.Configure(ctx, shim.Settings{Logs: s.logs}); err != nil {
		return fmt.Errorf("configure container supervisor: %w", err)
	}
	return nil
}

// Observer is called with what the supervisor reports, by one goroutine.
type Observer struct {
	// Load gets the first list of containers. Its result is sent to the channel of Watch.
	Load func([]shim.State) error
	// Reconcile gets the list after the connection was lost: exits were perhaps missed.
	Reconcile func([]shim.State)
	// Exited gets each container that ended.
	Exited func(shim.State)
}

// Watch subscribes to the supervisor's exits until ctx is done. loaded gets one value, the result of Load. After an
// upgrade of the supervisor it subscribes again; a supervisor that died is replaced.
func (s *Supervisor) Watch(ctx context.Context, observer Observer, loaded chan<- error) {
	first := true
	for pause := time.Duration(0); ctx.Err() == nil; pause = min(2*pause+10*time.Millisecond, 5*time.Second) {
		if !sleep(ctx, pause) {
			break
		}
		err := s.client.Subscribe(ctx, func(all []shim.State) {
			pause = 0
			if first {
				first = false
				loaded <- observer.Load(all)
				return
			}
			observer.Reconcile(all)
		}, observer.Exited)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Info("container supervisor went away", "error", err)
		if errors.Is(err, shim.ErrDown) {
			if err := s.Ensure(ctx); err != nil {
				s.log.Error("start container supervisor", "error", err)
			}
		}
	}
	if first {
		loaded <- ctx.Err()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
