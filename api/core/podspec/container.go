// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

func (c *Checker) containers() {
	c.In("containers")
	if len(c.spec.Containers) == 0 {
		c.Required("", "")
	}
	var names, hostPorts check.Set
	for i := range c.spec.Containers {
		ctr := &c.spec.Containers[i]
		c.Index(i)
		c.container(ctr)
		if !names.Add(ctr.Name) {
			c.Duplicate("name", ctr.Name)
		}
		c.lifecycle(ctr.Lifecycle)
		c.probes(ctr)
		c.restartRules(ctr, false)
		c.Out()
	}
	for i := range c.spec.Containers {
		c.Index(i)
		c.hostPorts(c.spec.Containers[i].Ports, &hostPorts)
		c.Out()
	}
	c.Out()
}

// initContainers: of these, sidecars (restartPolicy Always) may have what ordinary containers have.
func (c *Checker) initContainers() {
	if len(c.spec.InitContainers) == 0 {
		return
	}
	var names check.Set
	for i := range c.spec.Containers {
		names.Add(c.spec.Containers[i].Name)
	}
	c.In("initContainers")
	for i := range c.spec.InitContainers {
		ctr := &c.spec.InitContainers[i]
		c.Index(i)
		c.container(ctr)
		c.restartRules(ctr, true)
		if names.Has(ctr.Name) {
			c.Duplicate("name", ctr.Name)
		} else if ctr.Name != "" {
			names.Add(ctr.Name)
		}
		c.Out()
		// Init containers run one after the other, so that ports collide only within one. Kubernetes reports such a
		// collision at index 0, whichever container has it.
		var hostPorts check.Set
		c.Index(0)
		c.hostPorts(ctr.Ports, &hostPorts)
		c.Out()
		c.Index(i)
		if IsSidecar(ctr) {
			c.lifecycle(ctr.Lifecycle)
			c.probes(ctr)
		} else {
			c.initOnly(ctr)
		}
		c.Out()
	}
	c.Out()
}

func (c *Checker) initOnly(ctr *corev1.Container) {
	const why = "may not be set for init containers without restartPolicy=Always"
	if ctr.Lifecycle != nil {
		c.Forbidden("lifecycle", why)
	}
	if ctr.LivenessProbe != nil {
		c.Forbidden("livenessProbe", why)
	}
	if ctr.ReadinessProbe != nil {
		c.Forbidden("readinessProbe", why)
	}
	if ctr.StartupProbe != nil {
		c.Forbidden("startupProbe", why)
	}
	c.In("resizePolicy")
	for i, p := range ctr.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer {
			c.Index(i)
			c.Invalid("restartPolicy", p.RestartPolicy,
				"must not be set to 'RestartContainer' for non-sidecar initContainers")
			c.Out()
		}
	}
	c.Out()
}

// IsSidecar tells init containers that keep running beside the others.
func IsSidecar(ctr *corev1.Container) bool {
	return ctr.RestartPolicy != nil && *ctr.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (c *Checker) ephemeralContainers() {
	if len(c.spec.EphemeralContainers) == 0 {
		return
	}
	var targets, names check.Set
	for _, list := range [][]corev1.Container{c.spec.Containers, c.spec.InitContainers} {
		for i := range list {
			targets.Add(list[i].Name)
			names.Add(list[i].Name)
		}
	}
	c.In("ephemeralContainers")
	for i := range c.spec.EphemeralContainers {
		ec := &c.spec.EphemeralContainers[i]
		ctr := (*corev1.Container)(&ec.EphemeralContainerCommon)
		c.Index(i)
		c.container(ctr)
		c.imageSpace(ctr.Image)
		if !names.Add(ec.Name) {
			c.Duplicate("name", ec.Name)
		}
		if ec.TargetContainerName != "" && !targets.Has(ec.TargetContainerName) {
			c.NotFound("targetContainerName", ec.TargetContainerName)
		}
		c.ephemeralOnly(ctr)
		c.Out()
	}
	c.Out()
}

// ephemeralFields are the fields that an ephemeral container may have.
var ephemeralFields = []string{
	"Name", "Image", "Command", "Args", "WorkingDir", "EnvFrom", "Env", "VolumeMounts", "VolumeDevices",
	"TerminationMessagePath", "TerminationMessagePolicy", "ImagePullPolicy", "SecurityContext", "Stdin", "StdinOnce",
	"TTY",
}

func (c *Checker) ephemeralOnly(ctr *corev1.Container) {
	const why = "cannot be set for an Ephemeral Container"
	v := reflect.ValueOf(ctr).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if !slices.Contains(ephemeralFields, name) && !v.Field(i).IsZero() {
			c.Forbidden(strings.ToLower(name[:1])+name[1:], why)
		}
	}
	c.In("volumeMounts")
	for i := range ctr.VolumeMounts {
		c.Index(i)
		if ctr.VolumeMounts[i].SubPath != "" {
			c.Forbidden("subPath", why)
		}
		if ctr.VolumeMounts[i].SubPathExpr != "" {
			c.Forbidden("subPathExpr", why)
		}
		c.Out()
	}
	c.Out()
}

