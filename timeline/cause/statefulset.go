// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	podapi "keelson/api/core/pod"
)

// Update says why the update of a StatefulSet does not go on, and which pod it waits for. pods are the set's. Both are
// empty: there is no update, or it goes on.
func Update(set *appsv1.StatefulSet, pods []corev1.Pod) (why, waitsFor string) {
	old, updated := byRevision(set, pods)
	if len(old) == 0 || set.Status.UpdateRevision == "" {
		return "", ""
	}
	names := make([]string, len(old))
	for i, p := range old {
		names[i] = p.Name
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return fmt.Sprintf("updateStrategy OnDelete: %s keeps the old template until somebody deletes it; "+
			"`kubectl delete pod %s -n %s`", some(names), names[0], set.Namespace), names[0]
	}
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		for _, p := range updated {
			if !podapi.Ready(p) {
				return fmt.Sprintf("the update to %s waits for %s, which has the new template and is not Ready",
					set.Status.UpdateRevision, p.Name), p.Name
			}
		}
		return "", ""
	}
	all := slices.Concat(old, updated)
	slices.SortFunc(all, func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(a), ordinal(b)) })
	for _, p := range all {
		switch {
		case podapi.Terminal(p) || p.DeletionTimestamp == nil && podapi.Ready(p):
			continue
		case p.DeletionTimestamp != nil:
			return fmt.Sprintf("the update to %s waits until %s is gone", set.Status.UpdateRevision, p.Name), p.Name
		case slices.Contains(old, p):
			return fmt.Sprintf("the update to %s waits: OrderedReady replaces no pod while %s is not Ready, even "+
				"if the old template is why; `kubectl delete pod %s -n %s` makes it with the new one",
				set.Status.UpdateRevision, p.Name, p.Name, set.Namespace), p.Name
		default:
			return fmt.Sprintf("the update to %s waits for %s, which has the new template and is not Ready",
				set.Status.UpdateRevision, p.Name), p.Name
		}
	}
	return "", ""
}

// byRevision returns the set's pods at or above the partition: those of other revisions than the update's, and the
// updated ones.
func byRevision(set *appsv1.StatefulSet, pods []corev1.Pod) (old, updated []*corev1.Pod) {
	from := 0
	if set.Spec.Ordinals != nil {
		from = int(set.Spec.Ordinals.Start)
	}
	below := from
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		below += int(*r.Partition)
	}
	for i := range pods {
		p := &pods[i]
		if p.Labels[appsv1.StatefulSetRevisionLabel] == set.Status.UpdateRevision || ordinal(p) < below {
			updated = append(updated, p)
		} else {
			old = append(old, p)
		}
	}
	return old, updated
}

// ordinal is the number at the end of a pod's name.
func ordinal(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Name[strings.LastIndexByte(p.Name, '-')+1:])
	if err != nil {
		return 0
	}
	return n
}
