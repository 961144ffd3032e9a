// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/api/kind"
	"keelson/api/resources"
)

// DefaultTemplate fills in what a pod template leaves out. Requests are not taken from limits here and host ports
// not from container ports: that happens when a pod is made of the template.
func DefaultTemplate(t *corev1.PodTemplateSpec) { Default(&t.Spec) }

// Default fills in what the spec of a pod or template leaves out.
func Default(spec *corev1.PodSpec) {
	kind.FillZero(&spec.DNSPolicy, corev1.DNSClusterFirst)
	kind.FillZero(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	kind.FillZero(&spec.SchedulerName, corev1.DefaultSchedulerName)
	kind.Fill(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	SyncServiceAccount(spec)
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		// The two types have the same fields.
		defaultContainer((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	resources.RoundUp(spec.Overhead)
	if spec.Resources != nil {
		resources.RoundUp(spec.Resources.Limits)
		resources.RoundUp(spec.Resources.Requests)
	}
}

// SyncServiceAccount keeps the old name of the field equal to the new one, which wins.
func SyncServiceAccount(s *corev1.PodSpec) {
	kind.FillZero(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
}

func defaultContainer(container *corev1.Container) {
	if container.ImagePullPolicy == "" {
		container.ImagePullPolicy = pullPolicy(container.Image)
	}
	kind.FillZero(&container.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	kind.FillZero(&container.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range container.Ports {
		kind.FillZero(&container.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range container.Env {
		if from := container.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			kind.FillZero(&from.FieldRef.APIVersion, "v1")
		}
		if from := container.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			kind.Fill(&from.FileKeyRef.Optional, false)
		}
	}
	resources.RoundUp(container.Resources.Limits)
	resources.RoundUp(container.Resources.Requests)
	defaultProbe(container.LivenessProbe)
	defaultProbe(container.ReadinessProbe)
	defaultProbe(container.StartupProbe)
	if container.Lifecycle != nil {
		if h := container.Lifecycle.PostStart; h != nil {
			defaultHTTPGet(h.HTTPGet)
		}
		if h := container.Lifecycle.PreStop; h != nil {
			defaultHTTPGet(h.HTTPGet)
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	kind.FillZero(&p.TimeoutSeconds, 1)
	kind.FillZero(&p.PeriodSeconds, 10)
	kind.FillZero(&p.SuccessThreshold, 1)
	kind.FillZero(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		kind.Fill(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a != nil {
		kind.FillZero(&a.Path, "/")
		kind.FillZero(&a.Scheme, corev1.URISchemeHTTP)
	}
}
