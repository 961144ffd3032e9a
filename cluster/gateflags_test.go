// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
)

// TestRuntimeConfig: what is here may be named, and nothing can be switched off.
func TestRuntimeConfig(t *testing.T) {
	for text, want := range map[string]string{
		"scheduling.k8s.io/v1beta1=true":          "",
		"scheduling.k8s.io/v1beta1/podgroups":     "",
		"api/all=true, v1=true,api/v1,apps/v1":    "",
		"scheduling.k8s.io/v1beta1=false":         "scheduling.k8s.io/v1beta1 cannot be switched off",
		"scheduling.k8s.io/v1alpha3=true":         "this server has no scheduling.k8s.io/v1alpha3",
		"scheduling.k8s.io/v1beta1/elephants":     "this server has no scheduling.k8s.io/v1beta1/elephants",
		"apps/v1=yes":                             `apps/v1: "yes" is neither true nor false`,
		"nonsense":                                "this server has no nonsense",
		"batch/v2=true,scheduling.k8s.io/v1=true": "this server has no batch/v2",
	} {
		said := ""
		if err := (runtimeConfig{}).Set(text); err != nil {
			said = err.Error()
		}
		if said != want {
			t.Errorf("%q: got %q, want %q", text, said, want)
		}
	}
}
