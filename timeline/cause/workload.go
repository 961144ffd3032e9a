// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload has the fields that workload kinds share; objects of any of these kinds decode into it.
type Workload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas    *int32 `json:"replicas"`
		Parallelism *int32 `json:"parallelism"`
		Paused      bool   `json:"paused"`
		Suspend     *bool  `json:"suspend"`
		ManagedBy   string `json:"managedBy"`
		Template    struct {
			Spec struct {
				NodeSelector map[string]string `json:"nodeSelector"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration *int64             `json:"observedGeneration"`
		Desired            *int32             `json:"desiredNumberScheduled"`
		Conditions         []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// CreateError is the controller's error when it cannot create pods; empty: none, or the kind does not report it.
func (w *Workload) CreateError() string {
	if c := condition(w.Status.Conditions, "ReplicaFailure"); c != nil && c.Status == metav1.ConditionTrue {
		return said(c.Reason, c.Message)
	}
	return ""
}

// Inactive explains why the controller does not act on a workload, or why it needs no more pods; empty: no reason in
// the object.
func (w *Workload) Inactive() string {
	ended := func(kind string) *metav1.Condition {
		if c := condition(w.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue {
			return c
		}
		return nil
	}
	switch {
	case w.DeletionTimestamp != nil:
		return fmt.Sprintf("it is being deleted; finalizers: %s", or(some(w.Finalizers), "none"))
	case ended("Complete") != nil:
		return "it is complete, and its pods are gone or were never needed"
	case ended("Failed") != nil:
		return "it failed: " + said(ended("Failed").Reason, ended("Failed").Message)
	case w.Spec.ManagedBy != "" && w.Spec.ManagedBy != "kubernetes.io/job-controller":
		return fmt.Sprintf("its spec.managedBy leaves it to %s, and the job controller does nothing for it",
			w.Spec.ManagedBy)
	case w.Spec.Suspend != nil && *w.Spec.Suspend:
		return "it is suspended: `kubectl patch` its spec.suspend to false"
	case w.Spec.Replicas != nil && *w.Spec.Replicas == 0:
		return "its spec.replicas is 0: `kubectl scale` it"
	case w.Spec.Parallelism != nil && *w.Spec.Parallelism == 0:
		return "its spec.parallelism is 0"
	case w.Spec.Paused:
		return "it is paused: `kubectl rollout resume` goes on with it"
	case w.Status.Desired != nil && *w.Status.Desired == 0 && w.seen():
		if sel := w.Spec.Template.Spec.NodeSelector; len(sel) > 0 {
			return "no node is one for its pods: by its nodeSelector (" + metav1.FormatLabelSelector(
				&metav1.LabelSelector{MatchLabels: sel}) + "), affinity or taints"
		}
		return "no node is one for its pods: by its affinity, or by taints that they do not tolerate"
	}
	return ""
}

// NotObserved says that the controller has not observed the object's generation; empty: it has, or the kind does not
// report it.
func (w *Workload) NotObserved() string {
	if w.Status.ObservedGeneration != nil && w.seen() || w.Generation == 0 {
		return ""
	}
	if w.Status.ObservedGeneration == nil && len(w.Status.Conditions) > 0 {
		return ""
	}
	return "its controller has not looked at it as it is now"
}

func (w *Workload) seen() bool {
	return w.Status.ObservedGeneration != nil && *w.Status.ObservedGeneration >= w.Generation
}
