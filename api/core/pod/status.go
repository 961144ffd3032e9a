// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/meta"
)

// validateStatus refuses what a status never does: leave the terminated state for good, change the class, move nodes.
func validateStatus(pod, old *corev1.Pod) field.ErrorList {
	checker := newChecker(pod)
	if len(pod.Finalizers) > 0 {
		checker.Add(meta.Finalizers(pod)...)
	}
	checker.In("metadata")
	checker.In("annotations")
	checker.annotationChanges(pod.Annotations, old.Annotations)
	checker.Annotations(pod.Annotations)
	checker.Out()
	checker.Out()
	checker.In("status")
	check.Each(checker.List, "conditions", pod.Status.Conditions, func(_ int, cond *corev1.PodCondition) {
		checker.generation(cond.ObservedGeneration)
		switch cond.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			checker.Qualified("Type", string(cond.Type))
		}
	})
	if pod.Spec.NodeName != old.Spec.NodeName {
		checker.Forbidden("nodeName", "may not be changed directly")
	}
	if n := pod.Status.NominatedNodeName; n != "" && n != old.Status.NominatedNodeName {
		checker.Name("nominatedNodeName", n, apivalidation.NameIsDNSSubdomain)
		if old.Spec.NodeName != "" {
			checker.Forbidden("nominatedNodeName", "may not be set on pods that are already bound to a node")
		}
	}
	checker.generation(pod.Status.ObservedGeneration)
	if pod.Status.QOSClass != old.Status.QOSClass {
		checker.Invalid("qosClass", pod.Status.QOSClass, apivalidation.FieldImmutableErrorMsg)
	}
	checker.transitions(&pod.Status, old)
	checker.claimStatuses(pod.Status.ResourceClaimStatuses)
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		checker.Within("extendedResourceClaimStatus", func() { checker.extendedStatus(s) })
	}
	checker.podIPs(&pod.Status, &old.Status)
	checker.hostIPs(&pod.Status, &old.Status)
	checker.containerStatuses("containerStatuses", pod.Status.ContainerStatuses, pod.Spec.Containers, &pod.Status)
	checker.containerStatuses("initContainerStatuses", pod.Status.InitContainerStatuses, pod.Spec.InitContainers,
		&pod.Status)
	checker.containerStatuses("ephemeralContainerStatuses", pod.Status.EphemeralContainerStatuses, nil, &pod.Status)
	checker.Out()
	return checker.Errors()
}

// transitions refuses to bring a container back that the restart policy leaves terminated.
func (c *checker) transitions(now *corev1.PodStatus, old *corev1.Pod) {
	stays := func(child string, now, was []corev1.ContainerStatus, restarts func(*corev1.ContainerStatus) bool) {
		for i := range was {
			if was[i].State.Terminated == nil || restarts(&was[i]) {
				continue
			}
			for j := range now {
				if now[j].Name == was[i].Name && now[j].State.Terminated == nil {
					c.In(child)
					c.Index(i)
					c.Forbidden("state", "may not be transitioned to non-terminated state")
					c.Out()
					c.Out()
				}
			}
		}
	}
	mayRestart := func(list []corev1.Container) func(*corev1.ContainerStatus) bool {
		return func(status *corev1.ContainerStatus) bool {
			policy := old.Spec.RestartPolicy
			if i := slices.IndexFunc(list, func(ctr corev1.Container) bool { return ctr.Name == status.Name }); i >= 0 {
				if len(list[i].RestartPolicyRules) > 0 {
					return true
				}
				if own := list[i].RestartPolicy; own != nil {
					policy = corev1.RestartPolicy(*own)
				}
			}
			if restartsAll(&old.Spec) {
				return true
			}
			return policy == corev1.RestartPolicyAlways ||
				policy == corev1.RestartPolicyOnFailure && status.State.Terminated.ExitCode != 0
		}
	}
	stays("containerStatuses", now.ContainerStatuses, old.Status.ContainerStatuses, mayRestart(old.Spec.Containers))
	stays("initContainerStatuses", now.InitContainerStatuses, old.Status.InitContainerStatuses,
		mayRestart(old.Spec.InitContainers))
	stays("ephemeralContainerStatuses", now.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses,
		func(*corev1.ContainerStatus) bool { return false })
}

// restartsAll reports whether a rule of some container restarts the whole pod.
func restartsAll(s *corev1.PodSpec) (all bool) {
	podspec.EachContainer(s, func(ctr *corev1.Container) {
		for i := range ctr.RestartPolicyRules {
			all = all || ctr.RestartPolicyRules[i].Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}
	})
	return all
}

