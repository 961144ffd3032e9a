// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"keelson/controllers/framework"
	"keelson/controllers/internal/catalog"
)

// deletionResult are the results of one pass over a namespace's content.
type deletionResult struct {
	discovery error // nil: discovery was complete
	failures  []error
	remaining map[schema.GroupVersionResource]int
	finalizer map[string]int // number of objects with each finalizer
	// grace is the longest remaining grace period of a pod.
	grace time.Duration
}

// empty reports that nothing is left and nothing is unknown.
func (f *deletionResult) empty() bool {
	return f.discovery == nil && len(f.failures) == 0 && len(f.remaining) == 0
}

// add records what is left of a resource.
func (f *deletionResult) add(gvr schema.GroupVersionResource, left []metav1.PartialObjectMetadata) {
	if len(left) == 0 {
		return
	}
	f.remaining[gvr] = len(left)
	for i := range left {
		// Count an object with duplicate finalizers once.
		for name := range sets.New(left[i].Finalizers...) {
			f.finalizer[name]++
		}
		if s := left[i].DeletionGracePeriodSeconds; s != nil {
			f.grace = max(f.grace, time.Duration(*s)*time.Second)
		}
	}
}

// conditions are the conditions of a terminating namespace with Kubernetes' messages; was are the current ones.
func (f *deletionResult) conditions(was []corev1.NamespaceCondition, now time.Time) []corev1.NamespaceCondition {
	discovery := ""
	content := ""
	if f.discovery != nil {
		discovery = f.discovery.Error()
		if partial, ok := errors.AsType[*catalog.PartialError](f.discovery); ok {
			discovery = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(partial.Groups), partial)
		}
	}
	if len(f.failures) > 0 {
		texts := make([]string, len(f.failures))
		for i, err := range f.failures {
			texts[i] = err.Error()
		}
		slices.Sort(texts)
		content = fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(texts),
			strings.Join(texts, ", "))
	}
	conds := was
	set := func(t corev1.NamespaceConditionType, problem, badReason, goodReason, good string) {
		condition := corev1.NamespaceCondition{
			Type:               t,
			Status:             corev1.ConditionFalse,
			Reason:             goodReason,
			Message:            good,
			LastTransitionTime: metav1.NewTime(now),
		}
		if problem != "" {
			condition.Status = corev1.ConditionTrue
			condition.Reason = badReason
			condition.Message = problem
		}
		conds = framework.WithCondition(conds, condition)
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, discovery, "DiscoveryFailed", "ResourcesDiscovered",
		"All resources successfully discovered")
	set(corev1.NamespaceDeletionGVParsingFailure, "", "GroupVersionParsingFailed", "ParsedGroupVersions",
		"All legacy kube types successfully parsed")
	set(corev1.NamespaceDeletionContentFailure, content, "ContentDeletionFailed", "ContentDeleted",
		"All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, f.remainingText(), "SomeResourcesRemain", "ContentRemoved",
		"All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, f.finalizerText(), "SomeFinalizersRemain", "ContentHasNoFinalizers",
		"All content-preserving finalizers finished")
	return conds
}

func (f *deletionResult) remainingText() string {
	var texts []string
	byName := func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Group, b.Group))
	}
	for _, gvr := range slices.SortedFunc(maps.Keys(f.remaining), byName) {
		texts = append(texts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, f.remaining[gvr]))
	}
	if len(texts) == 0 {
		return ""
	}
	return "Some resources are remaining: " + strings.Join(texts, ", ")
}

func (f *deletionResult) finalizerText() string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(f.finalizer)) {
		texts = append(texts, fmt.Sprintf("%s in %d resource instances", name, f.finalizer[name]))
	}
	if len(texts) == 0 {
		return ""
	}
	return "Some content in the namespace has finalizers remaining: " + strings.Join(texts, ", ")
}
