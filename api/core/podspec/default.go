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
func Default(s *corev1.PodSpec) {
	kind.FillZero(&s.DNSPolicy, corev1.DNSClusterFirst)
	kind.FillZero(&s.RestartPolicy, corev1.RestartPolicyAlways)
	kind.FillZero(&s.SchedulerName, corev1.DefaultSchedulerName)
	kind.Fill(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	SyncServiceAccount(s)
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		// The two types have the same fields.
		defaultContainer((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	resources.RoundUp(s.Overhead)
	if s.Resources != nil {
		resources.RoundUp(s.Resources.Limits)
		resources.RoundUp(s.Resources.Requests)
	}
}

// SyncServiceAccount keeps the old name of the field equal to the new one, which wins.
func SyncServiceAccount(s *corev1.PodSpec) {
	kind.FillZero(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	kind.FillZero(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	kind.FillZero(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		kind.FillZero(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			kind.FillZero(&from.FieldRef.APIVersion, "v1")
		}
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			kind.Fill(&from.FileKeyRef.Optional, false)
		}
	}
	resources.RoundUp(c.Resources.Limits)
	resources.RoundUp(c.Resources.Requests)
	defaultProbe(c.LivenessProbe)
	defaultProbe(c.ReadinessProbe)
	defaultProbe(c.StartupProbe)
	if c.Lifecycle != nil {
		if h := c.Lifecycle.PostStart; h != nil {
			defaultHTTPGet(h.HTTPGet)
		}
		if h := c.Lifecycle.PreStop; h != nil {
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
