// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/resources"
)

// Warnings are what Kubernetes warns about in p as it is created.
func Warnings(p *corev1.Pod) []string {
	w := podWarner{List: check.At(nil), spec: &p.Spec}
	w.all(p.Annotations)
	return w.out
}

// TemplateWarnings are what Kubernetes warns about in the template at path.
func TemplateWarnings(t *corev1.PodTemplateSpec, path *field.Path) []string {
	w := podWarner{List: check.At(path), spec: &t.Spec, template: true}
	w.all(t.Annotations)
	return w.out
}

// podWarner walks a spec as Checker does; the errors of its list stay empty.
type podWarner struct {
	*check.List
	spec     *corev1.PodSpec
	template bool
	out      []string
}

func (w *podWarner) say(child, format string, args ...any) {
	w.out = append(w.out, fmt.Sprintf("%s: %s", w.Path(child), fmt.Sprintf(format, args...)))
}

// oldNodeLabels are node labels that have a newer name, or none.
var oldNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  "deprecated since v1.9",
	"scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// OldNodeLabel is the advice about a node label that has a newer name, or none; "" for all other labels.
func OldNodeLabel(key string) string {
	return oldNodeLabels[key]
}

var oldPodAnnotations = [][2]string{
	{
		"scheduler.alpha.kubernetes.io/critical-pod",
		`non-functional in v1.16+; use the "priorityClassName" field instead`,
	},
	{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
}

func (w *podWarner) all(annotations map[string]string) {
	w.In("spec")
	w.nodeLabels()
	w.Out()
	for _, a := range oldPodAnnotations {
		if _, ok := annotations[a[0]]; ok {
			w.annotation(a[0], a[1])
		}
	}
	w.In("spec")
	w.volumes()
	w.duplicates()
	w.bytes("overhead", w.spec.Overhead)
	w.Out()
	w.profiles(annotations)
	w.In("spec")
	w.eachContainer(func(c *corev1.Container) {
		w.bytes("resources.limits", c.Resources.Limits)
		w.bytes("resources.requests", c.Resources.Requests)
		w.env(c.Env)
	})
	w.ports()
	if s := w.spec.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		w.say("terminationGracePeriodSeconds", "must be >= 0; negative values are invalid and will be treated as 1")
	}
	w.nullSelectors()
	w.addresses()
	w.Out()
}

// addresses warns of addresses in a form that is not the usual one.
func (w *podWarner) addresses() {
	if c := w.spec.DNSConfig; c != nil {
		servers := w.Path("dnsConfig").Child("nameservers")
		for i, server := range c.Nameservers {
			w.out = append(w.out, check.WarnIP(servers.Index(i), server)...)
		}
	}
	for i, alias := range w.spec.HostAliases {
		w.out = append(w.out, check.WarnIP(w.Path("hostAliases").Index(i).Child("ip"), alias.IP)...)
	}
}

func (w *podWarner) eachContainer(visit func(*corev1.Container)) {
	eachContainerAt(w.List, w.spec, visit)
}

func (w *podWarner) annotation(key, text string) {
	w.In("metadata")
	w.In("annotations")
	w.Key(key)
	w.say("", "%s", text)
	w.Out()
	w.Out()
	w.Out()
}

func (w *podWarner) nodeLabels() {
	w.In("nodeSelector")
	for _, k := range slices.Sorted(maps.Keys(w.spec.NodeSelector)) {
		if text, ok := oldNodeLabels[k]; ok {
			w.Key(k)
			w.say("", "%s", text)
			w.Out()
		}
	}
	w.Out()
	if w.spec.Affinity != nil && w.spec.Affinity.NodeAffinity != nil {
		nodeAffinity := w.spec.Affinity.NodeAffinity
		w.In("affinity.nodeAffinity")
		if r := nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i := range r.NodeSelectorTerms {
				w.In("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms")
				w.Index(i)
				w.term(&r.NodeSelectorTerms[i], false)
				w.Out()
				w.Out()
			}
		}
		for i := range nodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w.In("preferredDuringSchedulingIgnoredDuringExecution")
			w.Index(i)
			w.In("preference")
			w.term(&nodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference, true)
			w.Out()
			w.Out()
			w.Out()
		}
		w.Out()
	}
	w.In("topologySpreadConstraints")
	for i, t := range w.spec.TopologySpreadConstraints {
		w.Index(i)
		if text, ok := oldNodeLabels[t.TopologyKey]; ok {
			w.say("topologyKey", "%s is %s", t.TopologyKey, text)
		}
		if t.LabelSelector == nil {
			w.say("labelSelector", "a null labelSelector results in matching no pod")
		}
		w.Out()
	}
	w.Out()
}

