// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podkind "keelson/api/core/pod"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
	"keelson/store"
)

var (
	evictionGVK = policyv1.SchemeGroupVersion.WithKind("Eviction")
	budgetsGVR  = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
)

// maxDisruptedPods limits the evictions that a budget's controller has not yet observed.
const maxDisruptedPods = 2000

// evictions serves pods/eviction.
type evictions struct {
	served *resources.Served
	writer *writes.Writer
}

// create serves pods/eviction: it deletes the pod if its PodDisruptionBudget allows that.
func (e *evictions) create(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	if rq.Verb != "create" {
		return wire.MethodNotAllowed()
	}
	opts, err := createOptions(r)
	if err != nil {
		return err
	}
	ev, err := decodeEviction(r, rq, opts.FieldValidation)
	if err != nil {
		return err
	}
	if err := writes.MatchNamespace(ev, rq.Namespace); err != nil {
		return err
	}
	if ev.Name != rq.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	del, err := evictionOptions(ev, opts)
	if err != nil {
		return err
	}
	ar := writes.AdmissionRequest(rq, res, admission.Create, ev, nil, opts, writes.IsDryRun(opts.DryRun))
	ar.Kind = evictionGVK
	ar.Subresource = "eviction"
	ar.Spec = nil
	if err := e.writer.Admission.Mutate(r.Context(), rq, ar, res, nil); err != nil {
		return err
	}
	var failure *metav1.Status
	err = e.writer.Admission.Do(r.Context(), rq, ar, func() (err error) {
		failure, err = e.evict(r.Context(), rq, res, del)
		return err
	})
	switch {
	case err != nil:
		return err
	case failure != nil:
		return writeStatus(w, r, int(failure.Code), failure)
	}
	return writeSuccess(w, r, http.StatusCreated)
}

// decodeEviction decodes an Eviction of v1 or v1beta1.
func decodeEviction(r *http.Request, rq *pipeline.Request, fieldValidation string) (*policyv1.Eviction, error) {
	media, ok := wire.BodyMedia(r.Header.Get("Content-Type"))
	if !ok {
		return nil, wire.UnsupportedMedia(nil)
	}
	ev := &policyv1.Eviction{}
	var warnings []string
	warn := func(text string) { warnings = append(warnings, text) }
	err := withBody(r, func(b []byte) error {
		obj, err := wire.Decode(b, media, validationOf(fieldValidation), evictionGVK, ev, warn)
		if err == nil {
			ev, _ = obj.(*policyv1.Eviction)
			return nil
		}
		warnings = nil
		obj, older := wire.Decode(b, media, validationOf(fieldValidation),
			policyv1beta1.SchemeGroupVersion.WithKind("Eviction"), &policyv1beta1.Eviction{}, warn)
		if old, ok := obj.(*policyv1beta1.Eviction); ok && older == nil {
			ev = &policyv1.Eviction{ObjectMeta: old.ObjectMeta, DeleteOptions: old.DeleteOptions}
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, text := range warnings {
		rq.Warn(text)
	}
	auditSent(rq, ev, evictionGVK)
	return ev, nil
}

// evictionOptions are the delete options. Either set of options may request a dry run.
func evictionOptions(ev *policyv1.Eviction, opts *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	del := ev.DeleteOptions
	if del == nil {
		del = &metav1.DeleteOptions{}
	}
	if unsafe := del.IgnoreStoreReadErrorWithClusterBreakingPotential; unsafe != nil && *unsafe {
		return nil, invalid.New(evictionGVK.GroupKind(), ev.Name, field.ErrorList{field.Invalid(
			field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"can not be set for pod eviction, try after removing the option")})
	}
	switch {
	case len(del.DryRun) == 0:
		del.DryRun = opts.DryRun
	case len(opts.DryRun) > 0 && !slices.Equal(del.DryRun, opts.DryRun):
		//nolint:staticcheck // Kubernetes' message
		return nil, fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", opts.DryRun,
			del.DryRun)
	}
	return del, nil
}

// evict deletes the pod unless its budget forbids it. A pod that is finished, being deleted or pending does not
// count against the budget; the delete has the precondition that this is still so. failure is an error response that is
// not an apierrors error.
func (e *evictions) evict(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, opts *metav1.DeleteOptions,
) (failure *metav1.Status, err error) {
	const tries = 20
	bound := opts.Preconditions != nil && opts.Preconditions.ResourceVersion != nil
	for try := 1; ; try++ {
		pod, err := e.served.Pod(ctx, rq.Namespace, rq.Name)
		if err != nil {
			return nil, err
		}
		ended := !podkind.Active(pod)
		free := ended || pod.Status.Phase == corev1.PodPending
		pinned := !ended
		budget := ""
		if !free {
			if budget, pinned, failure, err = e.checkAndDecrement(ctx, pod, writes.IsDryRun(opts.DryRun)); err != nil ||
				failure != nil {
				return failure, err
			}
		}
		own := opts
		if pinned && !bound {
			own = opts.DeepCopy()
			if own.Preconditions == nil {
				own.Preconditions = &metav1.Preconditions{}
			}
			own.Preconditions.ResourceVersion = &pod.ResourceVersion
		}
		err = e.remove(ctx, rq, res, own)
		switch {
		case own == opts || !apierrors.IsConflict(err) ||
			own.Preconditions.UID != nil && *own.Preconditions.UID != pod.UID:
			return nil, err
		case !free:
			return nil, budgetNotObservedError(budget)
		case try == tries:
			return nil, err
		}
	}
}

// remove sets the pod's DisruptionTarget condition, and deletes it.
func (e *evictions) remove(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, opts *metav1.DeleteOptions,
) error {
	if !writes.IsDryRun(opts.DryRun) {
		full := store.UseReserve(ctx, store.FullReserve)
		entry, _, _, err := res.Storage.Update(full, rq.Namespace, rq.Name, false, objects.Replace(func(
			_ context.Context, current kind.Object,
		) (kind.Object, error) {
			if err := writes.Preconditions(res, rq.Name, current, opts.Preconditions); err != nil {
				return nil, err
			}
			shared, ok := current.(*corev1.Pod)
			if !ok {
				return nil, apierrors.NewInternalError(fmt.Errorf("pod %s is a %T", rq.Name, current))
			}
			return podkind.Evicted(shared), nil
		}))
		if err != nil {
			return err
		}
		if p := opts.Preconditions; p != nil && p.ResourceVersion != nil {
			opts = opts.DeepCopy()
			version := entry.Object.GetResourceVersion()
			opts.Preconditions.ResourceVersion = &version
		}
	}
	if err := invalidOptions("DeleteOptions", metavalidation.ValidateDeleteOptions(opts)); err != nil {
		return err
	}
	// Admission has handled the eviction, so it is not called for the deletion.
	_, _, err := e.writer.RemoveChecked(ctx, rq, res, rq.Name, opts,
		func(context.Context, kind.Object, *metav1.DeleteOptions) error { return nil })
	return err
}

// checkAndDecrement takes one disruption from the budget of a running pod. unhealthy means that the pod is unhealthy
// and may be deleted without budget while it stays so.
func (e *evictions) checkAndDecrement(
	ctx context.Context, pod *corev1.Pod, dry bool,
) (name string, unhealthy bool, failure *metav1.Status, err error) {
	budgets := e.served.BuiltIn(budgetsGVR)
	page, err := budgets.Storage.List(ctx, objects.ListQuery{
		Namespace: pod.Namespace,
		Labels:    labels.Everything(),
		Fields:    fields.Everything(),
	})
	if err != nil {
		return "", false, nil, err
	}
	var match []*policyv1.PodDisruptionBudget
	for _, entry := range page.Items {
		b, ok := entry.Object.(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && s.Matches(labels.Set(pod.Labels)) {
			match = append(match, b)
		}
	}
	switch len(match) {
	case 0:
		return "", false, nil, nil
	case 1:
	default:
		return "", false, &metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusInternalServerError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		}, nil
	}
	budget := match[0]
	if !podkind.Ready(pod) {
		policy := budget.Spec.UnhealthyPodEvictionPolicy
		if policy != nil && *policy == policyv1.AlwaysAllow ||
			budget.Status.DesiredHealthy > 0 && budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy {
			return budget.Name, true, nil, nil
		}
	}
	take := func(_ context.Context, current kind.Object) (kind.Object, error) {
		now, ok := current.(*policyv1.PodDisruptionBudget)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("budget %s is a %T", budget.Name, current))
		}
		spent, err := decremented(now, pod.Name)
		if err != nil {
			return nil, err
		}
		return spent, budgets.FieldManagers["status"].Update(current, spent, "kube-apiserver")
	}
	if dry {
		_, err = take(ctx, budget)
	} else {
		full := store.UseReserve(ctx, store.FullReserve)
		_, _, _, err = budgets.Storage.Update(full, budget.Namespace, budget.Name, false, objects.Replace(take))
	}
	return budget.Name, false, nil, err
}