func (c *checker) claimStatuses(list []corev1.PodResourceClaimStatus) {
	var seen check.Set
	c.In("resourceClaimStatuses")
	for i := range list {
		c.Index(i)
		name := list[i].Name
		if !slices.ContainsFunc(c.spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == name }) {
			c.Invalid("name", name, "must match the name of an entry in `spec.resourceClaims`")
		}
		if !seen.Add(name) {
			c.Duplicate("name", name)
		}
		if n := list[i].ResourceClaimName; n != nil {
			c.Name("resourceClaimName", *n, apivalidation.NameIsDNSSubdomain)
		}
		c.Out()
	}
	c.Out()
}

// generation checks an observed generation of the spec.
func (c *checker) generation(seen int64) {
	if seen < 0 {
		c.Invalid("observedGeneration", seen, "must be a non-negative integer")
	}
}

// extendedStatus checks which claim was made for the extended resources that containers ask for (KEP-5004).
func (c *checker) extendedStatus(status *corev1.PodExtendedResourceClaimStatus) {
	containers := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{c.spec.InitContainers, c.spec.Containers} {
		for i := range list {
			containers[list[i].Name] = &list[i]
		}
	}
	if len(status.RequestMappings) == 0 {
		c.Required("requestMappings", "at least one request mapping is required")
	}
	seen := map[corev1.ContainerExtendedResourceRequest]bool{}
	for i, request := range status.RequestMappings {
		at := c.Path("requestMappings").Index(i)
		if ctr := containers[request.ContainerName]; ctr == nil {
			c.Add(field.Invalid(at.Child("containerName"), request.ContainerName,
				"must match the name of an entry in spec.initContainers.name or spec.containers.name"))
		} else if _, ok := ctr.Resources.Requests[corev1.ResourceName(request.ResourceName)]; !ok {
			c.Add(field.Invalid(at.Child("resourceName"), request.ResourceName,
				"must match the extended resource name of an entry in spec.initContainers.resources.requests or "+
					"spec.containers.resources.requests"))
		}
		c.Label("requestName", request.RequestName)
		if seen[request] {
			c.Add(field.Duplicate(at.Child("containerName"), request.ContainerName),
				field.Duplicate(at.Child("resourceName"), request.ResourceName),
				field.Duplicate(at.Child("requestName"), request.RequestName))
		}
		seen[request] = true
	}
	if status.ResourceClaimName == "" {
		c.Required("resourceClaimName", "")
	} else {
		c.Name("resourceClaimName", status.ResourceClaimName, apivalidation.NameIsDNSSubdomain)
	}
}

// podIPs and hostIPs let addresses stay that the old status has.
func (c *checker) podIPs(status, old *corev1.PodStatus) {
	c.In("podIPs")
	ips := make([]string, len(status.PodIPs))
	for i := range status.PodIPs {
		ips[i] = status.PodIPs[i].IP
		if !slices.Contains(old.PodIPs, status.PodIPs[i]) {
			c.Index(i)
			c.IP("", ips[i])
			c.Out()
		}
	}
	c.onePerFamily(ips, status.PodIPs)
	switch {
	case (status.PodIP == "") != (len(ips) == 0):
		c.Invalid("", status.PodIPs, "podIP and podIPs must either both be set or both be unset")
	case status.PodIP != "" && status.PodIP != ips[0]:
		c.Index(0)
		c.Invalid("ip", ips[0], "must be equal to `podIP`")
		c.Out()
	}
	c.Out()
}

func (c *checker) hostIPs(status, old *corev1.PodStatus) {
	if len(status.HostIPs) == 0 {
		return
	}
	c.In("hostIPs")
	if status.HostIP != status.HostIPs[0].IP {
		c.Index(0)
		c.Invalid("ip", status.HostIPs[0].IP, "must be equal to `hostIP`")
		c.Out()
	}
	ips := make([]string, len(status.HostIPs))
	for i := range status.HostIPs {
		ips[i] = status.HostIPs[i].IP
		if !slices.Contains(old.HostIPs, status.HostIPs[i]) {
			c.Index(i)
			c.IP("", ips[i])
			c.Out()
		}
	}
	c.onePerFamily(ips, status.HostIPs)
	c.Out()
}

func (c *checker) onePerFamily(ips []string, value any) {
	if len(ips) < 2 {
		return
	}
	dual, err := utilnet.IsDualStackIPStrings(ips)
	if err != nil {
		c.Add(field.InternalError(c.Path(""), fmt.Errorf("failed to check for dual stack with error:%w", err)))
	}
	if !dual || len(ips) > 2 {
		c.Invalid("", value, "may specify no more than one IP for each IP family")
	}
}

