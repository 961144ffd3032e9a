// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// AppendClass appends to b the key of the pod's class: everything that the pod requires of a single node, without
// regard to other pods. That is its node name, node selector, tolerations, node affinity, requests, host ports and
// images. Pods of one workload share a class.
func (p *PodInfo) AppendClass(b []byte) []byte {
	s := &p.Pod.Spec
	add := func(parts ...string) {
		for _, part := range parts {
			b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
		}
	}
	count := func(n int) { b = binary.AppendUvarint(b, uint64(n)) } // a length
	amount := func(amounts ...int64) {
		for _, n := range amounts {
			b = binary.AppendVarint(b, n)
		}
	}
	add(s.NodeName)
	count(len(s.NodeSelector))
	for _, k := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		add(k, s.NodeSelector[k])
	}
	count(len(s.Tolerations))
	for i := range s.Tolerations {
		t := &s.Tolerations[i]
		add(t.Key, string(t.Operator), t.Value, string(t.Effect))
	}
	if a := s.Affinity; a != nil && a.NodeAffinity != nil {
		add(a.NodeAffinity.String())
	} else {
		add("")
	}
	amount(p.Request.MilliCPU, p.Request.Memory, p.Request.EphemeralStorage, p.ScoreCPU, p.ScoreMemory)
	count(len(p.Request.Scalar))
	for _, k := range slices.Sorted(maps.Keys(p.Request.Scalar)) {
		add(string(k))
		amount(p.Request.Scalar[k])
	}
	count(len(p.Ports))
	for _, port := range p.Ports {
		add(port.IP, string(port.Protocol))
		amount(int64(port.Port))
	}
	images := func(list []corev1.Container) {
		count(len(list))
		for i := range list {
			add(list[i].Image)
		}
	}
	images(s.InitContainers)
	images(s.Containers)
	for i := range s.Volumes {
		if img := s.Volumes[i].Image; img != nil {
			add(img.Reference)
		}
	}
	return b
}
