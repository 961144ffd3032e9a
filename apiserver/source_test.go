// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
)

// TestSourceTellsSelectors: an agent in this process has the same rights as over HTTPS: a kubelet watches its own node and pods, and
// no other.
func TestSourceTellsSelectors(t *testing.T) {
	r := start(t, func(c *apiserver.Config) {
		c.Parts = func(r *apiserver.Reader) (apiserver.Parts, error) {
			return apiserver.Parts{
				Authenticators: []auth.Authenticator{authn.Anonymous{}},
				Authorizer:     authz.Union{authz.Node{Pods: r.PodsOn, Objects: r, Rules: bootstrap.NodeRules()}, authz.Masters{}},
			}, nil
		}
	})
	src := r.Source(&auth.User{Name: "system:node:n1", Groups: []string{auth.Nodes, auth.Authenticated}, How: "in process"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		resource string
		opts     metav1.ListOptions
		allowed  bool
	}{
		{"nodes", metav1.ListOptions{FieldSelector: "metadata.name=n1"}, true},
		{"nodes", metav1.ListOptions{FieldSelector: "metadata.name=n2"}, false},
		{"nodes", metav1.ListOptions{}, false},
		{"pods", metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}, true},
		{"pods", metav1.ListOptions{FieldSelector: "spec.nodeName=n2"}, false},
		{"pods", metav1.ListOptions{}, false},
	} {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: c.resource}
		_, _, err := src.List(ctx, gvr, "", c.opts)
		if c.allowed && err != nil || !c.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("list %s %q: %v; want it allowed: %v", c.resource, c.opts.FieldSelector, err, c.allowed)
		}
		w, err := src.Watch(ctx, gvr, "", c.opts)
		if c.allowed && err != nil || !c.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("watch %s %q: %v; want it allowed: %v", c.resource, c.opts.FieldSelector, err, c.allowed)
		}
		if err == nil {
			w.Stop()
		}
	}
}
