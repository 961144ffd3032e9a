// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/framework"
	"keelson/controllers/internal/history"
	"keelson/event"
)

// act executes the plan's stages up to the first failure.
func (c *Controller) act(ctx context.Context, key framework.Key, snap snapshot, steps plan, h *history.State) error {
	if len(steps.stages) == 0 {
		return nil
	}
	a := &executor{Controller: c, s: snap, templates: map[string]*corev1.PodTemplateSpec{}}
	for _, name := range []string{snap.current, snap.update} {
		t, err := history.Template(h.Named(name))
		if err != nil {
			return fmt.Errorf("revision %s: %w", name, err)
		}
		a.templates[name] = t
	}
	detail := &event.Reconcile{EventSeen: c.loop.QueuedAt(key), Wants: replicas(snap.set), Has: len(snap.pods)}
	all := slices.Concat(steps.stages...)
	var uids []types.UID
	var replaced framework.Replaced
	for _, x := range all {
		switch x.verb {
		case create:
			detail.Creates = append(detail.Creates, podName(snap.set, x.n))
		case remove:
			detail.Deletes = append(detail.Deletes, x.pod.Name)
			uids = append(uids, x.pod.UID)
			replaced.Count(x.pod, revisionOf(x.pod) != snap.update && x.n-start(snap.set) < replicas(snap.set))
		case restoreIdentity, createClaims, setClaimOwners:
		}
	}
	detail.Because = replaced.String()
	c.expect.Expect(snap.set.UID, len(detail.Creates), uids...)
	err := a.run(ctx, steps.stages, func(x action) { // not done: it will not be observed
		switch x.verb {
		case create:
			c.expect.CreationObserved(snap.set.UID, 1)
		case remove:
			c.expect.DeletionObserved(snap.set.UID, x.pod.UID)
		case restoreIdentity, createClaims, setClaimOwners:
		}
	})
	if len(detail.Creates)+len(uids) > 0 {
		c.env.Reconciled(event.Subject{
			Resource:  "statefulsets",
			Namespace: snap.set.Namespace,
			Name:      snap.set.Name,
			UID:       string(snap.set.UID),
		}, snap.now, detail, err)
	}
	return err
}

// executor executes one pass.
type executor struct {
	*Controller
	s         snapshot
	templates map[string]*corev1.PodTemplateSpec // by revision name
}

// run executes the stages in order up to the first failure. It calls undone for every action that was not done or
// failed.
func (a *executor) run(ctx context.Context, stages [][]action, undone func(action)) (err error) {
	for _, stage := range stages {
		done := make([]bool, len(stage))
		if err == nil {
			var next atomic.Int64
			_, _, err = framework.SlowStart(len(stage), 1, func() (err error) {
				i := next.Add(1) - 1
				done[i], err = a.execute(ctx, stage[i])
				return err
			})
		}
		for i, x := range stage {
			if !done[i] {
				undone(x)
			}
		}
	}
	return err
}

// execute executes an action and reports whether the informer will observe it.
func (a *executor) execute(ctx context.Context, x action) (bool, error) {
	switch x.verb {
	case create:
		return a.create(ctx, x)
	case remove:
		return a.remove(ctx, x.pod)
	case restoreIdentity:
		return true, a.restoreIdentity(ctx, x)
	case createClaims:
		return true, a.ensureClaims(ctx, x.n)
	case setClaimOwners:
		return true, a.setClaimOwners(ctx, x)
	}
	return false, nil
}

func (a *executor) create(ctx context.Context, x action) (bool, error) {
	name := podName(a.s.set, x.n)
	if err := a.claimsAvailable(ctx, x.n); err != nil {
		return false, err
	}
	if err := a.ensureClaims(ctx, x.n); err != nil {
		a.podEvent("create", name, err)
		return false, err
	}
	_, err := a.env.Client.PodWrites(a.s.set.Namespace).Create(ctx,
		newPod(a.s.set, a.templates[x.revision], x.revision, x.n))
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil // the namespace is terminating
	case apierrors.IsAlreadyExists(err) && !a.ownedByOther(name):
		return false, err // the cache is stale
	}
	a.podEvent("create", name, err)
	return err == nil, err
}

// ownedByOther reports whether the cache has a pod with this name that does not belong to the set.
func (a *executor) ownedByOther(name string) bool {
	obj, ok, err := a.pods.GetByKey(a.s.set.Namespace + "/" + name)
	p, isPod := obj.(*corev1.Pod)
	return err == nil && ok && isPod && !metav1.IsControlledBy(p, a.s.set)
}

func (a *executor) remove(ctx context.Context, p *corev1.Pod) (bool, error) {
	uid := p.UID
	err := a.env.Client.PodWrites(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil // deleted or recreated: its event will come
	}
	a.podEvent("delete", p.Name, err)
	return err == nil, err
}

