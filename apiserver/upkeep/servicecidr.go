// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/store"
)

var serviceCIDRs = networkingv1.SchemeGroupVersion.WithResource("servicecidrs")

// warnRangeMismatch warns once if the ServiceCIDR "kubernetes" has other ranges than the server's flags. The object and
// the Services' addresses stay unchanged.
func (u *Upkeep) warnRangeMismatch(ctx context.Context) {
	obj, err := u.config.Reader.Get(ctx, serviceCIDRs, "", "kubernetes")
	have, ok := obj.(*networkingv1.ServiceCIDR)
	if err != nil || !ok || slices.Equal(have.Spec.CIDRs, u.config.Address.CIDRs()) {
		return
	}
	u.config.Log.Warn("services keep the ranges of the ServiceCIDR kubernetes, which are not those of "+
		"--service-cluster-ip-range: "+
		"add a ServiceCIDR with the new range, or go back to the old one", "servicecidr", have.Spec.CIDRs,
		"service-cluster-ip-range", u.config.Address.CIDRs())
	const controller = "kubernetes-service-cidr-controller"
	now := metav1.Now()
	err = u.config.Own.Create(ctx, corev1.SchemeGroupVersion.WithResource("events"), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      fmt.Sprintf("kubernetes.%x", now.UnixNano()),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "networking.k8s.io/v1",
			Kind:       "ServiceCIDR",
			Name:       have.Name,
			UID:        have.UID,
		},
		Type:   corev1.EventTypeWarning,
		Reason: "KubernetesDefaultServiceCIDRInconsistent",
		Message: fmt.Sprintf("The default ServiceCIDR %v does not match the controller flag "+
			"configurations %s", have.Spec.CIDRs, u.config.Address.CIDRs()),
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Source:              corev1.EventSource{Component: controller},
		ReportingController: controller,
	})
	if err != nil {
		u.config.Log.Debug("record event about service ranges", "error", err)
	}
}

// setServiceCIDRReady sets the condition Ready of the server's own ServiceCIDR if it has no such condition yet.
func (u *Upkeep) setServiceCIDRReady(ctx context.Context) error {
	const manager = "kube-apiserver"
	res := u.config.Served.BuiltIn(serviceCIDRs)
	ctx = store.UseReserve(ctx, store.FullReserve)
	_, _, _, err := res.Storage.Update(ctx, "", "kubernetes", false, objects.Replace(func(
		_ context.Context, current kind.Object,
	) (kind.Object, error) {
		was, ok := current.(*networkingv1.ServiceCIDR)
		if !ok || meta.FindStatusCondition(was.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil ||
			was.DeletionTimestamp != nil ||
			!slices.Equal(was.Spec.CIDRs, u.config.Address.CIDRs()) {
			return current, nil
		}
		now := was.DeepCopy()
		now.Status.Conditions = append(now.Status.Conditions, metav1.Condition{
			Type:               networkingv1.ServiceCIDRConditionReady,
			Status:             metav1.ConditionTrue,
			LastTransitionTime: metav1.Now().Rfc3339Copy(),
			Message:            "Kubernetes default Service CIDR is ready",
		})
		return now, res.FieldManagers["status"].Update(was, now, manager)
	}))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bootstrap: range of service addresses: %w", err)
	}
	return nil
}
