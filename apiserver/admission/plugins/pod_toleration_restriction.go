// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"keelson/api/resources"
	"keelson/apiserver/admission"
)

// podTolerationRestriction adds the namespace's tolerations to pods, and rejects tolerations that it does not allow.
// Off by default.
type podTolerationRestriction struct {
	Reader admission.Reader
	// Default are the tolerations, and Whitelist the allowed ones, for namespaces without annotations; an empty
	// Whitelist allows all.
	Default, Whitelist []corev1.Toleration
}

const (
	namespaceTolerations = "scheduler.alpha.kubernetes.io/defaultTolerations"
	namespaceWhitelist   = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

func (podTolerationRestriction) Name() string { return "PodTolerationRestriction" }

// Admit adds tolerations: the namespace's to new pods, and that for memory pressure to pods with resource requests.
func (p podTolerationRestriction) Admit(ctx context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create, admission.Update)
	if pod == nil {
		return err
	}
	var more []corev1.Toleration
	if req.Operation == admission.Create {
		if more, err = p.namespaceList(ctx, req, namespaceTolerations, p.Default); err != nil {
			return err
		}
	}
	if resources.QOS(pod) != corev1.PodQOSBestEffort {
		more = append(slices.Clip(more), corev1.Toleration{
			Key:      corev1.TaintNodeMemoryPressure,
			Operator: corev1.TolerationOpExists,
			Effect:   corev1.TaintEffectNoSchedule,
		})
	}
	if len(more) > 0 {
		merged := mergeTolerations(append(slices.Clip(pod.Spec.Tolerations), more...))
		if !apiequality.Semantic.DeepEqual(merged, pod.Spec.Tolerations) {
			pod.Spec.Tolerations = merged
			req.Changed("spec.tolerations")
		}
	}
	return p.Validate(ctx, req)
}

// Validate checks the pod's tolerations against the allowed ones.
func (p podTolerationRestriction) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := podIn(r, admission.Create, admission.Update)
	if pod == nil || len(pod.Spec.Tolerations) == 0 {
		return err
	}
	allowed, err := p.namespaceList(ctx, r, namespaceWhitelist, nil)
	if err != nil {
		return err
	}
	scope := "namespace"
	if allowed == nil {
		allowed = p.Whitelist
		scope = "cluster"
	}
	if len(allowed) == 0 {
		return nil
	}
	for i := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(allowed, func(a corev1.Toleration) bool {
			return covers(&a, &pod.Spec.Tolerations[i])
		}) {
			return fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with "+
				"its %s whitelist", scope)
		}
	}
	return nil
}

// namespaceList are the tolerations in an annotation of the namespace; without the annotation, the cluster's.
func (p podTolerationRestriction) namespaceList(
	ctx context.Context, r *admission.Request, annotation string, cluster []corev1.Toleration,
) ([]corev1.Toleration, error) {
	ns, err := r.NamespaceObject(ctx, p.Reader)
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[annotation]
	if !ok {
		return cluster, nil
	}
	list := []corev1.Toleration{}
	if text != "" {
		err = json.Unmarshal([]byte(text), &list)
	}
	return list, err
}

// mergeTolerations removes tolerations that another one covers; of equal ones the first stays.
func mergeTolerations(all []corev1.Toleration) []corev1.Toleration {
	var out []corev1.Toleration
	for i := range all {
		t := &all[i]
		covered := slices.ContainsFunc(out, func(o corev1.Toleration) bool { return covers(&o, t) }) ||
			slices.ContainsFunc(all[i+1:], func(o corev1.Toleration) bool {
				return !apiequality.Semantic.DeepEqual(&o, t) && covers(&o, t)
			})
		if !covered {
			out = append(out, *t)
		}
	}
	return out
}

// covers reports whether other tolerates everything that toleration does.
func covers(other, toleration *corev1.Toleration) bool {
	switch {
	case apiequality.Semantic.DeepEqual(other, toleration):
		return true
	case toleration.Key != other.Key && (other.Key != "" || other.Operator != corev1.TolerationOpExists):
		return false
	case toleration.Effect != other.Effect && other.Effect != "":
		return false
	case other.Effect == corev1.TaintEffectNoExecute && other.TolerationSeconds != nil &&
		(toleration.TolerationSeconds == nil || *toleration.TolerationSeconds > *other.TolerationSeconds):
		return false
	}
	switch other.Operator {
	case corev1.TolerationOpEqual, "":
		return toleration.Operator == corev1.TolerationOpEqual && toleration.Value == other.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}
