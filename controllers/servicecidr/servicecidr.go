// SPDX-License-Identifier: Apache-2.0

// Package servicecidr manages ServiceCIDRs (KEP-1880). The table of controllers starts it. It sets the condition Ready,
// adds a finalizer, and removes that when no Service's IP address would be left without a range. It never allocates
// addresses.
package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"keelson/controllers/framework"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// manager is the label value of IPAddresses that API servers created for Services.
	manager = "ipallocator.k8s.io"
	// deleteGrace is how long a deleted range without addresses is kept: every API server must have observed the
	// deletion before the last addresses are counted.
	deleteGrace = 10 * time.Second
)

// Controller handles ServiceCIDRs.
type Controller struct {
	env       *framework.Env
	loop      *framework.Loop[framework.Key]
	ranges    networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	ranges := networkinginformers.New(env.Shared.Scoped()).ServiceCIDRs()
	addresses := networkinginformers.New(env.Shared.Scoped()).IPAddresses()
	controller := &Controller{env: env, ranges: ranges.Lister(), addresses: addresses.Lister()}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		// Another range may wait for this one.
		framework.On(controller.loop, ranges.Informer(), framework.Each(func(r *networkingv1.ServiceCIDR) {
			controller.loop.Add(framework.KeyOf(r))
			controller.requeueDeleting()
		})),
		framework.On(controller.loop, addresses.Informer(), framework.Each(func(*networkingv1.IPAddress) {
			controller.requeueDeleting()
		})),
	)
	if err != nil {
		return nil, fmt.Errorf("service ranges: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// requeueDeleting requeues the ranges in deletion.
func (c *Controller) requeueDeleting() {
	all, err := c.ranges.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, r := range all {
		if r.DeletionTimestamp != nil {
			c.loop.Add(framework.KeyOf(r))
		}
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	serviceCIDR, err := c.ranges.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if serviceCIDR.DeletionTimestamp != nil {
		return c.removeFinalizer(ctx, key, serviceCIDR)
	}
	if !slices.Contains(serviceCIDR.Finalizers, finalizer) {
		guarded := serviceCIDR.DeepCopy()
		guarded.Finalizers = append(guarded.Finalizers, finalizer)
		if serviceCIDR, err = c.env.Client.NetworkingV1().ServiceCIDRs().Update(ctx, guarded,
			metav1.UpdateOptions{}); err != nil {
			return ignoreNotFound(err, "guard")
		}
	}
	return c.setCondition(ctx, serviceCIDR, metav1.Condition{
		Status:  metav1.ConditionTrue,
		Message: "Kubernetes Service CIDR is ready",
	})
}

// removeFinalizer removes the finalizer of a deleted range that is no longer needed.
func (c *Controller) removeFinalizer(
	ctx context.Context, key framework.Key, serviceCIDR *networkingv1.ServiceCIDR,
) error {
	if !slices.Contains(serviceCIDR.Finalizers, finalizer) {
		return nil
	}
	needed, err := c.needed(serviceCIDR)
	if err != nil {
		return err
	}
	if needed {
		return c.setCondition(ctx, serviceCIDR, metav1.Condition{
			Status: metav1.ConditionFalse,
			Reason: networkingv1.ServiceCIDRReasonTerminating,
			Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new " +
				"ServiceCIDR",
		})
	}
	if left := deleteGrace - time.Since(serviceCIDR.DeletionTimestamp.Time); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	free := serviceCIDR.DeepCopy()
	free.Finalizers = slices.DeleteFunc(free.Finalizers, func(f string) bool { return f == finalizer })
	_, err = c.env.Client.NetworkingV1().ServiceCIDRs().Update(ctx, free, metav1.UpdateOptions{})
	return ignoreNotFound(err, "let go")
}

// needed reports whether a Service's address is in serviceCIDR and in no other range. A range inside another one is
// never needed.
func (c *Controller) needed(serviceCIDR *networkingv1.ServiceCIDR) (bool, error) {
	all, err := c.ranges.List(labels.Everything())
	if err != nil {
		return false, err
	}
	var others []netip.Prefix
	for _, o := range all {
		if o.Name != serviceCIDR.Name {
			others = append(others, prefixes(o)...)
		}
	}
	inside := func(p netip.Prefix) bool {
		return slices.ContainsFunc(others, func(o netip.Prefix) bool {
			return o.Bits() <= p.Bits() && o.Contains(p.Addr())
		})
	}
	own := slices.DeleteFunc(prefixes(serviceCIDR), inside)
	if len(own) == 0 {
		return false, nil
	}
	addresses, err := c.addresses.List(labels.SelectorFromSet(labels.Set{networkingv1.LabelManagedBy: manager}))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(addresses, func(a *networkingv1.IPAddress) bool {
		ip, err := netip.ParseAddr(a.Name)
		holds := func(p netip.Prefix) bool { return p.Contains(ip) }
		return err == nil && slices.ContainsFunc(own, holds) && !slices.ContainsFunc(others, holds)
	}), nil
}

func prefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range r.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// setCondition sets the condition Ready if it differs.
func (c *Controller) setCondition(ctx context.Context, r *networkingv1.ServiceCIDR, cond metav1.Condition) error {
	cond.Type = networkingv1.ServiceCIDRConditionReady
	if now := meta.FindStatusCondition(r.Status.Conditions, cond.Type); now != nil &&
		now.Status == cond.Status && now.Reason == cond.Reason && now.Message == cond.Message {
		return nil
	}
	next := r.DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, cond)
	_, err := c.env.Client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return ignoreNotFound(err, "set the condition of")
}

// ignoreNotFound ignores the error that the range does not exist.
func ignoreNotFound(err error, did string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s range: %w", did, err)
}