func (a *executor) restoreIdentity(ctx context.Context, x action) error {
	p := x.pod.DeepCopy()
	p.Labels = withPodLabels(a.s.set, x.n, p.Labels)
	p.Spec.Volumes = volumes(a.s.set, x.n, p.Spec.Volumes)
	_, err := a.env.Client.CoreV1().Pods(p.Namespace).Update(ctx, p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if !apierrors.IsConflict(err) {
		a.podEvent("update", p.Name, err)
	}
	return err
}

// claimsAvailable checks on the server that the claims that pod n will reuse are still available. The cache may not
// show yet that a claim was owned by the previous pod, so that the garbage collector will delete it. If claims are
// always retained, no check is needed.
func (a *executor) claimsAvailable(ctx context.Context, n int) error {
	onDeleted, onScaled := retention(a.s.set)
	for i := range a.s.set.Spec.VolumeClaimTemplates {
		has := a.s.claim(claimName(a.s.set, &a.s.set.Spec.VolumeClaimTemplates[i], n))
		if has == nil || !onDeleted && !onScaled && len(has.OwnerReferences) == 0 {
			continue
		}
		live, err := a.env.Client.CoreV1().PersistentVolumeClaims(has.Namespace).Get(ctx, has.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return claimTerminating(has.Name) // the cache will show it
		case err != nil:
			return fmt.Errorf("read claim %s/%s: %w", has.Namespace, has.Name, err)
		case live.DeletionTimestamp != nil, claimWillBeDeleted(live, a.s.set, n):
			return claimTerminating(has.Name)
		}
	}
	return nil
}

// ensureClaims creates the missing claims of pod n.
func (a *executor) ensureClaims(ctx context.Context, n int) error {
	var errs []error
	var waits error
	for _, want := range newClaims(a.s.set, n) {
		has := a.s.claim(want.Name)
		switch {
		case has == nil:
			_, err := a.env.Client.CoreV1().PersistentVolumeClaims(want.Namespace).Create(ctx, want,
				metav1.CreateOptions{})
			if err != nil {
				errs = append(errs, fmt.Errorf("failed to create PVC %s: %w", want.Name, err))
			}
			if !apierrors.IsAlreadyExists(err) {
				a.claimEvent("create", want.Name, podName(a.s.set, n), err)
			}
		case has.DeletionTimestamp != nil:
			waits = claimTerminating(want.Name)
		case claimOwners(has, a.s.set, n, "").foreign:
			a.foreignOwnerEvent(want.Name)
		}
	}
	if len(errs) == 0 {
		return waits
	}
	return errors.Join(errs...)
}

// claimTerminating is a claim in deletion. It will be recreated afterwards, so that is no failure.
type claimTerminating string

// Error says what the pod waits for.
func (l claimTerminating) Error() string { return "pvc " + string(l) + " is being deleted" }

// Is makes the error an ErrStale: the pass is retried.
func (claimTerminating) Is(target error) bool { return target == framework.ErrStale }

// setClaimOwners sets the owners of a pod's claims according to the retention policy.
func (a *executor) setClaimOwners(ctx context.Context, x action) error {
	for i := range a.s.set.Spec.VolumeClaimTemplates {
		has := a.s.claim(claimName(a.s.set, &a.s.set.Spec.VolumeClaimTemplates[i], x.n))
		if has == nil {
			continue
		}
		o := claimOwners(has, a.s.set, x.n, x.pod.UID)
		if !o.change {
			continue
		}
		if o.foreign {
			a.foreignOwnerEvent(has.Name)
		}
		c := has.DeepCopy()
		c.OwnerReferences = o.refs
		_, err := a.env.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", c.Name, err)
		}
	}
	return nil
}

// reason is an event's reason: SuccessfulCreate, FailedCreate and so on.
func reason(verb string, err error) (kind, reason string) {
	verb = strings.ToUpper(verb[:1]) + verb[1:]
	if err != nil {
		return corev1.EventTypeWarning, "Failed" + verb
	}
	return corev1.EventTypeNormal, "Successful" + verb
}

// podEvent records an event about an action on a pod.
func (a *executor) podEvent(verb, pod string, err error) {
	kind, reason := reason(verb, err)
	if err != nil {
		a.env.Events.Eventf(a.s.set, kind, reason, "%s Pod %s in StatefulSet %s failed error: %v", verb, pod,
			a.s.set.Name, err)
		return
	}
	a.env.Events.Eventf(a.s.set, kind, reason, "%s Pod %s in StatefulSet %s successful", verb, pod, a.s.set.Name)
}

func (a *executor) claimEvent(verb, claim, pod string, err error) {
	kind, reason := reason(verb, err)
	if err != nil {
		a.env.Events.Eventf(a.s.set, kind, reason, "%s Claim %s for Pod %s in StatefulSet %s failed error: %v", verb,
			claim, pod, a.s.set.Name, err)
		return
	}
	a.env.Events.Eventf(a.s.set, kind, reason, "%s Claim %s Pod %s in StatefulSet %s success", verb, claim, pod,
		a.s.set.Name)
}

func (a *executor) foreignOwnerEvent(claim string) {
	a.env.Events.Eventf(a.s.set, corev1.EventTypeWarning, "ConflictingController",
		"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention "+
			"policy is ignored for this claim", claim)
}
