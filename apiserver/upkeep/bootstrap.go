// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/kind"
)

// namespaces exist in every cluster.
var namespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

// Bootstrap creates or reconciles the objects that every cluster has, and those of Config.Objects.
// An object that is refused (by a webhook, a policy, a quota) does not prevent the start: the upkeep retries it.
func (u *Upkeep) Bootstrap(ctx context.Context) error {
	objs := make([]kind.Object, 0, len(namespaces))
	for _, name := range namespaces {
		objs = append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if err := u.keepAll(ctx, objs); err != nil {
		return err
	}
	objs, err := u.ownService()
	if err != nil {
		return err
	}
	for _, obj := range u.config.Objects {
		o, ok := obj.(kind.Object)
		if !ok {
			return fmt.Errorf("bootstrap: %T has no metadata", obj)
		}
		objs = append(objs, o)
	}
	if err := u.keepAll(ctx, objs); err != nil {
		return err
	}
	for _, b := range u.config.RemovedBindings {
		if err := u.removeBindingSubjects(ctx, b); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	if err := u.removeStrays(ctx); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	if _, err := u.reconcileEndpoints(ctx); err != nil && !refused(err) {
		return fmt.Errorf("bootstrap: endpoints of the service kubernetes: %w", err)
	}
	u.warnRangeMismatch(ctx)
	return nil
}

// keepAll adds independent objects to the upkeep and ensures them concurrently, so that the store can write them
// together.
func (u *Upkeep) keepAll(ctx context.Context, objs []kind.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, obj := range objs {
		kept, ok, err := u.add(obj)
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		if !ok {
			continue // the kind is not served
		}
		group.Go(func() error {
			_, err := u.ensure(ctx, kept)
			if refused(err) {
				u.config.Log.Warn("an object of the system is refused, will retry", "err", err)
				u.loop.Add(kept.ref)
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// refused reports whether the API, not the store, refused a write.
func refused(err error) bool { return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown }

// Ensure creates or reconciles an object like those of Config.Objects, and keeps this version of it from now on.
func (u *Upkeep) Ensure(ctx context.Context, obj kind.Object) error {
	kept, ok, err := u.add(obj)
	if !ok {
		return err // nil: the kind is not served
	}
	_, err = u.ensure(ctx, kept)
	return err
}

// ensure creates or reconciles the object of kept, and reports whether it wrote.
func (u *Upkeep) ensure(ctx context.Context, kept keptObject) (wrote bool, err error) {
	if wrote, err = u.write(ctx, kept); err != nil {
		return wrote, err
	}
	if kept.kind.then != nil {
		return wrote, kept.kind.then(ctx)
	}
	return wrote, nil
}

func (u *Upkeep) write(ctx context.Context, kept keptObject) (wrote bool, err error) {
	want := kept.want
	gvr := kept.kind.gvr
	name := gvr.Resource + " " + want.GetName()
	current, err := u.config.Reader.Get(ctx, gvr, want.GetNamespace(), want.GetName())
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("look for %s: %w", name, err)
	}
	have, exists := current.(kind.Object)
	if err == nil && exists {
		if have.GetDeletionTimestamp() != nil {
			return false, nil // the upkeep creates it again when it has gone
		}
		if kept.kind.replace == nil || !kept.kind.replace(have, want) {
			return u.update(ctx, kept, have)
		}
		if err := u.deleteOwn(ctx, gvr, have); err != nil {
			return false, err
		}
	}
	if err := u.config.Own.Create(ctx, gvr, want); apierrors.IsAlreadyExists(err) {
		return false, nil // another server has created it
	} else if err != nil {
		return false, fmt.Errorf("create %s: %w", name, err)
	}
	return true, nil
}

// update reconciles an existing object.
func (u *Upkeep) update(ctx context.Context, kept keptObject, have kind.Object) (wrote bool, err error) {
	reconcile := kept.kind.reconcile
	probe, _ := have.DeepCopyObject().(kind.Object)
	if reconcile == nil || !reconcile(probe, kept.want) {
		return false, nil
	}
	if err := u.config.Own.Update(ctx, kept.kind.gvr, kept.want, func(obj kind.Object) bool {
		return reconcile(obj, kept.want)
	}); err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("update %s %s: %w", kept.kind.gvr.Resource, have.GetName(), err)
	}
	return true, nil
}

// removeBindingSubjects removes binding's subjects from the binding of that name, unless an administrator disabled
// autoupdate.
func (u *Upkeep) removeBindingSubjects(ctx context.Context, binding *rbacv1.ClusterRoleBinding) error {
	gvr := rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
	current, err := u.config.Reader.Get(ctx, gvr, "", binding.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for ClusterRoleBinding %s: %w", binding.Name, err)
	}
	if probe, ok := current.DeepCopyObject().(*rbacv1.ClusterRoleBinding); !ok ||
		!removeSubjects(probe, binding.Subjects) {
		return nil
	}
	u.config.Log.Warn("remove subjects granted by an earlier version", "binding", binding.Name, "subjects",
		binding.Subjects)
	if err := u.config.Own.Update(ctx, gvr, binding, func(obj kind.Object) bool {
		o, ok := obj.(*rbacv1.ClusterRoleBinding)
		return ok && removeSubjects(o, binding.Subjects)
	}); err != nil {
		return fmt.Errorf("update ClusterRoleBinding %s: %w", binding.Name, err)
	}
	return nil
}

// removeSubjects modifies b and reports whether that changed anything.
func removeSubjects(b *rbacv1.ClusterRoleBinding, subjects []rbacv1.Subject) bool {
	if protected(b) {
		return false
	}
	before := len(b.Subjects)
	b.Subjects = slices.DeleteFunc(b.Subjects, func(s rbacv1.Subject) bool { return slices.Contains(subjects, s) })
	return len(b.Subjects) < before
}

// ownService returns the Service "kubernetes" and the ServiceCIDR of its address.
func (u *Upkeep) ownService() ([]kind.Object, error) {
	_, port, err := u.config.Address.Advertised()
	if err != nil {
		return nil, err
	}
	first := u.config.Address.Ranges()[0].Addr().Next()
	meta := metav1.ObjectMeta{
		Name:      "kubernetes",
		Namespace: "default",
		Labels: map[string]string{
			"component": "apiserver",
			"provider":  "kubernetes",
		},
	}
	service := &corev1.Service{
		ObjectMeta: meta,
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       first.String(),
			ClusterIPs:      []string{first.String()},
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name:       "https",
				Protocol:   corev1.ProtocolTCP,
				Port:       443,
				TargetPort: intstr.FromInt32(port),
			}},
		},
	}
	addresses := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: u.config.Address.CIDRs()},
	}
	return []kind.Object{service, addresses}, nil
}
