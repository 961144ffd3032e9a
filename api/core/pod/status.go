// SPDX-License-Identifier: Apache-2.0

package pod

import (
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
func validateStatus(p, old *corev1.Pod) field.ErrorList {
	c := newChecker(p)
	if len(p.Finalizers) > 0 {
		c.Add(meta.Finalizers(p)...)
	}
	c.In("metadata")
	c.In("annotations")
	c.annotationChanges(p.Annotations, old.Annotations)
	c.Annotations(p.Annotations)
	c.Out()
	// Conditions have always been reported below metadata.
	c.In("conditions")
	for i := range p.Status.Conditions {
		switch t := p.Status.Conditions[i].Type; t {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			c.Index(i)
			c.Qualified("Type", string(t))
			c.Out()
		}
	}
	c.Out()
	c.Out()
	c.In("status")
	if p.Spec.NodeName != old.Spec.NodeName {
		c.Forbidden("nodeName", "may not be changed directly")
	}
	if n := p.Status.NominatedNodeName; n != "" && n != old.Status.NominatedNodeName {
		c.Name("nominatedNodeName", n, apivalidation.NameIsDNSSubdomain)
	}
	if p.Status.QOSClass != old.Status.QOSClass {
		c.Invalid("qosClass", p.Status.QOSClass, apivalidation.FieldImmutableErrorMsg)
	}
	c.transitions(&p.Status, old)
	c.claimStatuses(p.Status.ResourceClaimStatuses)
	c.podIPs(p.Status.PodIPs)
	c.hostIPs(&p.Status)
	c.containerStatuses("containerStatuses", p.Status.ContainerStatuses, p.Spec.Containers)
	c.containerStatuses("initContainerStatuses", p.Status.InitContainerStatuses, p.Spec.InitContainers)
	c.containerStatuses("ephemeralContainerStatuses", p.Status.EphemeralContainerStatuses, nil)
	c.Out()
	return c.Errors()
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
		return func(s *corev1.ContainerStatus) bool {
			policy := old.Spec.RestartPolicy
			if i := slices.IndexFunc(list, func(ctr corev1.Container) bool { return ctr.Name == s.Name }); i >= 0 {
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
			return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && s.State.Terminated.ExitCode != 0
		}
	}
	stays("containerStatuses", now.ContainerStatuses, old.Status.ContainerStatuses, mayRestart(old.Spec.Containers))
	stays("initContainerStatuses", now.InitContainerStatuses, old.Status.InitContainerStatuses, mayRestart(old.Spec.InitContainers))
	stays("ephemeralContainerStatuses", now.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses,
		func(*corev1.ContainerStatus) bool { return false })
}

// restartsAll tells whether a rule of some container restarts the whole pod.
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
			c.Name("name", *n, apivalidation.NameIsDNSSubdomain)
		}
		c.Out()
	}
	c.Out()
}

func (c *checker) podIPs(list []corev1.PodIP) {
	c.In("podIPs")
	ips := make([]string, len(list))
	for i := range list {
		ips[i] = list[i].IP
		c.Index(i)
		c.IP("", ips[i])
		c.Out()
	}
	if len(ips) > 1 {
		c.onePerFamily(ips, list)
		c.noneTwice(ips, func(i int) any { return list[i] })
	}
	c.Out()
}

func (c *checker) hostIPs(s *corev1.PodStatus) {
	if len(s.HostIPs) == 0 {
		return
	}
	c.In("hostIPs")
	if s.HostIP != s.HostIPs[0].IP {
		c.Index(0)
		c.Invalid("ip", s.HostIPs[0].IP, "must be equal to `hostIP`")
		c.Out()
	}
	ips := make([]string, len(s.HostIPs))
	for i := range s.HostIPs {
		ips[i] = s.HostIPs[i].IP
		c.Index(i)
		c.IP("", ips[i])
		c.Out()
	}
	if len(ips) > 1 {
		c.noneTwice(ips, func(i int) any { return s.HostIPs[i] })
		c.onePerFamily(ips, s.HostIPs)
	}
	c.Out()
}

func (c *checker) onePerFamily(ips []string, value any) {
	if dual, err := utilnet.IsDualStackIPStrings(ips); err != nil || !dual || len(ips) > 2 {
		c.Invalid("", value, "may specify no more than one IP for each IP family")
	}
}

func (c *checker) noneTwice(ips []string, value func(int) any) {
	var seen check.Set
	for i, ip := range ips {
		if !seen.Add(ip) {
			c.Index(i)
			c.Duplicate("", value(i))
			c.Out()
		}
	}
}

func (c *checker) containerStatuses(child string, list []corev1.ContainerStatus, containers []corev1.Container) {
	c.In(child)
	for i := range list {
		c.Index(i)
		if u := list[i].User; u != nil && u.Linux != nil {
			if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
				c.Forbidden("linux", "cannot be set for a windows pod")
			} else {
				c.linuxUser(u.Linux)
			}
		}
		switch child {
		case "ephemeralContainerStatuses":
			if len(list[i].AllocatedResourcesStatus) > 0 {
				c.Forbidden("allocatedResourcesStatus", "must not be specified in container status")
			}
		default:
			if j := slices.IndexFunc(containers, func(ctr corev1.Container) bool { return ctr.Name == list[i].Name }); j >= 0 {
				c.allocated(list[i].AllocatedResourcesStatus, &containers[j])
			}
		}
		c.Out()
	}
	c.Out()
}

func (c *checker) linuxUser(u *corev1.LinuxContainerUser) {
	c.In("linux")
	c.UserID("uid", &u.UID)
	c.GroupID("gid", &u.GID)
	c.In("supplementalGroups")
	for i := range u.SupplementalGroups {
		c.Index(i)
		c.GroupID("", &u.SupplementalGroups[i])
		c.Out()
	}
	c.Out()
	c.Out()
}

// allocated checks the health of devices, which must belong to resources the container asks for (KEP-4680).
func (c *checker) allocated(list []corev1.ResourceStatus, ctr *corev1.Container) {
	c.In("allocatedResourcesStatus")
	for i := range list {
		c.Index(i)
		name := string(list[i].Name)
		if claim, ok := strings.CutPrefix(name, "claim:"); ok {
			if !slices.ContainsFunc(ctr.Resources.Claims, func(r corev1.ResourceClaim) bool {
				return claim == r.Name && r.Request == "" || r.Request != "" && claim == r.Name+"/"+r.Request
			}) {
				c.Invalid("name", list[i].Name, "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty")
			}
		} else if _, ok := ctr.Resources.Requests[list[i].Name]; !ok {
			c.Invalid("name", list[i].Name, "must match one of the container's resource requests")
		}
		var seen check.Set
		c.In("resources")
		for j, r := range list[i].Resources {
			c.Index(j)
			check.Pointer(c.List, "health", &r.Health,
				corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown)
			if !seen.Add(string(r.ResourceID)) {
				c.Duplicate("resourceID", r.ResourceID)
			}
			c.Out()
		}
		c.Out()
		c.Out()
	}
	c.Out()
}