// container checks what all containers have.
func (c *Checker) container(ctr *corev1.Container) {
	if ctr.Name == "" {
		c.Required("name", "")
	} else {
		c.Label("name", ctr.Name)
	}
	if ctr.Image == "" {
		c.Required("image", "")
	}
	check.OneOf(c.List, "terminationMessagePolicy", ctr.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	c.ports(ctr.Ports)
	c.env(ctr)
	c.envFrom(ctr)
	c.mounts(ctr)
	c.devices(ctr)
	c.pullPolicy("imagePullPolicy", ctr.ImagePullPolicy)
	c.In("resources")
	c.requirements(&ctr.Resources, (*Checker).containerResourceName)
	c.Out()
	c.resizePolicy(ctr.ResizePolicy)
	c.security(ctr.SecurityContext)
}

func (c *Checker) imageSpace(image string) {
	if strings.TrimSpace(image) != image {
		c.Invalid("image", image, "must not have leading or trailing whitespace")
	}
}

func (c *Checker) pullPolicy(child string, p corev1.PullPolicy) {
	check.OneOf(c.List, child, p, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

// protocols in the order in which they are printed.
var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

func (c *Checker) ports(ports []corev1.ContainerPort) {
	var names check.Set
	c.In("ports")
	for i := range ports {
		containerPort := &ports[i]
		c.Index(i)
		if containerPort.Name != "" {
			if msgs := check.PortName(containerPort.Name); len(msgs) > 0 {
				for _, m := range msgs {
					c.Invalid("name", containerPort.Name, m)
				}
			} else if !names.Add(containerPort.Name) {
				c.Duplicate("name", containerPort.Name)
			}
		}
		if containerPort.ContainerPort == 0 {
			c.Required("containerPort", "")
		} else {
			c.Port("containerPort", containerPort.ContainerPort)
		}
		if containerPort.HostPort != 0 {
			c.Port("hostPort", containerPort.HostPort)
		}
		check.OneOf(c.List, "protocol", containerPort.Protocol, protocols...)
		c.Out()
	}
	c.Out()
}

// hostPorts reports host ports that are in taken already.
func (c *Checker) hostPorts(ports []corev1.ContainerPort, taken *check.Set) {
	c.In("ports")
	for i := range ports {
		if ports[i].HostPort == 0 {
			continue
		}
		key := string(ports[i].Protocol) + "/" + ports[i].HostIP + "/" + strconv.Itoa(int(ports[i].HostPort))
		if !taken.Add(key) {
			c.Index(i)
			c.Duplicate("hostPort", key)
			c.Out()
		}
	}
	c.Out()
}

func (c *Checker) resizePolicy(policies []corev1.ContainerResizePolicy) {
	if len(policies) == 0 {
		return
	}
	var seen check.Set
	c.In("resizePolicy")
	for i, p := range policies {
		if !seen.Add(string(p.ResourceName)) {
			c.Index(i)
			c.Duplicate("", p.ResourceName)
			c.Out()
		}
		check.OneOf(c.List, "", p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		check.OneOf(c.List, "", p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if c.spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			c.Invalid("", p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
	c.Out()
}

// restartRules checks a container's own restart policy and rules (KEP-5307).
func (c *Checker) restartRules(ctr *corev1.Container, init bool) {
	policy := ctr.RestartPolicy
	rules := ctr.RestartPolicyRules
	switch {
	case policy != nil:
		check.Pointer(c.List, "restartPolicy", policy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever,
			corev1.ContainerRestartPolicyOnFailure)
	case len(rules) > 0:
		c.Required("restartPolicy", "must specify restartPolicy when restart rules are used")
		if init {
			return // its rules say nothing without
		}
	}
	if len(rules) > 20 {
		c.Add(field.TooMany(c.Path("restartPolicyRules"), len(rules), 20))
	}
	c.In("restartPolicyRules")
	for i := range rules {
		c.Index(i)
		check.Pointer(c.List, "action", &rules[i].Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		c.exitCodes(rules[i].ExitCodes)
		c.Out()
	}
	c.Out()
}

func (c *Checker) exitCodes(codes *corev1.ContainerRestartRuleOnExitCodes) {
	if codes == nil {
		c.Required("exitCodes", "must be specified")
		return
	}
	c.In("exitCodes")
	check.Pointer(c.List, "operator", &codes.Operator, corev1.ContainerRestartRuleOnExitCodesOpIn,
		corev1.ContainerRestartRuleOnExitCodesOpNotIn)
	if len(codes.Values) > 255 {
		c.Add(field.TooMany(c.Path("values"), len(codes.Values), 255))
	}
	c.Out()
}
