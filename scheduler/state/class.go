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
	spec := &p.Pod.Spec
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
	add(spec.NodeName)
	count(len(spec.NodeSelector))
	for _, k := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		add(k, spec.NodeSelector[k])
	}
	count(len(spec.Tolerations))
	for i := range spec.Tolerations {
		t := &spec.Tolerations[i]
		add(t.Key, string(t.Operator), t.Value, string(t.Effect))
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
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
	images(spec.InitContainers)
	images(spec.Containers)
	for i := range spec.Volumes {
		if img := spec.Volumes[i].Image; img != nil {
			add(img.Reference)
		}
	}
	return b
}