func (c *checker) containerStatuses(
	child string, list []corev1.ContainerStatus, containers []corev1.Container, pod *corev1.PodStatus,
) {
	c.In(child)
	for i := range list {
		c.Index(i)
		if u := list[i].User; u != nil && u.Linux != nil {
			c.In("user")
			if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
				c.Forbidden("linux", "cannot be set for a windows pod")
			} else {
				c.linuxUser(u.Linux)
			}
			c.Out()
		}
		switch child {
		case "ephemeralContainerStatuses":
			if len(list[i].AllocatedResourcesStatus) > 0 {
				c.Forbidden("allocatedResourcesStatus", "must not be specified in container status")
			}
		default:
			var ctr *corev1.Container // unknown ones are let through (kubernetes/kubernetes#124915)
			if j := slices.IndexFunc(containers, func(ctr corev1.Container) bool {
				return ctr.Name == list[i].Name
			}); j >= 0 {
				ctr = &containers[j]
			}
			c.allocated(list[i].AllocatedResourcesStatus, ctr, pod.ExtendedResourceClaimStatus)
		}
		c.Out()
	}
	c.Out()
}

// linuxUser checks who a container runs as: the runtime says so, and knows more users than a pod may ask for.
func (c *checker) linuxUser(u *corev1.LinuxContainerUser) {
	c.In("linux")
	if u.UID < 0 || u.UID > math.MaxUint32 {
		c.Invalid("uid", u.UID, fmt.Sprintf("must be between 0 and %d, inclusive", int64(math.MaxUint32)))
	}
	c.GroupID("gid", &u.GID)
	check.Each(c.List, "supplementalGroups", u.SupplementalGroups, func(_ int, g *int64) { c.GroupID("", g) })
	c.Out()
}

// allocated checks the health of devices, which must belong to resources the container, when it is known, asks for
// (KEP-4680).
func (c *checker) allocated(
	list []corev1.ResourceStatus, ctr *corev1.Container, extended *corev1.PodExtendedResourceClaimStatus,
) {
	check.Each(c.List, "allocatedResourcesStatus", list, func(_ int, s *corev1.ResourceStatus) {
		if ctr != nil {
			c.asked(s.Name, ctr, extended)
		}
		var seen check.Set
		check.Each(c.List, "resources", s.Resources, func(_ int, r *corev1.ResourceHealth) {
			check.Pointer(c.List, "health", &r.Health,
				corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy,
				corev1.ResourceHealthStatusUnknown)
			if m := r.Message; m != nil && *m == "" {
				c.Required("message", "must be non-empty if specified")
			} else if m != nil && len(*m) > corev1.ResourceHealthMessageMaxLength {
				c.TooLong("message", corev1.ResourceHealthMessageMaxLength)
			}
			if !seen.Add(string(r.ResourceID)) {
				c.Duplicate("resourceID", r.ResourceID)
			}
		})
	})
}

// asked wants name to be a resource or a claim that the container asks for.
func (c *checker) asked(
	name corev1.ResourceName, ctr *corev1.Container, extended *corev1.PodExtendedResourceClaimStatus,
) {
	claim, ok := strings.CutPrefix(string(name), "claim:")
	if !ok {
		if _, ok := ctr.Resources.Requests[name]; !ok {
			c.Invalid("name", name, "must match one of the container's resource requests")
		}
		return
	}
	if slices.ContainsFunc(ctr.Resources.Claims, func(r corev1.ResourceClaim) bool {
		return claim == r.Name && r.Request == "" || r.Request != "" && claim == r.Name+"/"+r.Request
	}) {
		return
	}
	if extended != nil && slices.ContainsFunc(extended.RequestMappings, func(
		m corev1.ContainerExtendedResourceRequest,
	) bool {
		q, found := ctr.Resources.Requests[corev1.ResourceName(m.ResourceName)]
		return m.ContainerName == ctr.Name && claim == extended.ResourceClaimName+"/"+m.RequestName && found &&
			!q.IsZero()
	}) {
		return
	}
	c.Invalid("name", name, "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' "+
		"when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty")
}

// dropFromStatus drops what belongs to gates that are off, unless old has it.
func dropFromStatus(status, old *corev1.PodStatus) {
	if old.NodeAllocatableResourceClaimStatuses == nil {
		status.NodeAllocatableResourceClaimStatuses = nil
	}
	if old.VolumeHealth == nil {
		status.VolumeHealth = nil
	}
	lists := func(s *corev1.PodStatus) [][]corev1.ContainerStatus {
		return [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses}
	}
	shows := func(m corev1.VolumeMountStatus) bool { return m.VolumeStatus != nil }
	for _, list := range lists(old) {
		for i := range list {
			if slices.ContainsFunc(list[i].VolumeMounts, shows) {
				return
			}
		}
	}
	for _, list := range lists(status) {
		for i := range list {
			for j := range list[i].VolumeMounts {
				list[i].VolumeMounts[j].VolumeStatus = nil
			}
		}
	}
}
