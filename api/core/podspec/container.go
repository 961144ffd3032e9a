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

// containers are those of one pod or template: ordinary, init and ephemeral.
type containers struct {
	*check.List
	spec    *corev1.PodSpec
	volumes *volumes
}

func (c *containers) ordinary() {
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
		checkLifecycle(c.List, c.spec, ctr.Lifecycle)
		checkProbes(c.List, c.spec, ctr)
		checkRestartRules(c.List, ctr, false)
		c.Out()
	}
	for i := range c.spec.Containers {
		c.Index(i)
		checkHostPorts(c.List, c.spec.Containers[i].Ports, &hostPorts)
		c.Out()
	}
	c.Out()
}

// init checks the init containers: of these, sidecars (restartPolicy Always) may have what ordinary containers have.
func (c *containers) init() {
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
		checkRestartRules(c.List, ctr, true)
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
		checkHostPorts(c.List, ctr.Ports, &hostPorts)
		c.Out()
		c.Index(i)
		if IsSidecar(ctr) {
			checkLifecycle(c.List, c.spec, ctr.Lifecycle)
			checkProbes(c.List, c.spec, ctr)
		} else {
			checkInitOnly(c.List, ctr)
		}
		c.Out()
	}
	c.Out()
}

func checkInitOnly(errs *check.List, ctr *corev1.Container) {
	const why = "may not be set for init containers without restartPolicy=Always"
	if ctr.Lifecycle != nil {
		errs.Forbidden("lifecycle", why)
	}
	if ctr.LivenessProbe != nil {
		errs.Forbidden("livenessProbe", why)
	}
	if ctr.ReadinessProbe != nil {
		errs.Forbidden("readinessProbe", why)
	}
	if ctr.StartupProbe != nil {
		errs.Forbidden("startupProbe", why)
	}
	errs.In("resizePolicy")
	for i, p := range ctr.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer {
			errs.Index(i)
			errs.Invalid("restartPolicy", p.RestartPolicy,
				"must not be set to 'RestartContainer' for non-sidecar initContainers")
			errs.Out()
		}
	}
	errs.Out()
}

