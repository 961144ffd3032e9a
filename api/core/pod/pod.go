// SPDX-License-Identifier: Apache-2.0

// Package pod describes pods: how one is made, changed, resized, bound, deleted
// and printed. What its spec may say is in package podspec.
package pod

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/core/podspec"
	"keelson/api/fastequal"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/resources"
)

// Pod describes pods.
func Pod(on gates.On) *kind.Kind {
	return kind.Spec[*corev1.Pod]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Pod",
			Resource:   "pods",
			Singular:   "pod",
			ShortNames: []string{"po"},
			Categories: []string{"all"},
			Namespaced: true,
		},
		New:            func() *corev1.Pod { return &corev1.Pod{} },
		NewList:        func() runtime.Object { return &corev1.PodList{} },
		Default:        setDefaults,
		PrepareCreate:  func(p *corev1.Pod) { prepareCreate(p, on) },
		PrepareUpdate:  func(p, old *corev1.Pod) { prepareUpdate(p, old, on) },
		Validate:       validateCreate,
		ValidateUpdate: validateUpdate,
		Warnings:       warnings,
		EarlyWarnings:  podspec.AppArmorWarnings,
		Fields:         selectable,
		Columns:        columns,
		Row:            row,
		Done:           done,
		Status: &kind.Sub[*corev1.Pod]{
			PrepareUpdate:  prepareStatus,
			ValidateUpdate: validateStatus,
			Warnings:       statusWarnings,
		},
		More: map[string]*kind.Sub[*corev1.Pod]{
			"ephemeralcontainers": {PrepareUpdate: prepareEphemeral, ValidateUpdate: validateEphemeralUpdate},
			"resize":              {PrepareUpdate: prepareResize, ValidateUpdate: validateResize},
		},
		Grace: grace,
	}.Erase()
}

func prepareCreate(pod *corev1.Pod, on gates.On) {
	pod.Generation = 1
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: resources.QOS(pod)}
	podspec.SyncServiceAccount(&pod.Spec)
	podspec.DropDisabled(&pod.Spec, nil, on)
	if len(pod.Spec.SchedulingGates) > 0 {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type:               corev1.PodScheduled,
			Status:             corev1.ConditionFalse,
			Reason:             corev1.PodReasonSchedulingGated,
			Message:            "Scheduling is blocked due to non-empty scheduling gates",
			LastTransitionTime: metav1.Now().Rfc3339Copy(),
		}}
	}
	mergeLabelKeys(pod)
	podspec.AppArmorFromAnnotations(pod)
}

func prepareUpdate(p, old *corev1.Pod, on gates.On) {
	p.Status = old.Status
	podspec.SyncServiceAccount(&p.Spec)
	podspec.DropDisabled(&p.Spec, &old.Spec, on)
	bumpGeneration(p, old)
}

func bumpGeneration(p, old *corev1.Pod) {
	p.Generation = old.Generation
	if !fastequal.Semantically(&p.Spec, &old.Spec) {
		p.Generation++
	}
}

// prepareStatus lets a status update change labels and annotations, as kubelets have always done, but neither the
// spec nor the owners.
func prepareStatus(p, old *corev1.Pod) {
	p.Spec = old.Spec
	p.DeletionTimestamp = old.DeletionTimestamp
	p.OwnerReferences = old.OwnerReferences
	p.Generation = old.Generation
	kind.FillZero(&p.Status.QOSClass, old.Status.QOSClass)
	keepObservedGeneration(&p.Status, &old.Status)
	keepClaims(&p.Status, &old.Status)
	dropFromStatus(&p.Status, &old.Status)
	syncPodIPs(&p.Status)
}

// keepClaims puts back the claims of a pod that a client that does not know them has dropped: without them its devices
// cannot be given back.
func keepClaims(status, old *corev1.PodStatus) {
	if len(status.ResourceClaimStatuses) == 0 {
		status.ResourceClaimStatuses = old.ResourceClaimStatuses
	}
	if status.ExtendedResourceClaimStatus == nil {
		status.ExtendedResourceClaimStatus = old.ExtendedResourceClaimStatus
	}
	if len(status.NodeAllocatableResourceClaimStatuses) == 0 {
		status.NodeAllocatableResourceClaimStatuses = old.NodeAllocatableResourceClaimStatuses
	}
}

// keepObservedGeneration puts back generations that a client that does not know them has dropped. The same type of
// condition may occur more than once; the n-th of the new ones goes with the n-th of the old.
func keepObservedGeneration(status, old *corev1.PodStatus) {
	kind.FillZero(&status.ObservedGeneration, old.ObservedGeneration)
	for i := range status.Conditions {
		nth := 0
		for j := range i {
			if status.Conditions[j].Type == status.Conditions[i].Type {
				nth++
			}
		}
		for _, c := range old.Conditions {
			if c.Type != status.Conditions[i].Type {
				continue
			}
			if nth == 0 {
				kind.FillZero(&status.Conditions[i].ObservedGeneration, c.ObservedGeneration)
				break
			}
			nth--
		}
	}
}

// grace is how long a deleted pod may take to stop: as the request says, else as the pod says. A pod that no node
// runs, because it is not bound or has finished, goes at once.
func grace(p *corev1.Pod, opts *metav1.DeleteOptions) int64 {
	period := int64(0)
	switch {
	case opts != nil && opts.GracePeriodSeconds != nil:
		period = *opts.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	if opts != nil {
		opts.GracePeriodSeconds = &period
	}
	return period
}

// selectable are the fields by which pods can be selected. status.podIPs is a known name that has never had a value.
func selectable(pod *corev1.Pod) fields.Set {
	set := make(fields.Set, 11) // with metadata's two
	set["spec.nodeName"] = pod.Spec.NodeName
	set["spec.restartPolicy"] = string(pod.Spec.RestartPolicy)
	set["spec.schedulerName"] = pod.Spec.SchedulerName
	set["spec.serviceAccountName"] = pod.Spec.ServiceAccountName
	set["spec.hostNetwork"] = strconv.FormatBool(pod.Spec.HostNetwork)
	set["status.phase"] = string(pod.Status.Phase)
	set["status.podIP"] = ""
	if len(pod.Status.PodIPs) > 0 {
		set["status.podIP"] = pod.Status.PodIPs[0].IP
	}
	set["status.podIPs"] = ""
	set["status.nominatedNodeName"] = pod.Status.NominatedNodeName
	return set
}

// mergeLabelKeys turns matchLabelKeys and mismatchLabelKeys of affinity and spread constraints into selector
// requirements on the pod's own labels, which is when their meaning is fixed (KEP-3243, KEP-3633).
func mergeLabelKeys(pod *corev1.Pod) {
	merge := func(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok && selector != nil {
				selector.MatchExpressions = append(selector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range preferred {
			term(&preferred[i].PodAffinityTerm)
		}
		for i := range required {
			term(&required[i])
		}
	}
	if a := pod.Spec.Affinity; a != nil {
		if pa := a.PodAffinity; pa != nil {
			terms(pa.RequiredDuringSchedulingIgnoredDuringExecution, pa.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if pa := a.PodAntiAffinity; pa != nil {
			terms(pa.RequiredDuringSchedulingIgnoredDuringExecution, pa.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		merge(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}
