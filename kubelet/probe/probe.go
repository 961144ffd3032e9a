// SPDX-License-Identifier: Apache-2.0

// Package probe runs the liveness, readiness and startup probes of containers. The pod workers tell a Manager which probes a pod
// should have now; it starts and stops them and wakes the worker when a result changes. It decides nothing about restarts.
package probe

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kind is which of a container's probes.
type Kind string

// The kinds, named as in events ("Readiness probe failed: ...").
const (
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
	Startup   Kind = "Startup"
)

// Result is a probe's standing answer, after thresholds.
type Result int

// Results. Unknown means that no threshold was reached yet.
const (
	Unknown Result = iota
	Success
	Failure
)

// Key names one probe of one run of a container.
type Key struct {
	ContainerID string
	Kind        Kind
}

// Target is a probe that should run.
type Target struct {
	Key
	Pod       *corev1.Pod // immutable
	Container *corev1.Container
	Probe     *corev1.Probe
	PodIP     string // the node's for a pod on the host network
	Started   time.Time
}

// Of returns the container's probe of this kind, nil when it has none.
func Of(c *corev1.Container, k Kind) *corev1.Probe {
	switch k {
	case Liveness:
		return c.LivenessProbe
	case Readiness:
		return c.ReadinessProbe
	case Startup:
		return c.StartupProbe
	}
	return nil
}