// IsSidecar reports whether an init container keeps running next to the others.
func IsSidecar(ctr *corev1.Container) bool {
	return ctr.RestartPolicy != nil && *ctr.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (c *containers) ephemeral() {
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
		checkImageSpace(c.List, ctr.Image)
		if !names.Add(ec.Name) {
			c.Duplicate("name", ec.Name)
		}
		if ec.TargetContainerName != "" && !targets.Has(ec.TargetContainerName) {
			c.NotFound("targetContainerName", ec.TargetContainerName)
		}
		checkEphemeralOnly(c.List, ctr)
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

func checkEphemeralOnly(errs *check.List, ctr *corev1.Container) {
	const why = "cannot be set for an Ephemeral Container"
	v := reflect.ValueOf(ctr).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if !slices.Contains(ephemeralFields, name) && !v.Field(i).IsZero() {
			errs.Forbidden(strings.ToLower(name[:1])+name[1:], why)
		}
	}
	errs.In("volumeMounts")
	for i := range ctr.VolumeMounts {
		errs.Index(i)
		if ctr.VolumeMounts[i].SubPath != "" {
			errs.Forbidden("subPath", why)
		}
		if ctr.VolumeMounts[i].SubPathExpr != "" {
			errs.Forbidden("subPathExpr", why)
		}
		errs.Out()
	}
	errs.Out()
}

// container checks what all containers have.
func (c *containers) container(ctr *corev1.Container) {
	check.NeedsForm(c.List, "name", ctr.Name, c.Label)
	check.Needs(c.List, "image", ctr.Image)
	check.OneOf(c.List, "terminationMessagePolicy", ctr.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	checkPorts(c.List, ctr.Ports)
	c.env(ctr)
	checkEnvFrom(c.List, ctr)
	c.mounts(ctr)
	c.devices(ctr)
	checkPullPolicy(c.List, "imagePullPolicy", ctr.ImagePullPolicy)
	c.In("resources")
	checkRequirements(c.List, c.spec, &ctr.Resources, ContainerResourceName)
	c.Out()
	checkResizePolicy(c.List, c.spec, ctr.ResizePolicy)
	checkSecurity(c.List, c.spec, ctr.SecurityContext)
}

func checkImageSpace(errs *check.List, image string) {
	if strings.TrimSpace(image) != image {
		errs.Invalid("image", image, "must not have leading or trailing whitespace")
	}
}

func checkPullPolicy(errs *check.List, child string, p corev1.PullPolicy) {
	check.OneOf(errs, child, p, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

// protocols in the order in which they are printed.
var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

func checkPorts(errs *check.List, ports []corev1.ContainerPort) {
	var names check.Set
	errs.In("ports")
	for i := range ports {
		containerPort := &ports[i]
		errs.Index(i)
		if containerPort.Name != "" {
			if msgs := check.PortName(containerPort.Name); len(msgs) > 0 {
				for _, m := range msgs {
					errs.Invalid("name", containerPort.Name, m)
				}
			} else if !names.Add(containerPort.Name) {
				errs.Duplicate("name", containerPort.Name)
			}
		}
		if containerPort.ContainerPort == 0 {
			errs.Required("containerPort", "")
		} else {
			errs.Port("containerPort", containerPort.ContainerPort)
		}
		if containerPort.HostPort != 0 {
			errs.Port("hostPort", containerPort.HostPort)
		}
		check.OneOf(errs, "protocol", containerPort.Protocol, protocols...)
		errs.Out()
	}
	errs.Out()
}

// checkHostPorts reports host ports that are in taken already.
func checkHostPorts(errs *check.List, ports []corev1.ContainerPort, taken *check.Set) {
	errs.In("ports")
	for i := range ports {
		if ports[i].HostPort == 0 {
			continue
		}
		key := string(ports[i].Protocol) + "/" + ports[i].HostIP + "/" + strconv.Itoa(int(ports[i].HostPort))
		if !taken.Add(key) {
			errs.Index(i)
			errs.Duplicate("hostPort", key)
			errs.Out()
		}
	}
	errs.Out()
}

func checkResizePolicy(errs *check.List, spec *corev1.PodSpec, policies []corev1.ContainerResizePolicy) {
	if len(policies) == 0 {
		return
	}
	var seen check.Set
	errs.In("resizePolicy")
	for i, p := range policies {
		if !seen.Add(string(p.ResourceName)) {
			errs.Index(i)
			errs.Duplicate("", p.ResourceName)
			errs.Out()
		}
		check.OneOf(errs, "", p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		check.OneOf(errs, "", p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			errs.Invalid("", p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
	errs.Out()
}

// checkRestartRules checks a container's own restart policy and rules (KEP-5307).
func checkRestartRules(errs *check.List, ctr *corev1.Container, init bool) {
	policy := ctr.RestartPolicy
	rules := ctr.RestartPolicyRules
	switch {
	case policy != nil:
		check.Pointer(errs, "restartPolicy", policy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever,
			corev1.ContainerRestartPolicyOnFailure)
	case len(rules) > 0:
		errs.Required("restartPolicy", "must specify restartPolicy when restart rules are used")
		if init {
			return // its rules say nothing without
		}
	}
	if len(rules) > 20 {
		errs.Add(field.TooMany(errs.Path("restartPolicyRules"), len(rules), 20))
	}
	errs.In("restartPolicyRules")
	for i := range rules {
		errs.Index(i)
		check.Pointer(errs, "action", &rules[i].Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		checkExitCodes(errs, rules[i].ExitCodes)
		errs.Out()
	}
	errs.Out()
}

func checkExitCodes(errs *check.List, codes *corev1.ContainerRestartRuleOnExitCodes) {
	if codes == nil {
		errs.Required("exitCodes", "must be specified")
		return
	}
	errs.In("exitCodes")
	check.Pointer(errs, "operator", &codes.Operator, corev1.ContainerRestartRuleOnExitCodesOpIn,
		corev1.ContainerRestartRuleOnExitCodesOpNotIn)
	if len(codes.Values) > 255 {
		errs.Add(field.TooMany(errs.Path("values"), len(codes.Values), 255))
	}
	errs.Out()
}
