// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/resources"
)

// AlwaysAdmit does nothing; old configurations name it. Off by default.
type AlwaysAdmit struct{}

// Name is the plugin's name.
func (AlwaysAdmit) Name() string { return "AlwaysAdmit" }

// AlwaysDeny refuses every write. Off by default.
type AlwaysDeny struct{}

// Name is the plugin's name.
func (AlwaysDeny) Name() string { return "AlwaysDeny" }

// Validate refuses.
func (AlwaysDeny) Validate(_ context.Context, r *Request) error {
	return Forbidden(r, "admission control is denying all modifications")
}

// NamespaceExists refuses writes in namespaces that are not there. Off by default: NamespaceLifecycle does that and more.
type NamespaceExists struct{ Reader Reader }

// Name is the plugin's name.
func (NamespaceExists) Name() string { return "NamespaceExists" }

// Validate looks for the namespace.
func (p NamespaceExists) Validate(ctx context.Context, r *Request) error {
	if r.Operation == Connect || r.Kind.Kind == "Namespace" && r.Kind.Group == "" {
		return nil
	}
	_, err := r.NamespaceObject(ctx, p.Reader)
	return err
}

// LimitPodHardAntiAffinityTopology keeps pods from demanding to be far from others by anything but the node. Off by default.
type LimitPodHardAntiAffinityTopology struct{}

// Name is the plugin's name.
func (LimitPodHardAntiAffinityTopology) Name() string { return "LimitPodHardAntiAffinityTopology" }

// Validate looks at the required anti-affinity.
func (LimitPodHardAntiAffinityTopology) Validate(_ context.Context, r *Request) error {
	if !isPod(r) || r.Operation != Create && r.Operation != Update {
		return nil
	}
	pod, err := podOf(r)
	if err != nil || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return err
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return Forbidden(r, "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname)
		}
	}
	return nil
}

// ExtendedResourceToleration lets pods that ask for extended resources onto the nodes that are tainted with their names. Off by default.
type ExtendedResourceToleration struct{}

// Name is the plugin's name.
func (ExtendedResourceToleration) Name() string { return "ExtendedResourceToleration" }

// Admit adds the tolerations.
func (ExtendedResourceToleration) Admit(_ context.Context, r *Request) error {
	if !isPod(r) || r.Operation != Create && r.Operation != Update {
		return nil
	}
	pod, err := podOf(r)
	if err != nil {
		return err
	}
	names := map[corev1.ResourceName]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if resources.IsExtended(name) {
					names[name] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := corev1.Toleration{Key: string(name), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		if !hasToleration(pod.Spec.Tolerations, &t) {
			pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations), t)
			r.Changed("spec.tolerations")
		}
	}
	return nil
}
