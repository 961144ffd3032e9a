// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/meta"
)

// Validate checks a defaulted spec that is part of something other than a pod; see ValidateTemplate.
func Validate(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	c := Checker{List: check.At(path), spec: spec}
	c.podSpec()
	return c.Errors()
}

// ValidateTemplate checks a defaulted pod template, as found in replica sets and the like.
func ValidateTemplate(template *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	checker := Checker{List: check.At(path), spec: &template.Spec}
	checker.Labels("labels", template.Labels)
	if len(template.Annotations) > 0 {
		checker.Add(apivalidation.ValidateAnnotations(template.Annotations, checker.Path("annotations"))...)
		checker.In("annotations")
		checker.Annotations(template.Annotations)
		checker.Out()
	}
	checker.In("spec")
	checker.podSpec()
	if len(template.Annotations) > 0 {
		checker.ProfilesMatch(template.Annotations)
	}
	if len(template.Spec.EphemeralContainers) > 0 {
		checker.Forbidden("ephemeralContainers", "ephemeral containers not allowed in pod template")
	}
	checker.Out()
	return checker.Errors()
}

// Checker checks one pod spec. Where it is a pod's own, meta is the pod's.
type Checker struct {
	*check.List
	spec *corev1.PodSpec
	meta *metav1.ObjectMeta
}

// ForPod returns a Checker that stands at the root of p.
func ForPod(p *corev1.Pod) Checker {
	return Checker{List: check.At(nil), spec: &p.Spec, meta: &p.ObjectMeta}
}

// Pod checks what create and every update check.
func (c *Checker) Pod(p *corev1.Pod) {
	if len(p.Finalizers) > 0 {
		c.Add(meta.Finalizers(p)...)
	}
	if len(p.Annotations) > 0 {
		c.In("metadata")
		c.In("annotations")
		c.Annotations(p.Annotations)
		c.Out()
		c.Out()
	}
	c.In("spec")
	c.podSpec()
	c.podOnly()
	c.Out()
}

// podOnly checks what Kubernetes refuses in a pod and accepts in a template.
func (c *Checker) podOnly() {
	for i := range c.spec.Volumes {
		p := c.spec.Volumes[i].Projected
		if p == nil || c.spec.ServiceAccountName != "" {
			continue
		}
		for j := range p.Sources {
			if p.Sources[j].ServiceAccountToken != nil {
				c.Add(field.Forbidden(c.Path("volumes").Index(i).Child("projected", "sources").Index(j).Child(
					"serviceAccountToken"),
					"must not be specified when serviceAccountName is not set"))
			}
		}
	}
	c.In("containers")
	for i := range c.spec.Containers {
		c.Index(i)
		checkImageSpace(c.List, c.spec.Containers[i].Image)
		c.Out()
	}
	c.Out()
	c.In("initContainers")
	for i := range c.spec.InitContainers {
		c.Index(i)
		checkImageSpace(c.List, c.spec.InitContainers[i].Image)
		c.Out()
	}
	c.Out()
}

// podSpec checks the spec, at whose path the list stands. The order of the checks is the order of their errors.
func (c *Checker) podSpec() {
	spec := c.spec
	if spec.TerminationGracePeriodSeconds == nil {
		c.Required("terminationGracePeriodSeconds", "")
	}
	var name string // of the pod; a template has none
	var labels map[string]string
	if c.meta != nil {
		name = c.meta.Name
		labels = c.meta.Labels
	}
	volumes := volumes{
		List: c.List,
		list: spec.Volumes,
		pod:  name,
	}
	volumes.check()
	c.resourceClaims()
	containers := containers{
		List:    c.List,
		spec:    spec,
		volumes: &volumes,
	}
	containers.ordinary()
	containers.init()
	containers.ephemeral()
	checkPodResources(c.List, spec)
	c.hostNetworkPorts()
	check.OneOf(c.List, "restartPolicy", spec.RestartPolicy, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever)
	check.OneOf(c.List, "dnsPolicy", spec.DNSPolicy, corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst,
		corev1.DNSDefault, corev1.DNSNone)
	c.Labels("nodeSelector", spec.NodeSelector)
	checkPodSecurity(c.List, spec)
	checkAffinity(c.List, spec)
	checkDNS(c.List, spec)
	checkGates(c.List, spec)
	checkSpread(c.List, labels, spec.TopologySpreadConstraints)
	checkHostProcess(c.List, spec)
	checkHostUsers(c.List, spec)
	c.names()
	c.In("tolerations")
	Tolerations(c.List, spec.Tolerations)
	c.Out()
	c.hostAliases()
	if spec.PreemptionPolicy != nil {
		check.OneOf(c.List, "preemptionPolicy", *spec.PreemptionPolicy, corev1.PreemptLowerPriority,
			corev1.PreemptNever)
	}
	if spec.Overhead != nil {
		c.In("overhead")
		checkRequirements(c.List, spec, &corev1.ResourceRequirements{Limits: spec.Overhead}, ContainerResourceName)
		c.Out()
	}
	checkOS(c.List, spec)
	c.schedulingGroup()
}