// NodeTermWarnings are what Kubernetes warns about in terms at path that select nodes.
func NodeTermWarnings(terms []corev1.NodeSelectorTerm, path *field.Path) []string {
	var out []string
	for i := range terms {
		w := podWarner{List: check.At(path.Index(i))}
		w.term(&terms[i], false)
		out = append(out, w.out...)
	}
	return out
}

// term warns of old labels and, with values, of values that no label can have: validation refuses those only in terms
// that are required.
func (w *podWarner) term(t *corev1.NodeSelectorTerm, values bool) {
	w.In("matchExpressions")
	for i, e := range t.MatchExpressions {
		w.Index(i)
		if text, ok := oldNodeLabels[e.Key]; ok {
			w.say("key", "%s is %s", e.Key, text)
		}
		for j, value := range e.Values {
			if !values {
				break
			}
			for _, msg := range validation.IsValidLabelValue(value) {
				w.out = append(w.out, fmt.Sprintf("%s: %s is invalid, %s", w.Path("values").Index(j), value, msg))
			}
		}
		w.Out()
	}
	w.Out()
}

func (w *podWarner) volumes() {
	w.In("volumes")
	for i := range w.spec.Volumes {
		volume := &w.spec.Volumes[i]
		old := func(set bool, child, text string) {
			if set {
				w.Index(i)
				w.say(child, "%s", text)
				w.Out()
			}
		}
		old(volume.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+")
		old(volume.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+")
		old(volume.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+")
		old(volume.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+")
		old(volume.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+")
		old(volume.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+")
		old(volume.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+")
		if e := volume.Ephemeral; e != nil && e.VolumeClaimTemplate != nil {
			w.out = append(w.out, ClaimWarnings(&e.VolumeClaimTemplate.Spec,
				w.Path("").Index(i).Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		}
		old(volume.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+")
		old(volume.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+")
	}
	w.Out()
	w.out = append(w.out, overlappingPaths(w.spec.Volumes)...)
}

// ClaimWarnings warns of sizes in parts of bytes.
func ClaimWarnings(s *corev1.PersistentVolumeClaimSpec, path *field.Path) []string {
	var out []string
	for _, f := range []struct {
		child string
		list  corev1.ResourceList
	}{{"requests", s.Resources.Requests}, {"limits", s.Resources.Limits}} {
		if q, ok := f.list[corev1.ResourceStorage]; ok && !resources.Whole(&q) {
			at := path.Child("resources").Child(f.child).Key(string(corev1.ResourceStorage))
			out = append(out, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", at,
				q.String()))
		}
	}
	return out
}

func (w *podWarner) duplicates() {
	var ips, names check.Set
	w.In("hostAliases")
	for i, a := range w.spec.HostAliases {
		if !ips.Add(a.IP) {
			w.Index(i)
			w.say("ip", "duplicate ip %q", a.IP)
			w.Out()
		}
	}
	w.Out()
	w.In("imagePullSecrets")
	for i, s := range w.spec.ImagePullSecrets {
		if !names.Add(s.Name) {
			w.Index(i)
			w.say("name", "duplicate name %q", s.Name)
			w.Out()
		}
	}
	for i, s := range w.spec.ImagePullSecrets {
		if s.Name == "" {
			w.Index(i)
			w.say("name", "invalid empty name %q", s.Name)
			w.Out()
		}
	}
	w.Out()
}

// bytes warns of parts of bytes.
func (w *podWarner) bytes(child string, list corev1.ResourceList) {
	w.In(child)
	for _, n := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := list[n]; ok && !resources.Whole(&q) {
			w.Key(string(n))
			w.say("", "fractional byte value %q is invalid, must be an integer", q.String())
			w.Out()
		}
	}
	w.Out()
}

// profiles warns of annotations whose fields are not set.
func (w *podWarner) profiles(annotations map[string]string) {
	if len(annotations) == 0 {
		return
	}
	const seccompText = `non-functional in v1.27+; use the "seccompProfile" field instead`
	pod := w.spec.SecurityContext
	if _, ok := annotations[seccompPod]; ok && (pod == nil || pod.SeccompProfile == nil) {
		w.annotation(seccompPod, seccompText)
	}
	EachContainer(w.spec, func(c *corev1.Container) {
		sc := c.SecurityContext
		if _, ok := annotations[seccompContainer+c.Name]; ok && (sc == nil || sc.SeccompProfile == nil) {
			w.annotation(seccompContainer+c.Name, seccompText)
		}
	})
	if w.template { // those of a pod are by now fields: see AppArmorWarnings
		w.appArmor(annotations)
	}
}

// AppArmorWarnings warn of the AppArmor annotations of a pod, before AppArmorFromAnnotations makes fields of them.
func AppArmorWarnings(p *corev1.Pod) []string {
	w := podWarner{List: check.At(nil), spec: &p.Spec}
	w.appArmor(p.Annotations)
	return w.out
}

// appArmor warns of the annotations of containers that have no field of their own, unless they say what the pod's field
// says.
func (w *podWarner) appArmor(annotations map[string]string) {
	if len(annotations) == 0 {
		return
	}
	EachContainer(w.spec, func(c *corev1.Container) {
		value, old := annotations[AppArmorPrefix+c.Name]
		if !old || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		if from := appArmorProfile(value); from == nil || !sameAppArmor(from, w.spec.SecurityContext) {
			w.annotation(AppArmorPrefix+c.Name, `deprecated since v1.30; use the "appArmorProfile" field instead`)
		}
	})
}

// env warns of variables that hide an earlier one of the same name without building on it.
func (w *podWarner) env(list []corev1.EnvVar) {
	var seen check.Set
	w.In("env")
	for i := range list {
		e := &list[i]
		if seen.Add(e.Name) {
			continue
		}
		ref := "$(" + e.Name + ")"
		if e.ValueFrom != nil || e.Value == ref || !strings.Contains(e.Value, ref) {
			w.Index(i)
			w.say("", "hides previous definition of %q, which may be dropped when using apply", e.Name)
			w.Out()
		}
	}
	w.Out()
}

// ports warns of container ports that collide, or that may.
func (w *podWarner) ports() {
	type placed struct {
		port corev1.ContainerPort
		at   *field.Path
	}
	var all []placed
	w.eachContainer(func(c *corev1.Container) {
		w.In("ports")
		for i, containerPort := range c.Ports {
			w.Index(i)
			if containerPort.HostIP != "" && containerPort.HostPort == 0 {
				w.say("", "hostIP set without hostPort: %+v", containerPort)
			}
			for _, o := range all {
				if o.port.ContainerPort != containerPort.ContainerPort || o.port.Protocol != containerPort.Protocol {
					continue
				}
				switch {
				case containerPort.HostIP == o.port.HostIP && containerPort.HostPort == o.port.HostPort:
					w.say("", "duplicate port definition with %s", o.at)
				case containerPort.HostPort == 0 || o.port.HostPort == 0:
					w.say("", "overlapping port definition with %s", o.at)
				case containerPort.HostPort == o.port.HostPort && (containerPort.HostIP == "") != (o.port.HostIP == ""):
					w.say("", "dangerously ambiguous port definition with %s", o.at)
				}
			}
			all = append(all, placed{containerPort, w.Path("")})
			w.Out()
		}
		w.Out()
	})
	w.portNames()
}

// portNames warns of port names that containers share: services and probes find the first one.
func (w *podWarner) portNames() {
	first := map[string]*field.Path{}
	w.eachContainer(func(c *corev1.Container) {
		for i, containerPort := range c.Ports {
			at := w.Path("ports").Index(i)
			other := first[containerPort.Name]
			switch {
			case containerPort.Name == "":
			case other == nil:
				first[containerPort.Name] = at
			default:
				w.out = append(w.out, fmt.Sprintf("%s: duplicate port name %q with %s, services and probes that "+
					"select ports by name will use %s", at, containerPort.Name, other, other))
			}
		}
	})
}

func (w *podWarner) nullSelectors() {
	affinity := w.spec.Affinity
	if affinity == nil {
		return
	}
	terms := func(child string, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		const text = "a null labelSelector results in matching no pod"
		w.In(child)
		for i := range required {
			if required[i].LabelSelector == nil {
				w.In("requiredDuringSchedulingIgnoredDuringExecution")
				w.Index(i)
				w.say("labelSelector", text)
				w.Out()
				w.Out()
			}
		}
		for i := range preferred {
			if preferred[i].PodAffinityTerm.LabelSelector == nil {
				w.In("preferredDuringSchedulingIgnoredDuringExecution")
				w.Index(i)
				w.say("podAffinityTerm.labelSelector", text)
				w.Out()
				w.Out()
			}
		}
		w.Out()
	}
	w.In("affinity")
	if p := affinity.PodAffinity; p != nil {
		terms("podAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := affinity.PodAntiAffinity; p != nil {
		terms("podAntiAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	w.Out()
}
