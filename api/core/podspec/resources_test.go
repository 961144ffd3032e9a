// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/invalid"
)

// TestLimitsOfManyContainers: a container costs nothing once the list of errors is full, and errors of one container
// are in the order of their details.
func TestLimitsOfManyContainers(t *testing.T) {
	errs := check.At(field.NewPath("spec"))
	checkWithinLimits(errs, &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"a.example/x": resource.MustParse("2"), "a.example/b": resource.MustParse("2")},
		Limits:   corev1.ResourceList{"a.example/x": resource.MustParse("1"), "a.example/b": resource.MustParse("1")},
	})
	if found := errs.Errors(); len(found) != 2 || found[0].Detail >= found[1].Detail {
		t.Errorf("got %v", found)
	}
	for range 2 * invalid.Max {
		errs.Required("image", "")
	}
	if n := testing.AllocsPerRun(10, func() { checkWithinLimits(errs, &corev1.ResourceRequirements{}) }); n > 0 {
		t.Errorf("%v allocations for a container after %d errors", n, errs.Len())
	}
}
