// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/lib/signal"
)

// Self is this node as the parts of the kubelet know it: its machine, and its Node object. They request a write of the
// object's status, whose Keeper is made after them, since it asks them what to write.
type Self struct {
	name    string
	machine Machine
	changed signal.Signal
	current atomic.Pointer[corev1.Node] // stored by the Keeper
}

// Look inspects the machine. The file system of dataDir is the node's ephemeral storage.
func Look(name, dataDir string) (*Self, error) {
	machine, err := Inspect(dataDir)
	if err != nil {
		return nil, err
	}
	return &Self{name: name, machine: machine, changed: signal.New()}, nil
}

// Machine returns what Look found.
func (s *Self) Machine() Machine { return s.machine }

// Node returns the last observed Node object; nil before registration.
func (s *Self) Node() *corev1.Node { return s.current.Load() }

// Changed requests a status write. It is skipped when nothing differs.
func (s *Self) Changed() { s.changed.Notify() }

// Ref is the node's reference in events: by UID, or by name before the UID is known. kubectl describe looks for both.
func (s *Self) Ref() *corev1.ObjectReference {
	ref := &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       s.name,
		UID:        types.UID(s.name),
	}
	if n := s.current.Load(); n != nil && n.UID != "" {
		ref.UID = n.UID
	}
	return ref
}
