// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/api/gates"
)

// gate is a feature gate that is off by default in v1.37 and adds fields to pods.
type gate int

const (
	genericWorkload gate = iota
	evictionRequestAPI
	grpcContainerProbeTLS
	h2cContainerProbe
	volumeBindMountOptions
	emptyDirVolumeMode
	atomicWriteVolumeUserFields
	containerStopSignals
	gateCount
)

// DropDisabled removes the fields of gates that are not on, unless old (nil on create) has fields of the same gate.
func DropDisabled(s, old *corev1.PodSpec, on gates.On) {
	var a gated
	a.used[genericWorkload] = on.GenericWorkload
	if old != nil {
		a.spec(old)
	}
	a.drop = true
	a.spec(s)
}

// gated notes which gates a spec uses, or with drop removes what is not used. It writes nothing that is not there.
type gated struct {
	used [gateCount]bool
	drop bool
}

func touch[T any](a *gated, g gate, p **T) {
	switch {
	case *p == nil:
	case !a.drop:
		a.used[g] = true
	case !a.used[g]:
		*p = nil
	}
}

func touchList[T any](a *gated, g gate, list *[]T) {
	switch {
	case *list == nil:
	case !a.drop:
		a.used[g] = true
	case !a.used[g]:
		*list = nil
	}
}

func (a *gated) spec(s *corev1.PodSpec) {
	touch(a, genericWorkload, &s.SchedulingGroup)
	touchList(a, evictionRequestAPI, &s.EvictionResponders)
	for i := range s.Volumes {
		a.volume(&s.Volumes[i])
	}
	EachContainer(s, a.container)
}

func (a *gated) container(ctr *corev1.Container) {
	for _, p := range [...]*corev1.Probe{ctr.LivenessProbe, ctr.ReadinessProbe, ctr.StartupProbe} {
		if p == nil {
			continue
		}
		if p.GRPC != nil {
			touch(a, grpcContainerProbeTLS, &p.GRPC.Mode)
		}
		a.http(p.HTTPGet)
	}
	if l := ctr.Lifecycle; l != nil {
		had := l.StopSignal != nil
		touch(a, containerStopSignals, &l.StopSignal)
		if had && *l == (corev1.Lifecycle{}) {
			ctr.Lifecycle = nil
		}
		if l.PostStart != nil {
			a.http(l.PostStart.HTTPGet)
		}
		if l.PreStop != nil {
			a.http(l.PreStop.HTTPGet)
		}
	}
	for i := range ctr.VolumeMounts {
		touchList(a, volumeBindMountOptions, &ctr.VolumeMounts[i].BindMountOptions)
	}
}

func (a *gated) http(h *corev1.HTTPGetAction) {
	if h != nil {
		touch(a, h2cContainerProbe, &h.Protocol)
	}
}

func (a *gated) volume(v *corev1.Volume) {
	if s := v.EmptyDir; s != nil {
		touch(a, emptyDirVolumeMode, &s.Mode)
	}
	if s := v.Secret; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.DefaultUser)
		a.items(s.Items)
	}
	if s := v.ConfigMap; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.DefaultUser)
		a.items(s.Items)
	}
	if s := v.DownwardAPI; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.DefaultUser)
		a.files(s.Items)
	}
	if s := v.Projected; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.DefaultUser)
		for i := range s.Sources {
			a.projection(&s.Sources[i])
		}
	}
}

func (a *gated) projection(p *corev1.VolumeProjection) {
	if s := p.Secret; s != nil {
		a.items(s.Items)
	}
	if s := p.ConfigMap; s != nil {
		a.items(s.Items)
	}
	if s := p.DownwardAPI; s != nil {
		a.files(s.Items)
	}
	if s := p.ServiceAccountToken; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.User)
	}
	if s := p.ClusterTrustBundle; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.User)
	}
	if s := p.PodCertificate; s != nil {
		touch(a, atomicWriteVolumeUserFields, &s.User)
	}
}

func (a *gated) items(items []corev1.KeyToPath) {
	for i := range items {
		touch(a, atomicWriteVolumeUserFields, &items[i].User)
	}
}

func (a *gated) files(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		touch(a, atomicWriteVolumeUserFields, &items[i].User)
	}
}

// EachContainer visits the init, ordinary and ephemeral containers of s in that order.
func EachContainer(s *corev1.PodSpec, visit func(*corev1.Container)) {
	for i := range s.InitContainers {
		visit(&s.InitContainers[i])
	}
	for i := range s.Containers {
		visit(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		visit((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
}
