// SPDX-License-Identifier: Apache-2.0

// Package core knows the kinds of the core group: pods and what they live on,
// nodes, services, volumes and claims, namespaces, quotas, config maps, secrets
// and service accounts. Each <kind>.go returns the kind's description for the
// server's registry; the pod's is spread over pod_*.go. Other groups call DefaultPodTemplate and
// ValidatePodTemplateSpec for their templates. Nothing here does I/O, and
// nothing looks at any object but those it is given.
//
// The rules, words and field paths are those of Kubernetes v1.37 with its
// default feature gates; a field behind a gate that is off by default is
// dropped on create as Kubernetes drops it (pod_disabled.go).
package core