// decremented returns the budget after one more disruption, or an error if none is allowed.
func decremented(budget *policyv1.PodDisruptionBudget, pod string) (*policyv1.PodDisruptionBudget, error) {
	status := &budget.Status
	forbidden := func(why, cause string) error {
		err := apierrors.NewForbidden(schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"},
			budget.Name, errors.New(why))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: policyv1.DisruptionBudgetCause,
			Message: fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", budget.Name,
				cause),
		})
		return err
	}
	switch {
	case status.ObservedGeneration < budget.Generation:
		return nil, budgetNotObservedError(budget.Name)
	case status.DisruptionsAllowed < 0:
		return nil, forbidden("pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(status.DisruptedPods) > maxDisruptedPods:
		return nil, forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller",
			"too many pending evictions not confirmed by PDB controller")
	case status.DisruptionsAllowed == 0:
		return nil, overBudgetError(budget)
	}
	next := budget.DeepCopy()
	next.Status.DisruptionsAllowed--
	if next.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
			Type:               policyv1.DisruptionAllowedCondition,
			Status:             metav1.ConditionFalse,
			Reason:             policyv1.InsufficientPodsReason,
			ObservedGeneration: next.Status.ObservedGeneration,
		})
	}
	if next.Status.DisruptedPods == nil {
		next.Status.DisruptedPods = map[string]metav1.Time{}
	}
	next.Status.DisruptedPods[pod] = metav1.Now().Rfc3339Copy()
	return next, nil
}

const overBudgetText = "Cannot evict pod as it would violate the pod's disruption budget."

// budgetNotObservedError is the error while the budget's controller has not observed the current budget or pod.
func budgetNotObservedError(budget string) error {
	err := apierrors.NewTooManyRequests(overBudgetText, 10)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget),
	})
	return err
}

// overBudgetError is the error with the budget's numbers.
func overBudgetError(b *policyv1.PodDisruptionBudget) error {
	text := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	hasMessage := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case hasMessage && c.Reason == policyv1.SyncFailedReason: // in this case the numbers are not valid
		text += " because it failed sync: " + c.Message
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		text = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name,
			b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case hasMessage:
		text += fmt.Sprintf(" (%s): %s", c.Reason, c.Message)
	}
	err := apierrors.NewTooManyRequests(overBudgetText, 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    policyv1.DisruptionBudgetCause,
		Message: text,
	})
	return err
}
