// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"keelson/lib/record"
	"keelson/runtime/shim"
	"keelson/runtime/shim/process"
	"keelson/runtime/shim/streams"
)

// container is one container. What must survive the supervisor is in state, which is also in the state file.
type container struct {
	dir string
	io  *streams.Streams // nil: a namespace holder
	// ended is closed when the exit is recorded and reported; cleaned when the cgroup is removed, too.
	ended       chan struct{}
	cleaned     chan struct{}
	openingNull atomic.Bool // a call of nullDevice is in progress
	// entering is held for reading while a process starts in the container. Its first process is not reaped then, so
	// its pid is not reused.
	entering sync.RWMutex

	mu       sync.Mutex
	starting bool             // state is not complete yet
	first    *process.Process // nil unless it runs
	state    shim.State
}

func newContainer(dir string, state shim.State) *container {
	return &container{
		dir:     dir,
		ended:   make(chan struct{}),
		cleaned: make(chan struct{}),
		state:   state,
	}
}

func (c *container) snapshot() shim.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// save writes the state file and its copy (see lib/record), each atomically.
func (c *container) save() error {
	body, err := json.Marshal(c.snapshot())
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return record.Write(filepath.Join(c.dir, shim.StateName), body)
}

func (c *container) signal(sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := error(unix.ESRCH)
	if c.first != nil {
		err = c.first.Signal(sig)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		err = shim.ErrNotRunning
	}
	return fmt.Errorf("signal container %s: %w", c.state.ID, err)
}

// alive reports whether the first process has a running thread. Signal 0 does not show that: it succeeds for a zombie.
func (c *container) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first != nil && c.first.Runs()
}

// closeIn closes the container's standard input. A terminal stays open: it carries the output, too.
func (c *container) closeIn() {
	if c.io != nil && !c.snapshot().Terminal {
		c.io.CloseIn()
	}
}

// table has all containers by id. Each has a directory, which is made and removed with its entry.
type table struct {
	dir string // of the supervisor
	log *log.Logger

	mu   sync.Mutex
	byID map[string]*container
}

// reserve makes the directory and the entry of a new container. It fails if the id exists.
func (t *table) reserve(id string) (*container, error) {
	if id == "" || filepath.Base(id) != id || id == "." || id == ".." {
		return nil, fmt.Errorf("container id %q is not a file name", id)
	}
	ctr := newContainer(filepath.Join(t.dir, shim.ContainersDir, id), shim.State{ID: id})
	ctr.starting = true
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[id] != nil {
		return nil, fmt.Errorf("container %s: %w", id, shim.ErrExists)
	}
	if err := os.Mkdir(ctr.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make container directory: %w", err)
	}
	t.byID[id] = ctr
	return ctr, nil
}

// remove removes a container that has ended or has not started.
func (t *table) remove(c *container) error {
	err := os.RemoveAll(c.dir)
	t.mu.Lock()
	delete(t.byID, c.state.ID)
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("remove container directory: %w", err)
	}
	return nil
}

func (t *table) find(id string) (*container, error) {
	t.mu.Lock()
	c := t.byID[id]
	t.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("container %s: %w", id, shim.ErrNotFound)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starting {
		return nil, fmt.Errorf("container %s is starting: %w", id, shim.ErrNotRunning)
	}
	return c, nil
}

// running is find for verbs that need the process.
func (t *table) running(id string) (*container, error) {
	c, err := t.find(id)
	if err != nil {
		return nil, err
	}
	if st := c.snapshot(); !st.Running() {
		return nil, fmt.Errorf("container %s exited: %w", id, shim.ErrNotRunning)
	}
	return c, nil
}

// all returns the containers, also those that start.
func (t *table) all() []*container {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// list returns the states of all containers, sorted by id.
func (t *table) list() []shim.State {
	states := []shim.State{}
	for _, c := range t.all() {
		c.mu.Lock()
		if !c.starting {
			states = append(states, c.state)
		}
		c.mu.Unlock()
	}
	slices.SortFunc(states, func(a, b shim.State) int { return strings.Compare(a.ID, b.ID) })
	return states
}

// idle returns an error if a container runs or starts.
func (t *table) idle() error {
	for _, c := range t.all() {
		c.mu.Lock()
		busy := c.starting || c.state.Running()
		c.mu.Unlock()
		if busy {
			return fmt.Errorf("quit: container %s is running", c.state.ID)
		}
	}
	return nil
}
