// SPDX-License-Identifier: Apache-2.0

// Package plugins is the table of admission plugins in the order they run, which
// is Kubernetes' order. The program's assembly asks it for a chain; it starts
// nothing and decides nothing itself.
package plugins

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/podsecurity"
	"keelson/apiserver/admission/policy"
	"keelson/apiserver/admission/quota"
	"keelson/apiserver/admission/webhook"
	"keelson/auth"
)

// Objects are the server's own objects.
type Objects interface {
	policy.Reader
	quota.Store
	// Resolve returns host:port of something behind a service's port.
	Resolve(ctx context.Context, namespace, name string, port int32) (string, error)
}

// Config is what plugins are built from. Only Objects and NodeName are needed.
type Config struct {
	Objects Objects
	// NodeName tells whose kubelet a user is.
	NodeName func(u *auth.User) (string, bool)
	// Authorizer answers expressions that ask it.
	Authorizer auth.Authorizer
	// PodSecurity is what holds where a namespace says nothing.
	PodSecurity podsecurity.Config
	// Enable adds plugins that are off by default, Disable takes away others; both by name.
	Enable, Disable []string
}

// Follow is a plugin's wish to hear of all objects of a resource, before the first request and ever after.
type Follow struct {
	Resource    schema.GroupVersionResource
	Set, Remove func(runtime.Object)
}

// row is one plugin.
type row struct {
	name string
	off  bool // unless enabled
	make func(c *Config) (admission.Plugin, []Follow, error)
}

