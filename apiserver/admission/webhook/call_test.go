// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestVerdict: v1 answers are looked at closely, those of v1beta1 are not.
func TestVerdict(t *testing.T) {
	const v1, v1beta1 = "admission.k8s.io/v1", "admission.k8s.io/v1beta1"
	patchType := admissionv1.PatchTypeJSONPatch
	other := admissionv1.PatchType("Other")
	for _, tt := range []struct {
		name, asked, answered string
		mutating              bool
		response              *admissionv1.AdmissionResponse
		want                  string // error
		patched               bool
	}{
		{
			name:     "nothing",
			asked:    "v1",
			answered: v1,
			want:     "webhook response was absent",
		},
		{
			name:     "another version",
			asked:    "v1",
			answered: v1beta1,
			response: &admissionv1.AdmissionResponse{UID: "u"},
			want:     "webhook response was absent",
		},
		{
			name:     "another version, beta asked",
			asked:    "v1beta1",
			answered: v1,
			response: &admissionv1.AdmissionResponse{UID: "u"},
			want:     "webhook response was absent",
		},
		{
			name:     "another uid",
			asked:    "v1",
			answered: v1,
			response: &admissionv1.AdmissionResponse{UID: "x"},
			want:     `expected response.uid="u", got "x"`,
		},
		{
			name:     "no version",
			asked:    "v1",
			response: &admissionv1.AdmissionResponse{UID: "u"},
			want:     "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
		},
		{
			name:     "patch of a judge",
			asked:    "v1",
			answered: v1,
			response: &admissionv1.AdmissionResponse{UID: "u", Patch: []byte("[]")},
			want:     "validating webhook may not return response.patch",
		},
		{
			name:     "patch without a type",
			asked:    "v1",
			answered: v1,
			mutating: true,
			response: &admissionv1.AdmissionResponse{UID: "u", Patch: []byte("[]")},
			want:     "webhook returned response.patch but not response.patchType",
		},
		{
			name:     "patch",
			asked:    "v1",
			answered: v1,
			mutating: true,
			response: &admissionv1.AdmissionResponse{UID: "u", Patch: []byte("[]"), PatchType: &patchType},
			patched:  true,
		},
		{name: "beta: no uid, no version", asked: "v1beta1", response: &admissionv1.AdmissionResponse{}},
		{
			name:     "beta: patch of a judge",
			asked:    "v1beta1",
			answered: v1beta1,
			response: &admissionv1.AdmissionResponse{Patch: []byte("[]"), PatchType: &patchType},
		},
		{
			name:     "beta: patch without a type",
			asked:    "v1beta1",
			answered: v1beta1,
			mutating: true,
			response: &admissionv1.AdmissionResponse{Patch: []byte("[]")},
			patched:  true,
		},
		{
			name:     "beta: patch of another type",
			asked:    "v1beta1",
			answered: v1beta1,
			mutating: true,
			response: &admissionv1.AdmissionResponse{Patch: []byte("[]"), PatchType: &other},
			patched:  true,
		},
		{
			name:     "beta: a type without a patch",
			asked:    "v1beta1",
			answered: v1beta1,
			mutating: true,
			response: &admissionv1.AdmissionResponse{PatchType: &patchType},
		},
	} {
		a := &admissionv1.AdmissionReview{Response: tt.response}
		if tt.answered != "" {
			a.TypeMeta = metav1.TypeMeta{APIVersion: tt.answered, Kind: "AdmissionReview"}
		}
		got, err := responseOf(a, tt.asked, "u", tt.mutating)
		switch {
		case tt.want != "":
			if err == nil || err.Error() != tt.want {
				t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.patched != (len(got.Patch) > 0) || tt.patched != (got.PatchType != nil && *got.PatchType == patchType):
			t.Errorf("%s: got patch %q, type %v", tt.name, got.Patch, got.PatchType)
		}
	}
}
