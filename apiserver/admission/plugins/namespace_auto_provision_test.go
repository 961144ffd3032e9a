// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

type creator func(kind.Object) error

func (c creator) Create(_ context.Context, _ schema.GroupVersionResource, obj kind.Object) error {
	return c(obj)
}

func TestNamespaceAutoProvision(t *testing.T) {
	var made []string
	answer := error(nil)
	at := func(there admissiontest.Reader) namespaceAutoProvision { return namespaceAutoProvision{Reader: there} }
	creation := func(pod *corev1.Pod) *admission.Request {
		req := admissiontest.Creation(pod)
		req.Own = creator(func(obj kind.Object) error {
			made = append(made, obj.GetName())
			return answer
		})
		return req
	}
	empty := admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{})
	dry := creation(admissiontest.Pod())
	update := creation(admissiontest.Pod())
	dry.DryRun = true
	update.Operation = admission.Update
	for what, err := range map[string]error{
		"there":             at(namespaceWith(nil)).Admit(t.Context(), creation(admissiontest.Pod())),
		"nothing is stored": at(empty).Admit(t.Context(), dry),
		"an update":         at(empty).Admit(t.Context(), update),
	} {
		if err != nil || len(made) > 0 {
			t.Errorf("%s: made %q, %v", what, made, err)
		}
	}
	if err := at(empty).Admit(t.Context(), creation(admissiontest.Pod())); err != nil || !cmp.Equal(made, []string{"dev"}) {
		t.Errorf("missing: made %q, %v", made, err)
	}
	answer = apierrors.NewAlreadyExists(admission.Namespaces.GroupResource(), "dev")
	if err := at(empty).Admit(t.Context(), creation(admissiontest.Pod())); err != nil {
		t.Errorf("another was faster: %v", err)
	}
	answer = errors.New("the store is full")
	admissiontest.WantForbidden(t, "cannot be made", at(empty).Admit(t.Context(), creation(admissiontest.Pod())), "the store is full")
}
