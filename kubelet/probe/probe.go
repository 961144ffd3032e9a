// SPDX-License-Identifier: Apache-2.0

// Package probe runs the liveness, readiness and startup probes of containers. The pod workers call Manager.Sync with
// the probes that a pod should have; the Manager starts and stops them, and calls a Listener when a result changes. It
// never restarts a container: the pod worker does.
package probe

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kind is a kind of probe.
type Kind string

// The kinds, named as in events ("Readiness probe failed: ...").
const (
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
	Startup   Kind = "Startup"
)

// Result is the result of a probe after thresholds.
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

// Of returns the container's probe of this kind; nil: none.
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
