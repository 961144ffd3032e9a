// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission"
)

// podTopologyLabels sets labels with the zone and region of a pod's node.
type podTopologyLabels struct{ Reader admission.Reader }

func (podTopologyLabels) Name() string { return "PodTopologyLabels" }

// Admit sets the labels of bindings, which the pod gets, and of pods with a node name.
func (p podTopologyLabels) Admit(ctx context.Context, req *admission.Request) error {
	if req.Resource != admission.Pods || req.Operation != admission.Create {
		return nil
	}
	switch obj := req.Object.(type) {
	case *corev1.Binding:
		if obj.Target.Kind != "" && obj.Target.Kind != "Node" {
			return nil
		}
		return p.label(ctx, req, obj.Target.Name, &obj.Labels)
	case *corev1.Pod:
		if obj.Spec.NodeName != "" && req.Subresource == "" {
			return p.label(ctx, req, obj.Spec.NodeName, &obj.Labels)
		}
	}
	return nil
}

func (p podTopologyLabels) label(ctx context.Context, req *admission.Request, name string, into *map[string]string) error {
	node, err := admission.Get[*corev1.Node](ctx, p.Reader, admission.Nodes, "", name)
	if admission.IsNotFound(err) {
		return nil // other code reports a missing node
	}
	if err != nil {
		return err
	}
	copied := false
	for _, key := range [...]string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		value, ok := node.Labels[key]
		if had, has := (*into)[key]; !ok || has && had == value {
			continue
		}
		if !copied {
			own := make(map[string]string, len(*into)+2)
			maps.Copy(own, *into)
			*into = own
			copied = true
			req.Changed("metadata.labels")
		}
		(*into)[key] = value
	}
	return nil
}
