// SPDX-License-Identifier: Apache-2.0

// Package podspec knows what a pod's spec may say, in a pod and in the template
// of one: what is filled in, what is refused, what is warned about. Package pod
// and the kinds that hold templates call it; it looks at no object but the spec
// it is given, and does no I/O.
//
// The rules, words and field paths are those of Kubernetes v1.37 with its
// default feature gates; a field behind a gate that is off by default is
// dropped on create as Kubernetes drops it (disabled.go).
package podspec
