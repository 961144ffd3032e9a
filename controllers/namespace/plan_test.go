// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/controllers/internal/catalog"
)

func TestConditions(t *testing.T) {
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	held := func(finalizers ...string) []metav1.PartialObjectMetadata {
		return []metav1.PartialObjectMetadata{
			{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: finalizers}},
			{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		}
	}
	good := []string{
		"NamespaceDeletionDiscoveryFailure False ResourcesDiscovered: All resources successfully discovered",
		"NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully " +
			"parsed",
		"NamespaceDeletionContentFailure False ContentDeleted: All content successfully deleted, may be waiting on " +
			"finalization",
		"NamespaceContentRemaining False ContentRemoved: All content successfully removed",
		"NamespaceFinalizersRemaining False ContentHasNoFinalizers: All content-preserving finalizers finished",
	}
	with := func(i int, text string) []string {
		out := append([]string{}, good...)
		out[i] = text
		return out
	}
	for _, tt := range []struct {
		name string
		find func(*deletionResult)
		want []string
	}{
		{"nothing left", func(*deletionResult) {}, good},
		{"discovery", func(f *deletionResult) {
			f.discovery = &catalog.PartialError{Groups: map[schema.GroupVersion]error{
				{Group: "metrics.k8s.io", Version: "v1beta1"}: errors.New("no endpoints"),
			}}
		}, with(0, "NamespaceDeletionDiscoveryFailure True DiscoveryFailed: Discovery failed for some groups, 1 "+
			"failing: "+
			"unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: no endpoints")},
		{
			"failures, sorted", func(f *deletionResult) { f.failures = []error{errors.New("b"), errors.New("a")} },
			with(2, "NamespaceDeletionContentFailure True ContentDeletionFailed: Failed to delete all resource "+
				"types, 2 remaining: a, b"),
		},
		{
			"content", func(f *deletionResult) {
				f.add(widgets, held())
				f.add(secrets, held())
			},
			with(3, "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: secrets. has "+
				"2 resource instances, "+
				"widgets.example.com has 2 resource instances"),
		},
		{"finalizers", func(f *deletionResult) { f.add(secrets, held("x/y", "x/y", "a/b")) }, func() []string {
			out := with(3, "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: "+
				"secrets. has 2 resource instances")
			out[4] = "NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has " +
				"finalizers remaining: " +
				"a/b in 1 resource instances, x/y in 1 resource instances"
			return out
		}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &deletionResult{remaining: map[schema.GroupVersionResource]int{}, finalizer: map[string]int{}}
			tt.find(f)
			begin := time.Unix(1_000_000, 0)
			was := f.conditions(nil, begin)
			var got []string
			for _, c := range was {
				got = append(got, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(was, f.conditions(was, begin.Add(time.Hour))); diff != "" {
				t.Errorf("the same findings an hour later change (-was +is):\n%s", diff)
			}
			gone := &deletionResult{}
			for i, c := range gone.conditions(was, begin.Add(time.Hour)) {
				if moved := was[i].Status == corev1.ConditionTrue; moved == c.LastTransitionTime.Equal(
					&was[i].LastTransitionTime) {
					t.Errorf("%s: was %s, last transition %v, then %v", c.Type, was[i].Status,
						was[i].LastTransitionTime, c.LastTransitionTime)
				}
			}
		})
	}
}
