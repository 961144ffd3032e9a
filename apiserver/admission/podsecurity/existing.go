// SPDX-License-Identifier: Apache-2.0

package podsecurity

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// Limits of the check of existing pods when a namespace gets a stricter level.
const (
	maxPodsToCheck   = 3000
	maxCheckDuration = time.Second
)

var pods = corev1.SchemeGroupVersion.WithResource("pods")

// violations describes the namespace's pods that a level would reject, grouped by violation.
func (p *Plugin) violations(ctx context.Context, namespace string, lv api.LevelVersion) []string {
	objs, err := p.reader.List(ctx, pods, namespace)
	checks, cerr := p.checks()
	if err != nil || cerr != nil {
		return []string{"failed to list pods while checking new PodSecurity enforce level"}
	}
	list := p.onePodPerController(objs)
	total := len(list)
	end := time.Now().Add(maxCheckDuration)
	list = list[:min(total, maxPodsToCheck)]
	type group struct {
		first string
		n     int
	}
	groups := map[string]*group{}
	checked := 0
	for _, pod := range list {
		result := policy.AggregateCheckResults(checks.EvaluatePod(lv, &pod.ObjectMeta, &pod.Spec))
		if checked++; !result.Allowed {
			why := result.ForbiddenReason()
			g := groups[why]
			if g == nil {
				g = &group{first: pod.Name}
				groups[why] = g
			}
			g.n++
			g.first = min(g.first, pod.Name)
		}
		if ctx.Err() != nil || time.Now().After(end) {
			break
		}
	}
	var out, faults []string
	if checked < total {
		out = append(out,
			fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", checked,
				total))
	}
	if len(groups) > 0 {
		out = append(out, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q",
			namespace, lv.String()))
	}
	for why, g := range groups {
		switch g.n {
		case 1:
			faults = append(faults, g.first+": "+why)
		case 2:
			faults = append(faults, g.first+" (and 1 other pod): "+why)
		default:
			faults = append(faults, fmt.Sprintf("%s (and %d other pods): %s", g.first, g.n-1, why))
		}
	}
	slices.Sort(faults)
	return append(out, faults...)
}

// onePodPerController puts one pod per controller first, because pods of a controller are similar.
func (p *Plugin) onePodPerController(objs []runtime.Object) []*corev1.Pod {
	var first, others []*corev1.Pod
	seen := map[types.UID]bool{}
	for _, obj := range objs {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Spec.RuntimeClassName != nil && slices.Contains(p.config.Exemptions.RuntimeClasses,
			*pod.Spec.RuntimeClassName) {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil && seen[owner.UID] {
			others = append(others, pod)
			continue
		}
		if owner != nil {
			seen[owner.UID] = true
		}
		first = append(first, pod)
	}
	return append(first, others...)
}

// template is a workload's pod template; nil for other kinds.
func template(obj runtime.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	var t *corev1.PodTemplateSpec
	switch o := obj.(type) {
	case *appsv1.Deployment:
		t = &o.Spec.Template
	case *appsv1.ReplicaSet:
		t = &o.Spec.Template
	case *appsv1.StatefulSet:
		t = &o.Spec.Template
	case *appsv1.DaemonSet:
		t = &o.Spec.Template
	case *batchv1.Job:
		t = &o.Spec.Template
	case *batchv1.CronJob:
		t = &o.Spec.JobTemplate.Spec.Template
	case *corev1.ReplicationController:
		t = o.Spec.Template
	case *corev1.PodTemplate:
		t = &o.Template
	}
	if t == nil {
		return nil, nil
	}
	return &t.ObjectMeta, &t.Spec
}

// isSignificantUpdate reports whether an update changes fields that the levels check. Other fields of a pod are
// immutable.
func isSignificantUpdate(pod, old *corev1.Pod) bool {
	if imagesDiffer(pod.Spec.Containers, old.Spec.Containers) ||
		imagesDiffer(pod.Spec.InitContainers, old.Spec.InitContainers) {
		return true
	}
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return !slices.ContainsFunc(old.Spec.EphemeralContainers, func(o corev1.EphemeralContainer) bool {
			return o.Name == c.Name && o.Image == c.Image
		})
	})
}

func imagesDiffer(a, b []corev1.Container) bool {
	return !slices.EqualFunc(a, b, func(x, y corev1.Container) bool { return x.Image == y.Image })
}
