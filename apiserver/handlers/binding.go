// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	podkind "keelson/api/core/pod"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
)

var (
	bindingGVK = corev1.SchemeGroupVersion.WithKind("Binding")
	podsGVR    = corev1.SchemeGroupVersion.WithResource("pods")
)

// bindings serves pods/binding and bindings.
type bindings struct {
	served    *resources.Served
	admission writes.Admitter
}

// create serves pods/binding, and bindings, where the name of the object is the pod's.
func (b *bindings) create(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, _ *resources.Resource) error {
	if rq.Verb != "create" {
		return wire.MethodNotAllowed()
	}
	opts, err := createOptions(r)
	if err != nil {
		return err
	}
	body, err := decodeAs(r, rq, bindingGVK, &corev1.Binding{}, opts.FieldValidation)
	if err != nil {
		return err
	}
	binding, ok := body.(*corev1.Binding)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", body))
	}
	if err := writes.MatchNamespace(binding, rq.Namespace); err != nil {
		return err
	}
	if rq.Name == "" { // POST to bindings
		rq.Name = binding.Name
	}
	switch {
	case rq.Name == "":
		return apierrors.NewBadRequest("Name parameter required.")
	case binding.Name != rq.Name:
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := podkind.ValidateBinding(binding); len(errs) > 0 {
		return invalid.Error(errs) // not an Invalid error: Kubernetes returns the plain text
	}
	if err := b.bind(r.Context(), rq, binding, opts); err != nil {
		return err
	}
	return writeSuccess(w, r, http.StatusCreated)
}

func (b *bindings) bind(
	ctx context.Context, rq *pipeline.Request, binding *corev1.Binding, opts *metav1.CreateOptions,
) error {
	pods := b.served.BuiltIn(podsGVR)
	ar := writes.AdmissionRequest(rq, pods, admission.Create, binding, nil, opts, writes.IsDryRun(opts.DryRun))
	ar.Kind = bindingGVK
	ar.Resource = rq.GVR()
	ar.Spec = nil
	if err := b.admission.Mutate(ctx, rq, ar, pods, nil); err != nil {
		return err
	}
	step := func(_ context.Context, current kind.Object) (kind.Object, error) {
		var want metav1.Preconditions
		if binding.UID != "" {
			want.UID = &binding.UID
		}
		if binding.ResourceVersion != "" {
			want.ResourceVersion = &binding.ResourceVersion
		}
		if err := writes.CheckPreconditions(pods, ar.DryRun, current, &want); err != nil {
			return nil, err
		}
		shared, ok := current.(*corev1.Pod)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("pod %s is a %T", rq.Name, current))
		}
		pod := new(*shared) // pod.Bind replaces what it changes
		if err := podkind.Bind(pod, binding); err != nil {
			return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, rq.Name, err)
		}
		return pod, nil // a binding has no managed fields
	}
	return b.admission.Do(ctx, rq, ar, func() error {
		if !ar.DryRun {
			return updateBound(ctx, rq, pods, step)
		}
		e, err := pods.Storage.Get(ctx, rq.Namespace, rq.Name, "")
		if err == nil {
			_, err = step(ctx, e.Object)
		}
		return err
	})
}

// updateBound stores the pod that step returns for the current one.
func updateBound(
	ctx context.Context, rq *pipeline.Request, pods *resources.Resource,
	step func(context.Context, kind.Object) (kind.Object, error),
) error {
	ctx = writes.WithReserve(ctx, rq, pods, "binding")
	e, _, receipt, err := pods.Storage.Update(ctx, rq.Namespace, rq.Name, false, objects.Replace(step))
	if err != nil {
		return err
	}
	writes.RecordReceipt(rq, receipt)
	writes.RecordSubject(rq, pods, e.Object)
	return nil
}

func writeSuccess(w http.ResponseWriter, r *http.Request, code int) error {
	return writeStatus(w, r, code, &metav1.Status{Status: metav1.StatusSuccess, Code: int32(code)}) // an HTTP code
}
