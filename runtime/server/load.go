// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"keelson/runtime/cgroup"
	"keelson/runtime/container"
	"keelson/runtime/podnet"
	"keelson/runtime/pods"
	"keelson/runtime/sandbox"
	"keelson/runtime/shim"
	"keelson/runtime/supervisor"
)

// loader compares what is recorded with what the supervisor has: at the start, and after each gap in what it reports.
type loader struct {
	table      *pods.Table
	supervisor *supervisor.Supervisor
	containers *container.Service
	sandboxes  *sandbox.Service
	network    *podnet.Connector
	cgroups    *cgroup.Tree
	log        *slog.Logger
}

// load reads the records of sandboxes and containers, compares them with the supervisor's containers, and removes what
// is incomplete or unknown.
func (l *loader) load(ctx context.Context, all []shim.State) error {
	if err := l.sandboxes.Load(ctx); err != nil {
		return err
	}
	states := map[string]shim.State{}
	for _, st := range all {
		states[st.ID] = st
	}
	if err := l.containers.Load(ctx, states); err != nil {
		return err
	}
	for _, st := range all {
		if l.table.Owns(st.ID) {
			continue
		}
		l.log.Info("removing a container without a record", "container", st.ID)
		if err := l.supervisor.Client().Delete(ctx, st.ID); err != nil {
			return fmt.Errorf("remove unknown container: %w", err)
		}
	}
	for _, st := range all {
		if st.Hold && !st.Running() {
			l.sandboxes.HolderExited(st)
		}
	}
	return errors.Join(
		l.containers.SweepSnapshots(ctx), l.network.Sweep(ctx, l.table.HasSandbox), l.cgroups.Sweep(l.knows))
}

// knows reports whether there is a sandbox or container with the id.
func (l *loader) knows(id string) bool { return l.table.HasSandbox(id) || l.table.Owns(id) }

// exited records what the supervisor reports of a container or holder that has ended.
func (l *loader) exited(st shim.State) {
	if st.Hold {
		l.sandboxes.HolderExited(st)
	} else {
		l.containers.RecordExit(st)
	}
}

// reconcile records the exits that were missed between two subscriptions.
func (l *loader) reconcile(all []shim.State) {
	for _, st := range all {
		if !st.Running() {
			l.exited(st)
		}
	}
	l.containers.Reconcile(all)
}
