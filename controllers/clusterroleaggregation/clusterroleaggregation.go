// SPDX-License-Identifier: Apache-2.0

// Package clusterroleaggregation sets the rules of ClusterRoles with an aggregationRule to the union of the rules of
// all selected ClusterRoles. The table of controllers starts it. It writes only these rules.
package clusterroleaggregation

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbacapply "k8s.io/client-go/applyconfigurations/rbac/v1"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"keelson/controllers/framework"
)

// Controller maintains aggregated roles.
type Controller struct {
	env   *framework.Env
	loop  *framework.Loop[framework.Key]
	roles rbaclisters.ClusterRoleLister
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	roles := rbacinformers.New(env.Shared.Scoped()).ClusterRoles()
	c := &Controller{env: env, roles: roles.Lister()}
	c.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, c.sync)
	// Any role may start or stop matching any aggregated role; there are few of those.
	err := framework.On(c.loop, roles.Informer(), framework.Each(func(*rbacv1.ClusterRole) { c.all() }))
	if err != nil {
		return nil, fmt.Errorf("cluster role aggregation: %w", err)
	}
	return c, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) all() {
	roles, err := c.roles.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, r := range roles {
		if r.AggregationRule != nil {
			c.loop.Add(framework.KeyOf(r))
		}
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	role, err := c.roles.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && role.AggregationRule == nil {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return err
	}
	rules, err := aggregate(role, all)
	if err != nil {
		return err
	}
	if apiequality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	want := rbacapply.ClusterRole(role.Name)
	want.Rules = []rbacapply.PolicyRuleApplyConfiguration{}
	for i := range rules {
		r := &rules[i]
		want.WithRules(rbacapply.PolicyRule().WithVerbs(r.Verbs...).WithAPIGroups(r.APIGroups...).WithResources(
			r.Resources...).
			WithResourceNames(r.ResourceNames...).WithNonResourceURLs(r.NonResourceURLs...))
	}
	_, err = c.env.Client.RbacV1().ClusterRoles().Apply(ctx, want, metav1.ApplyOptions{
		FieldManager: "clusterrole-aggregation-controller",
		Force:        true,
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("aggregate cluster role %s: %w", role.Name, err)
	}
	return nil
}

// aggregate is the union of the rules of all selected roles, in the order of names, without duplicates.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("selector %d of cluster role %s: %w", i, role.Name, err)
		}
		for _, part := range all {
			if part.Name == role.Name || !sel.Matches(labels.Set(part.Labels)) {
				continue
			}
			for _, r := range part.Rules {
				if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool {
					return apiequality.Semantic.DeepEqual(have, r)
				}) {
					rules = append(rules, r)
				}
			}
		}
	}
	return rules, nil
}
