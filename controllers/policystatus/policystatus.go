// SPDX-License-Identifier: Apache-2.0

// Package policystatus type-checks the expressions of every ValidatingAdmissionPolicy against the kinds in its rules,
// and writes the result to the policy's status as warnings. The table of controllers starts it. The warnings have no
// effect: a policy is enforced regardless. A policy is checked once per generation, and without policies nothing is
// loaded.
package policystatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	registrationlisters "k8s.io/client-go/listers/admissionregistration/v1"

	"keelson/controllers/framework"
	"keelson/event"
)

// Controller checks policies.
type Controller struct {
	env      *framework.Env
	loop     *framework.Loop[string] // names of policies
	policies registrationlisters.ValidatingAdmissionPolicyLister
	types    Types
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	policies := admissioninformers.New(env.Shared.Scoped()).ValidatingAdmissionPolicies()
	controller := &Controller{env: env, policies: policies.Lister(), types: serverTypes{env.Client.Discovery()}}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(p *registrationv1.ValidatingAdmissionPolicy) {
		if p.Generation > p.Status.ObservedGeneration {
			controller.loop.Add(p.Name)
		}
	}
	err := framework.On(controller.loop,
		policies.Informer(), framework.Handlers[*registrationv1.ValidatingAdmissionPolicy]{
			Add:    look,
			Update: func(_, p *registrationv1.ValidatingAdmissionPolicy) { look(p) },
		})
	if err != nil {
		return nil, fmt.Errorf("policy status: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) sync(ctx context.Context, name string) error {
	policy, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) || err == nil && policy.Generation <= policy.Status.ObservedGeneration {
		return nil
	}
	if err != nil {
		return err
	}
	begin := time.Now()
	warnings, err := Check(policy, c.types)
	if err != nil {
		return fmt.Errorf("check policy %s: %w", name, err)
	}
	next := policy.DeepCopy()
	// TypeChecking is set even without warnings: it shows that the check was done.
	next.Status.ObservedGeneration = policy.Generation
	next.Status.TypeChecking = &registrationv1.TypeChecking{ExpressionWarnings: warnings}
	_, err = c.env.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().UpdateStatus(ctx, next,
		metav1.UpdateOptions{FieldManager: c.env.Name})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{Resource: "validatingadmissionpolicies", Name: name, UID: string(policy.UID)}, begin,
		&event.Reconcile{}, err)
	return err
}

// serverTypes provides the types that a server serves.
type serverTypes struct{ discovery.DiscoveryInterface }

// Kinds lists the kinds of a resource in discovery.
func (s serverTypes) Kinds(gvr schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	list, err := s.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discover %s: %w", gvr.GroupVersion(), err)
	}
	var out []schema.GroupVersionKind
	for _, r := range list.APIResources {
		if r.Name == gvr.Resource || !strings.Contains(r.Name, "/") && r.SingularName == gvr.Resource {
			if k := gvr.GroupVersion().WithKind(r.Kind); !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
	}
	return out, nil
}

// Schema resolves a kind in the server's OpenAPI documents.
func (s serverTypes) Schema(gvk schema.GroupVersionKind) (*Schema, error) {
	out, err := (&resolver.ClientDiscoveryResolver{Discovery: s.DiscoveryInterface}).ResolveSchema(gvk)
	if errors.Is(err, resolver.ErrSchemaNotFound) {
		return nil, nil // nil: no schema
	}
	return out, err
}
