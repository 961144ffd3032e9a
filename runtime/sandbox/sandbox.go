// SPDX-License-Identifier: Apache-2.0

// Package sandbox makes, stops and removes pod sandboxes: the directory, namespaces, network and files that the
// containers of a pod share. runtime/server calls it for the CRI verbs of sandboxes and at the start. It asks container
// to end a pod's containers, and starts none. It never calls the API server.
//
// There is no pause container. A pod's network, IPC and UTS namespaces are held by bind mounts below the pod's
// directory. A PID namespace ends with its first process, so only a pod whose containers share one has a holder
// process, of a few hundred kB.
//
// Invariants:
//  1. The record of a sandbox is on disk before its namespaces, network and mounts, and is removed after them.
//  2. A sandbox that cannot be made is undone. If that fails, it stays as a stopped sandbox, which the kubelet removes.
//  3. A sandbox is marked not ready before it is taken down, so that no container can start in what is going.
//  4. Stop and Remove are idempotent; an unknown id is not an error.
//
// The locks are those of pods: Stop and Remove hold the sandbox's Op for writing, so they wait for a container that is
// being made or started in it. Remove takes the Op of its containers while it holds its own.
package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"keelson/runtime/cgroup"
	"keelson/runtime/container"
	"keelson/runtime/events"
	"keelson/runtime/podnet"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
	"keelson/runtime/userns"
)

// Config is what a Service needs. All fields are required.
type Config struct {
	Table      *pods.Table
	Containers *container.Service
	Shim       *shim.Client
	Network    *podnet.Connector
	Users      *userns.Support
	Cgroups    *cgroup.Tree
	Events     *events.Broker
	Log        *slog.Logger
}

// Service is the pod sandboxes of a runtime.
type Service struct {
	table      *pods.Table
	containers *container.Service
	shim       *shim.Client
	network    *podnet.Connector
	users      *userns.Support
	cgroups    *cgroup.Tree
	events     *events.Broker
	log        *slog.Logger
}

// New makes a Service. It reads nothing; see Load.
func New(cfg Config) *Service {
	return &Service{
		table:      cfg.Table,
		containers: cfg.Containers,
		shim:       cfg.Shim,
		network:    cfg.Network,
		users:      cfg.Users,
		cgroups:    cfg.Cgroups,
		events:     cfg.Events,
		log:        cfg.Log,
	}
}

// removeAll deletes a directory. The caller has unmounted everything in it.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
