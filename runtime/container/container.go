// SPDX-License-Identifier: Apache-2.0

// Package container makes, starts, ends and removes containers, and records how they ended. runtime/server calls it for
// the CRI verbs of containers and for what the supervisor reports; sandbox calls it to end the containers of a pod. It
// makes no pod, runs no command in a container (see stream), and never decides to start or end a container by itself.
//
// Invariants:
//  1. The record of a container is on disk before its cgroup, root file system and spec, and is removed after them.
//  2. The supervisor knows which containers run; the records say what they are. Load compares the two at the start, and
//     Reconcile after the supervisor was not reachable.
//  3. Each end is recorded once, and then sent as an event. A start that fails is recorded as an end.
//  4. Stop and Remove are idempotent; an unknown id is not an error.
//
// The locks are those of pods: Create and Start hold the sandbox's Op for reading, so that it stays; Start, Update and
// Remove hold the container's Op. Stop holds neither, because it waits for the container.
package container

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"keelson/lib/linux"
	"keelson/runtime/cgroup"
	"keelson/runtime/events"
	"keelson/runtime/image"
	"keelson/runtime/pods"
	"keelson/runtime/sealed"
	"keelson/runtime/shim"
	"keelson/runtime/snapshot"
	"keelson/runtime/userns"
)

// Config is what a Service needs. All fields but the last two are required.
type Config struct {
	Table     *pods.Table
	Shim      *shim.Client
	Specs     *sealed.Specs
	Images    *image.Store
	Snapshots *snapshot.Store
	Users     *userns.Support
	Cgroups   *cgroup.Tree
	Events    *events.Broker
	Host      linux.Facts
	Log       *slog.Logger
	// CDIDirs hold the CDI specifications; empty: /etc/cdi and /var/run/cdi.
	CDIDirs []string
	// HostPath returns where the path that a CDI specification names as the source of a mount is on this machine; nil:
	// there. It is called once for each mount.
	HostPath func(string) string
}

// Service is the containers of a runtime.
type Service struct {
	table     *pods.Table
	shim      *shim.Client
	specs     *sealed.Specs
	images    *image.Store
	snapshots *snapshot.Store
	users     *userns.Support
	cgroups   *cgroup.Tree
	events    *events.Broker
	host      linux.Facts
	log       *slog.Logger
	cdi       injector
}

// New makes a Service. It reads nothing; see Load.
func New(cfg Config) *Service {
	return &Service{
		table:     cfg.Table,
		shim:      cfg.Shim,
		specs:     cfg.Specs,
		images:    cfg.Images,
		snapshots: cfg.Snapshots,
		users:     cfg.Users,
		cgroups:   cfg.Cgroups,
		events:    cfg.Events,
		host:      cfg.Host,
		log:       cfg.Log,
		cdi:       injector{dirs: cfg.CDIDirs, hostPath: cfg.HostPath},
	}
}

// removeAll deletes a directory. The caller has unmounted everything in it.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