// table is the order of plugins: what is set by the cluster first, then what its users configure, what counts last.
var table = []row{
	{name: "NamespaceLifecycle", make: plain(func(c *Config) admission.Plugin { return admission.NamespaceLifecycle{Reader: c.Objects} })},
	{name: "LimitRanger", make: plain(func(c *Config) admission.Plugin { return admission.LimitRanger{Reader: c.Objects} })},
	{name: "ServiceAccount", make: plain(func(c *Config) admission.Plugin { return admission.ServiceAccount{Reader: c.Objects} })},
	{name: "NodeRestriction", make: plain(func(c *Config) admission.Plugin {
		return admission.NodeRestriction{Reader: c.Objects, NodeName: c.NodeName}
	})},
	{name: "TaintNodesByCondition", make: plain(func(*Config) admission.Plugin { return admission.TaintNodesByCondition{} })},
	{name: "AlwaysPullImages", off: true, make: plain(func(*Config) admission.Plugin { return admission.AlwaysPullImages{} })},
	{name: "PodSecurity", make: plain(func(c *Config) admission.Plugin { return podsecurity.New(c.Objects, c.PodSecurity) })},
	{name: "Priority", make: plain(func(c *Config) admission.Plugin { return admission.Priority{Reader: c.Objects} })},
	{name: "DefaultTolerationSeconds", make: plain(func(*Config) admission.Plugin { return admission.DefaultTolerationSeconds{} })},
	{name: "DefaultStorageClass", make: plain(func(c *Config) admission.Plugin { return admission.DefaultStorageClass{Reader: c.Objects} })},
	// Off until controllers take the finalizers away again: without them nothing protected could be deleted.
	{name: "StorageObjectInUseProtection", off: true, make: plain(func(*Config) admission.Plugin { return admission.StorageObjectInUseProtection{} })},
	{name: "OwnerReferencesPermissionEnforcement", off: true, make: plain(func(c *Config) admission.Plugin {
		return admission.OwnerReferencesPermissionEnforcement{Authorizer: c.Authorizer, ResourceOf: c.Objects.ResourceOf}
	})},
	{name: "PersistentVolumeClaimResize", make: plain(func(c *Config) admission.Plugin { return admission.PersistentVolumeClaimResize{Reader: c.Objects} })},
	{name: "RuntimeClass", make: plain(func(c *Config) admission.Plugin { return admission.RuntimeClass{Reader: c.Objects} })},
	{name: "CertificateApproval", make: plain(func(c *Config) admission.Plugin { return admission.CertificateApproval{Authorizer: c.Authorizer} })},
	{name: "CertificateSigning", make: plain(func(c *Config) admission.Plugin { return admission.CertificateSigning{Authorizer: c.Authorizer} })},
	{name: "ClusterTrustBundleAttest", make: plain(func(c *Config) admission.Plugin {
		return admission.ClusterTrustBundleAttest{Authorizer: c.Authorizer}
	})},
	{name: "CertificateSubjectRestriction", make: plain(func(*Config) admission.Plugin { return admission.CertificateSubjectRestriction{} })},
	{name: "DefaultIngressClass", make: plain(func(c *Config) admission.Plugin { return admission.DefaultIngressClass{Reader: c.Objects} })},
	{name: "DenyServiceExternalIPs", off: true, make: plain(func(*Config) admission.Plugin { return admission.DenyServiceExternalIPs{} })},
	{name: "PodTopologyLabels", make: plain(func(c *Config) admission.Plugin { return admission.PodTopologyLabels{Reader: c.Objects} })},
	{name: "MutatingAdmissionPolicy", make: func(c *Config) (admission.Plugin, []Follow, error) {
		p := policy.NewMutating(policy.Config{Reader: c.Objects, Authorizer: c.Authorizer})
		return p, []Follow{{policy.MutatingResource, p.SetPolicy, p.RemovePolicy}, {policy.MutatingBindingResource, p.SetBinding, p.RemoveBinding}}, nil
	}},
	{name: "MutatingAdmissionWebhook", make: func(c *Config) (admission.Plugin, []Follow, error) {
		p := webhook.NewMutating(c.webhooks())
		return p, []Follow{{webhook.MutatingResource, p.Set, p.Remove}}, nil
	}},
	{name: "ValidatingAdmissionPolicy", make: func(c *Config) (admission.Plugin, []Follow, error) {
		p := policy.NewValidating(policy.Config{Reader: c.Objects, Authorizer: c.Authorizer})
		return p, []Follow{{policy.ValidatingResource, p.SetPolicy, p.RemovePolicy}, {policy.ValidatingBindingResource, p.SetBinding, p.RemoveBinding}}, nil
	}},
	{name: "ValidatingAdmissionWebhook", make: func(c *Config) (admission.Plugin, []Follow, error) {
		p := webhook.NewValidating(c.webhooks())
		return p, []Follow{{webhook.ValidatingResource, p.Set, p.Remove}}, nil
	}},
	{name: "ResourceQuota", make: func(c *Config) (admission.Plugin, []Follow, error) {
		p := quota.New(c.Objects)
		return p, []Follow{{quota.Resource, p.Set, p.Remove}}, nil
	}},
}

func (c *Config) webhooks() webhook.Config {
	return webhook.Config{Reader: c.Objects, Authorizer: c.Authorizer, Resolve: c.Objects.Resolve}
}

// plain adapts a plugin that follows nothing.
func plain(f func(*Config) admission.Plugin) func(*Config) (admission.Plugin, []Follow, error) {
	return func(c *Config) (admission.Plugin, []Follow, error) { return f(c), nil, nil }
}

// New builds the chain, and says what it must be told of.
func New(c Config) (admission.Chain, []Follow, error) {
	for _, name := range slices.Concat(c.Enable, c.Disable) {
		if !slices.ContainsFunc(table, func(r row) bool { return r.name == name }) {
			return nil, nil, fmt.Errorf("admission plugin %q is unknown; there are %v", name, Names())
		}
	}
	var chain admission.Chain
	var follow []Follow
	for _, r := range table {
		if slices.Contains(c.Disable, r.name) || r.off && !slices.Contains(c.Enable, r.name) {
			continue
		}
		p, f, err := r.make(&c)
		if err != nil {
			return nil, nil, fmt.Errorf("admission plugin %s: %w", r.name, err)
		}
		chain, follow = append(chain, p), append(follow, f...)
	}
	return chain, follow, nil
}

// Names are all plugins in their order.
func Names() []string {
	out := make([]string, len(table))
	for i, r := range table {
		out[i] = r.name
	}
	return out
}
