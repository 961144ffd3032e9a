// SPDX-License-Identifier: Apache-2.0

// Package rootdir maps paths between the two names of the kubelet's root directory: the real one, and Standard, which
// the manifests of drivers use. Volumes, plugins and CSI drivers use it. It does not access the file system.
//
// A hostPath volume at or below Standard means the directory of the kubelet that runs the pod. So a driver's manifest
// works as it is, and several kubelets of one machine have their own drivers (docs/decisions/0084).
package rootdir

import (
	"path/filepath"
	"strings"
)

// Standard is where Kubernetes' kubelet has its directory.
const Standard = "/var/lib/kubelet"

// Dir is a kubelet's directory: an absolute, clean path.
type Dir string

// Resolve returns the real path of a host path: a path at or below Standard is in the kubelet's root directory.
func (d Dir) Resolve(p string) string {
	if rel, ok := relativeTo(Standard, filepath.Clean(p)); ok {
		return filepath.Join(string(d), rel)
	}
	return p
}

// Rel returns p relative to the kubelet's directory, by either of its names; ok is false if p is elsewhere.
// standard reports whether p was below Standard.
func (d Dir) Rel(p string) (rel string, standard, ok bool) {
	p = filepath.Clean(p)
	if rel, ok = relativeTo(string(d), p); ok {
		return rel, false, true
	}
	rel, ok = relativeTo(Standard, p)
	return rel, ok, ok
}

// PathFor returns a path in the kubelet's root directory as a driver knows it: below Standard if standard is true.
func (d Dir) PathFor(p string, standard bool) string {
	if rel, ok := relativeTo(string(d), p); standard && ok {
		return filepath.Join(Standard, rel)
	}
	return p
}

func relativeTo(dir, p string) (rel string, ok bool) {
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, dir+"/")
}
