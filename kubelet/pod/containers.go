// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/pod/decide"
)

// containers are what the worker remembers of the pod's containers, beyond what the API and the runtime know. Only its
// goroutine uses them. The zero values of the records are those of a container of which nothing is known.
type containers struct {
	named map[string]*container // by name
	runs  map[string]*run       // by container id, of those that the runtime has
}

// container is what is remembered of a container through all its runs.
type container struct {
	crash  decide.Crash            // its restart back-off
	said   string                  // why it waits, as last recorded in an event
	health []corev1.ResourceStatus // of its devices, as last known
}

// run is what is remembered of one run of a container.
type run struct {
	resized string    // the hash of the resources that it was given since it was created; empty: none
	stop    *stopping // how far its end has come; nil: it has not begun
	exited  bool      // its exit was marked
	message string    // its termination message
}

func newContainers() containers {
	return containers{named: map[string]*container{}, runs: map[string]*run{}}
}

// name returns the record of a container.
func (c *containers) name(name string) *container {
	if c.named[name] == nil {
		c.named[name] = &container{}
	}
	return c.named[name]
}

// run returns the record of a run.
func (c *containers) run(id string) *run {
	if c.runs[id] == nil {
		c.runs[id] = &run{}
	}
	return c.runs[id]
}

// keep drops the records of all other runs.
func (c *containers) keep(exists func(id string) bool) {
	maps.DeleteFunc(c.runs, func(id string, _ *run) bool { return !exists(id) })
}

// describe sets the fields of an Input that concern containers.
func (c *containers) describe(in *decide.Input) {
	in.Crashes = map[string]decide.Crash{}
	for name, one := range c.named {
		if one.crash != (decide.Crash{}) {
			in.Crashes[name] = one.crash
		}
	}
	in.Resized = map[string]string{}
	in.Ending = map[string]int64{}
	for id, r := range c.runs {
		if r.resized != "" {
			in.Resized[id] = r.resized
		}
		if r.stop != nil {
			in.Ending[id] = r.stop.Grace
		}
	}
}