// names checks the fields that name something.
func (c *Checker) names() {
	spec := c.spec
	if spec.ServiceAccountName != "" {
		c.Name("serviceAccountName", spec.ServiceAccountName, apivalidation.ValidateServiceAccountName)
	}
	if spec.NodeName != "" {
		c.Name("nodeName", spec.NodeName, apivalidation.NameIsDNSSubdomain)
	}
	if v := spec.ActiveDeadlineSeconds; v != nil && (*v < 1 || *v > math.MaxInt32) {
		c.Invalid("activeDeadlineSeconds", *v, validation.InclusiveRangeError(1, math.MaxInt32))
	}
	if spec.Hostname != "" {
		c.Label("hostname", spec.Hostname)
	}
	if spec.Subdomain != "" {
		c.Label("subdomain", spec.Subdomain)
	}
	if spec.PriorityClassName != "" {
		c.Name("priorityClassName", spec.PriorityClassName, apivalidation.NameIsDNSSubdomain)
	}
	if spec.RuntimeClassName != nil {
		c.Name("runtimeClassName", *spec.RuntimeClassName, apivalidation.NameIsDNSSubdomain)
	}
	c.hostnameOverride()
}

// hostnameOverride excludes the other ways to choose a host name (KEP-4762).
func (c *Checker) hostnameOverride() {
	spec := c.spec
	if spec.HostnameOverride == nil || *spec.HostnameOverride == "" {
		return
	}
	if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
		c.Forbidden("hostnameOverride", "may not be specified when setHostnameAsFQDN is true")
	}
	if spec.HostNetwork {
		c.Forbidden("hostnameOverride", "may not be specified when hostNetwork is true")
	}
	if len(*spec.HostnameOverride) > 64 {
		c.TooLong("hostnameOverride", 64)
	}
	c.Subdomain("hostnameOverride", *spec.HostnameOverride)
}

// hostNetworkPorts wants host ports equal to container ports where they are the same port; a template may leave the
// host port out.
func (c *Checker) hostNetworkPorts() {
	if !c.spec.HostNetwork {
		return
	}
	for i := range c.spec.Containers {
		for j, p := range c.spec.Containers[i].Ports {
			if p.HostPort != p.ContainerPort && (c.meta != nil || p.HostPort != 0) {
				c.Add(field.Invalid(c.Path("containers").Index(i).Child("ports").Index(j).Child("hostPort"), p.HostPort,
					"must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
}

func (c *Checker) hostAliases() {
	c.In("hostAliases")
	for i := range c.spec.HostAliases {
		c.Index(i)
		c.IP("ip", c.spec.HostAliases[i].IP)
		c.In("hostnames")
		for j, name := range c.spec.HostAliases[i].Hostnames {
			c.Index(j)
			c.Subdomain("", name)
			c.Out()
		}
		c.Out()
		c.Out()
	}
	c.Out()
}

func (c *Checker) resourceClaims() {
	if len(c.spec.ResourceClaims) == 0 {
		return
	}
	var seen check.Set
	c.In("resourceClaims")
	for i := range c.spec.ResourceClaims {
		claim := &c.spec.ResourceClaims[i]
		c.Index(i)
		switch {
		case claim.Name == "":
			c.Required("name", "")
		case !seen.Add(claim.Name):
			c.Duplicate("name", claim.Name)
		default:
			c.Label("name", claim.Name)
		}
		name := claim.ResourceClaimName
		template := claim.ResourceClaimTemplateName
		if name != nil && template != nil {
			c.Invalid("", *claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		}
		if name == nil && template == nil {
			c.Invalid("", *claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if name != nil {
			c.Name("resourceClaimName", *name, apivalidation.NameIsDNSSubdomain)
		}
		if template != nil {
			c.Name("resourceClaimTemplateName", *template, apivalidation.NameIsDNSSubdomain)
		}
		c.Out()
	}
	c.Out()
}

// schedulingGroup checks a reference to a pod group.
func (c *Checker) schedulingGroup() {
	g := c.spec.SchedulingGroup
	if g == nil {
		return
	}
	c.In("schedulingGroup")
	if g.PodGroupName == nil {
		c.Invalid("podGroupName", g.PodGroupName, "must specify one of: `podGroupName`")
	} else {
		c.Name("podGroupName", *g.PodGroupName, apivalidation.NameIsDNSSubdomain)
	}
	c.Out()
}
