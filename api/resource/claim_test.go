// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
)

// TestExpressionsOfAClaim: expressions beyond the limit of all are counted and not compiled, wherever they stand.
func TestExpressionsOfAClaim(t *testing.T) {
	selectors := func(n int) []resourcev1.DeviceSelector {
		out := make([]resourcev1.DeviceSelector, n)
		for i := range out {
			out[i].CEL = &resourcev1.CELDeviceSelector{
				Expression: "true" + strings.Repeat(" ", resourcev1.CELSelectorExpressionMaxLength-4),
			}
		}
		return out
	}
	for _, tt := range []struct{ exactly, available, want int }{{2, 2, 0}, {14, 0, 1}, {0, 14, 1}, {7, 7, 1}} {
		c := &claim{}
		c.Name = "c"
		c.Spec.Devices.Requests = []resourcev1.DeviceRequest{
			{
				Name: "a",
				Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: "c",
					Selectors:       selectors(tt.exactly),
					AllocationMode:  resourcev1.DeviceAllocationModeAll,
				},
			},
			{
				Name: "b",
				FirstAvailable: []resourcev1.DeviceSubRequest{{
					Name:            "x",
					DeviceClassName: "c",
					Selectors:       selectors(tt.available),
					AllocationMode:  resourcev1.DeviceAllocationModeAll,
				}},
			},
		}
		errs := validateSpec(c)
		if len(errs) != tt.want || len(errs) > 0 && !strings.Contains(errs[0].Error(), "bytes in all") {
			t.Errorf("%d and %d expressions of 10 KiB: %v, want %d error", tt.exactly, tt.available, errs, tt.want)
		}
	}
}
