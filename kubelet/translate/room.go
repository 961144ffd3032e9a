// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// A short pod can name one large object many times, so bytes are counted before they are made. The kernel would
// refuse to start a program with more: execve takes strings of 128 KiB, and in all a quarter of the stack's limit,
// usually 2 MiB.
const (
	// maxString is the length of one string, with the zero byte at its end (MAX_ARG_STRLEN).
	maxString = 128 << 10
	// maxContainer is the size of a container's environment, command and arguments, maxPod that of all containers
	// of a pod.
	maxContainer = 4 << 20
	maxPod       = 16 << 20
	// minContainer is what a container has however many the pod has.
	minContainer = 64 << 10
	// perString is what the kernel adds for each string: its zero byte and a pointer.
	perString = 9
	// maxPath is the length of an expanded subPathExpr (PATH_MAX).
	maxPath = 4095
)

// Room counts the bytes of one container's environment, command, arguments and expanded paths. A string that
// replaces an earlier one counts, too, because the work is limited. It is for one goroutine.
type Room struct{ limit, left int }

// NewRoom returns the room of one container of the pod. The containers share the pod's.
func NewRoom(p *corev1.Pod) *Room {
	containers := len(p.Spec.InitContainers) + len(p.Spec.Containers) + len(p.Spec.EphemeralContainers)
	limit := min(maxContainer, max(maxPod/max(containers, 1), minContainer))
	return &Room{limit: limit, left: limit}
}

// take takes n bytes, or returns an error and takes nothing.
func (r *Room) take(n int) error {
	if n > r.left {
		return fmt.Errorf("environment and arguments have more than %d bytes, the container's limit; "+
			"refer to fewer or smaller objects, or mount them as volumes", r.limit)
	}
	r.left -= n
	return nil
}

// variable takes what NAME=value needs.
func (r *Room) variable(name string, size int) error {
	if len(name)+size+len("=")+1 > maxString {
		return fmt.Errorf("environment variable %s has more than %d bytes, the kernel's limit; mount large values as "+
			"volumes",
			shorten(name), maxString)
	}
	return r.take(len(name) + size + len("=") + perString)
}

// ExpandPath returns a volume mount's subPathExpr with its names replaced. An unknown name is an error.
func ExpandPath(expr string, env map[string]string, room *Room) (string, error) {
	missing := ""
	unknown := false
	out, err := Expand(expr, maxPath, func(name string) (string, bool) {
		v, ok := env[name]
		if !ok {
			missing = name
			unknown = true
		}
		return v, ok
	})
	if unknown {
		return "", fmt.Errorf("failed to expand subPathExpr %q: missing value for %q", expr, missing)
	}
	if err == nil {
		err = room.take(len(out))
	}
	if err != nil {
		return "", fmt.Errorf("expand subPathExpr %q: %w", shorten(expr), err)
	}
	return out, nil
}

// shorten cuts a text for a message.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
