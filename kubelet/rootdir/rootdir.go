// SPDX-License-Identifier: Apache-2.0

// Package rootdir knows the two names of the kubelet's directory: where it is, and Standard, where the manifests of drivers expect it.
// Volumes, plugins and CSI drivers are named through it. It looks at no disk.
//
// A hostPath volume at or below Standard means the directory of the kubelet that runs the pod. So a driver's manifest works as it is,
// and several kubelets of one machine have their own drivers (docs/decisions/0084).
package rootdir

import (
	"path/filepath"
	"strings"
)

// Standard is where Kubernetes' kubelet has its directory.
const Standard = "/var/lib/kubelet"

// Dir is a kubelet's directory: an absolute, clean path.
type Dir string

// Real is the path that a path of the host means: what is at or below Standard is in the kubelet's directory.
func (d Dir) Real(p string) string {
	if rel, ok := below(Standard, filepath.Clean(p)); ok {
		return filepath.Join(string(d), rel)
	}
	return p
}

// Rel is a path within the kubelet's directory, whichever of the two names p has; ok is false when it lies elsewhere. standard tells that
// it was named by Standard.
func (d Dir) Rel(p string) (rel string, standard, ok bool) {
	p = filepath.Clean(p)
	if rel, ok = below(string(d), p); ok {
		return rel, false, true
	}
	rel, ok = below(Standard, p)
	return rel, ok, ok
}

// AsSeenBy is a path of the kubelet's as somebody knows it who calls the directory Standard.
func (d Dir) AsSeenBy(p string, standard bool) string {
	if rel, ok := below(string(d), p); standard && ok {
		return filepath.Join(Standard, rel)
	}
	return p
}

func below(dir, p string) (rel string, ok bool) {
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, dir+"/")
}
