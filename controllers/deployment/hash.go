// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// templateHash is the value of the label pod-template-hash, computed as in Kubernetes, so that sets created by another
// control plane keep their names. collisions, if not nil, is included to distinguish templates with equal hashes.
func templateHash(t *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%v", dump.ForHash(*t)) // Write of a hash never fails
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		_, _ = h.Write(b[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// sameTemplate compares two templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(t *corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	c := *t
	c.Labels = maps.Clone(t.Labels)
	delete(c.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return c
}
