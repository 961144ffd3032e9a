// SPDX-License-Identifier: Apache-2.0

// Package podspec knows what a pod's spec may say, in a pod and in the template
// of one: what is filled in, what is refused, what is warned about. Package pod
// and the kinds that hold templates call it; it looks at no object but the spec
// it is given, and does no I/O.
//
// The rules, words and field paths are those of Kubernetes v1.37 with its
// default feature gates; a field behind a gate that is off by default is
// dropped on create as Kubernetes drops it (disabled.go).
//
// Begin with podSpec in validate.go: a Checker goes through the spec in
// Kubernetes' order, which is the order of the errors that a client reads.
// Volumes come first (volume.go; source.go is the table of their sources,
// legacy.go has the old ones), since the mounts of containers (container.go,
// mount.go) refer to them; then the rest, a file for each topic. A check that
// needs the whole spec or the pod's name is a method of Checker; one that needs
// a part of it is a function of the list of errors and that part. Before
// validation, default.go, volume_default.go and image.go fill in what is not
// set; warnings.go warns about a spec that is valid.
package podspec
