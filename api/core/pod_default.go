// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"keelson/api/resources"
)

// DefaultPodTemplate fills in what a pod template leaves out. Requests are not taken from limits here and host ports
// not from container ports: that happens when a pod is made of the template.
func DefaultPodTemplate(t *corev1.PodTemplateSpec) { DefaultPodSpec(&t.Spec) }

// DefaultPodSpec fills in what the spec of a pod or template leaves out.
func DefaultPodSpec(s *corev1.PodSpec) {
	def(&s.DNSPolicy, corev1.DNSClusterFirst)
	def(&s.RestartPolicy, corev1.RestartPolicyAlways)
	def(&s.SchedulerName, corev1.DefaultSchedulerName)
	defPtr(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	syncServiceAccount(s)
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
	roundUp(s.Overhead)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}

// syncServiceAccount keeps the old name of the field equal to the new one, which wins.
func syncServiceAccount(s *corev1.PodSpec) {
	def(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
}

// defaultPod fills in what holds for pods and not for templates.
func defaultPod(p *corev1.Pod) {
	s := &p.Spec
	DefaultPodSpec(s)
	for i := range s.Containers {
		requestsFromLimits(&s.Containers[i].Resources)
	}
	for i := range s.InitContainers {
		requestsFromLimits(&s.InitContainers[i].Resources)
	}
	defaultPodResources(p)
	defPtr(&s.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if s.HostNetwork {
		for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
			for i := range list {
				for j := range list[i].Ports {
					def(&list[i].Ports[j].HostPort, list[i].Ports[j].ContainerPort)
				}
			}
		}
	}
	syncPodIPs(&p.Status)
}

// syncPodIPs keeps podIP equal to the first of podIPs; where they differ podIP wins, for kubelets that know only it.
func syncPodIPs(s *corev1.PodStatus) {
	switch {
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
}

func requestsFromLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	for name, q := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = q.DeepCopy()
		}
	}
}

// defaultPodResources completes pod-level resources from the containers' (KEP-2837): limits of huge pages first, then
// requests, from the containers where they say something and from the pod's limits where they do not.
func defaultPodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	for name, q := range helper.AggregateContainerLimits(p, helper.PodResourcesOptions{}) {
		_, asked := r.Requests[name]
		_, limited := r.Limits[name]
		if resources.IsHugePages(name) && !asked && !limited {
			if r.Limits == nil {
				r.Limits = corev1.ResourceList{}
			}
			r.Limits[name] = q.DeepCopy()
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	ask := func(name corev1.ResourceName, q resource.Quantity) {
		if _, ok := r.Requests[name]; ok || !helper.IsSupportedPodLevelResource(name) {
			return
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = q.DeepCopy()
	}
	for name, q := range helper.AggregateContainerRequests(p, helper.PodResourcesOptions{}) {
		if resources.MayOvercommit(name) {
			ask(name, q)
		}
	}
	for name, q := range r.Limits {
		ask(name, q)
	}
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	def(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	def(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		def(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			def(&from.FieldRef.APIVersion, "v1")
		}
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			defPtr(&from.FileKeyRef.Optional, false)
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
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
	def(&p.TimeoutSeconds, 1)
	def(&p.PeriodSeconds, 10)
	def(&p.SuccessThreshold, 1)
	def(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		defPtr(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a != nil {
		def(&a.Path, "/")
		def(&a.Scheme, corev1.URISchemeHTTP)
	}
}

// roundUp rounds to thousandths, the finest the API keeps.
func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		if !q.RoundUp(resource.Milli) {
			list[name] = q
		}
	}
}

// def sets *v where it has its zero value.
func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// defPtr sets *v where it is nil.
func defPtr[T any](v **T, to T) {
	if *v == nil {
		*v = &to
	}
}
