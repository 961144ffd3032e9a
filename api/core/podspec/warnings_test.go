// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestTemplateGracePeriodWarning: defaulting makes a pod's negative grace period 1, and leaves a template's, which gets
// a warning.
func TestTemplateGracePeriodWarning(t *testing.T) {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(-1))}}
	want := "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be " +
		"treated as 1"
	if got := TemplateWarnings(template, field.NewPath("spec", "template")); !slices.Contains(got, want) {
		t.Errorf("got %q, want %q among them", got, want)
	}
}
