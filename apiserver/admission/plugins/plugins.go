// SPDX-License-Identifier: Apache-2.0

// Package plugins is the table of admission plugins in Kubernetes' order, and the simple ones: a file each. The others
// are packages next to it. apiserver/options builds a chain from the table. Plugins read objects through
// admission.Reader only.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/access"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/config"
	"keelson/apiserver/admission/eventlimit"
	"keelson/apiserver/admission/imagepolicy"
	"keelson/apiserver/admission/noderestriction"
	"keelson/apiserver/admission/podsecurity"
	"keelson/apiserver/admission/policy"
	"keelson/apiserver/admission/quota"
	"keelson/apiserver/admission/webhook"
	"keelson/apiserver/outbound"
	"keelson/auth"
	"keelson/auth/remote"
)

// Objects reads the server's own objects.
type Objects interface {
	policy.Reader
	// Resolve returns host:port of an endpoint for a Service's port.
	Resolve(ctx context.Context, namespace, name string, port int32) (string, error)
}

// Config holds the plugins' dependencies. Only Objects, Writer and NodeName are required.
type Config struct {
	Objects Objects
	// Writer changes the usage of quotas.
	Writer quota.Writer
	// Outbound connects to webhooks.
	Outbound *outbound.Egress
	// NodeName returns the node whose kubelet a user is.
	NodeName func(u *auth.User) (string, bool)
	// RoleAccounts are the service accounts in kube-system of node roles other than the kubelet.
	RoleAccounts []string
	// PodRanges are the pod CIDRs that nodes may set themselves.
	PodRanges noderestriction.PodRanges
	// Authorizer is called by plugins and expressions.
	Authorizer auth.Authorizer
	// File holds the plugins' configuration; nil: none.
	File *config.File
	// Metrics records what plugins do; may be nil.
	Metrics *admission.Metrics
	// Enable adds plugins that are off by default, Disable removes others; both by name.
	Enable, Disable []string
}

// row is one plugin.
type row struct {
	name         string
	offByDefault bool
	build        func(c *Config) (admission.Plugin, []access.EventHandler, error)
}

// table is the order of the plugins: first the built-in ones, then those that users configure, last the quota.
var table = []row{
	off("AlwaysAdmit", func(*Config) admission.Plugin { return alwaysAdmit{} }),
	off("NamespaceAutoProvision", func(c *Config) admission.Plugin { return namespaceAutoProvision{c.Objects} }),
	on("NamespaceLifecycle", func(c *Config) admission.Plugin { return namespaceLifecycle{c.Objects} }),
	off("NamespaceExists", func(c *Config) admission.Plugin { return namespaceExists{c.Objects} }),
	off("LimitPodHardAntiAffinityTopology", func(*Config) admission.Plugin {
		return limitPodHardAntiAffinityTopology{}
	}),
	on("LimitRanger", func(c *Config) admission.Plugin { return limitRanger{c.Objects} }),
	on("ServiceAccount", func(c *Config) admission.Plugin { return serviceAccount{Reader: c.Objects} }),
	on("NodeRestriction", func(c *Config) admission.Plugin {
		return noderestriction.Plugin{
			Reader:       c.Objects,
			NodeName:     c.NodeName,
			RoleAccounts: c.RoleAccounts,
			Authorizer:   c.Authorizer,
			PodRanges:    c.PodRanges,
		}
	}),
	on("TaintNodesByCondition", func(*Config) admission.Plugin { return taintNodesByCondition{} }),
	off("AlwaysPullImages", func(*Config) admission.Plugin { return alwaysPullImages{} }),
	{
		name:         "ImagePolicyWebhook",
		offByDefault: true,
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			conf, err := imagepolicy.Read(c.File.For("ImagePolicyWebhook"))
			if err != nil {
				return nil, nil, err
			}
			p, err := imagepolicy.New(conf, remote.Via{
				Dial:    c.Outbound.Dialer(outbound.Configured),
				Observe: c.Outbound.Observe,
			})
			return p, nil, err
		},
	},
	{
		name: "PodSecurity",
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			conf, err := podsecurity.Read(c.File.For("PodSecurity"))
			return podsecurity.New(c.Objects, conf, c.Metrics), nil, err
		},
	},
	{
		name:         "PodNodeSelector",
		offByDefault: true,
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			selectors, err := readNodeSelectors(c.File.For("PodNodeSelector"))
			return podNodeSelector{Reader: c.Objects, Selectors: selectors}, nil, err
		},
	},
	on("Priority", func(c *Config) admission.Plugin { return priority{c.Objects} }),
	on("DefaultTolerationSeconds", func(*Config) admission.Plugin { return defaultTolerationSeconds{} }),
	{
		name:         "PodTolerationRestriction",
		offByDefault: true,
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			conf, err := readTolerations(c.File.For("PodTolerationRestriction"))
			return podTolerationRestriction{
				Reader:    c.Objects,
				Default:   conf.Default,
				Whitelist: conf.Whitelist,
			}, nil, err
		},
	},
	{
		name:         "EventRateLimit",
		offByDefault: true,
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			limits, err := eventlimit.Read(c.File.For("EventRateLimit"))
			return eventlimit.New(limits), nil, err
		},
	},
	off("ExtendedResourceToleration", func(*Config) admission.Plugin { return extendedResourceToleration{} }),
	on("DefaultStorageClass", func(c *Config) admission.Plugin { return defaultStorageClass{c.Objects} }),
	on("StorageObjectInUseProtection", func(*Config) admission.Plugin { return storageObjectInUseProtection{} }),
	on("PodGroupProtection", func(*Config) admission.Plugin { return podGroupProtection{} }),
	off("OwnerReferencesPermissionEnforcement", func(c *Config) admission.Plugin {
		return ownerReferencesPermissionEnforcement{
			Authorizer: c.Authorizer,
			ResourceOf: c.Objects.ResourceOf,
		}
	}),
	on("PersistentVolumeClaimResize", func(c *Config) admission.Plugin {
		return persistentVolumeClaimResize{c.Objects}
	}),
	on("RuntimeClass", func(c *Config) admission.Plugin { return runtimeClass{c.Objects} }),
	on("CertificateApproval", func(c *Config) admission.Plugin { return certificateApproval{c.Authorizer} }),
	on("CertificateSigning", func(c *Config) admission.Plugin { return certificateSigning{c.Authorizer} }),
	on("ClusterTrustBundleAttest", func(c *Config) admission.Plugin { return clusterTrustBundleAttest{c.Authorizer} }),
	on("CertificateSubjectRestriction", func(*Config) admission.Plugin { return certificateSubjectRestriction{} }),
	on("DefaultIngressClass", func(c *Config) admission.Plugin { return defaultIngressClass{c.Objects} }),
	off("DenyServiceExternalIPs", func(*Config) admission.Plugin { return denyServiceExternalIPs{} }),
	on("ServiceExternalIPs", func(c *Config) admission.Plugin {
		return serviceExternalIPs{Reader: c.Objects, PodRanges: c.PodRanges}
	}),
	on("PodTopologyLabels", func(c *Config) admission.Plugin { return podTopologyLabels{c.Objects} }),
	on("NodeDeclaredFeatureValidator", func(c *Config) admission.Plugin {
		return nodeDeclaredFeatureValidator{c.Objects}
	}),
	on("PodResizeValidator", func(c *Config) admission.Plugin { return podResizeValidator{c.Objects} }),
	{
		name: "MutatingAdmissionPolicy",
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			p := policy.NewMutating(policy.Config{Reader: c.Objects, Authorizer: c.Authorizer, Metrics: c.Metrics})
			return p, []access.EventHandler{
				{Resource: policy.MutatingResource, Set: p.SetPolicy, Remove: p.RemovePolicy},
				{Resource: policy.MutatingBindingResource, Set: p.SetBinding, Remove: p.RemoveBinding},
			}, nil
		},
	},
	{
		name: "MutatingAdmissionWebhook",
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			conf, err := c.webhooks("MutatingAdmissionWebhook")
			p := webhook.NewMutating(conf)
			return p, []access.EventHandler{{Resource: webhook.MutatingResource, Set: p.Set, Remove: p.Remove}}, err
		},
	},
	{
		name: "ValidatingAdmissionPolicy",
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			p := policy.NewValidating(policy.Config{Reader: c.Objects, Authorizer: c.Authorizer, Metrics: c.Metrics})
			return p, []access.EventHandler{
				{Resource: policy.ValidatingResource, Set: p.SetPolicy, Remove: p.RemovePolicy},
				{Resource: policy.ValidatingBindingResource, Set: p.SetBinding, Remove: p.RemoveBinding},
			}, nil
		},
	},
	{
		name: "ValidatingAdmissionWebhook",
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			conf, err := c.webhooks("ValidatingAdmissionWebhook")
			p := webhook.NewValidating(conf)
			return p, []access.EventHandler{{Resource: webhook.ValidatingResource, Set: p.Set, Remove: p.Remove}}, err
		},
	},
	{
		name: "ResourceQuota",
		build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
			limited, err := quota.Read(c.File.For("ResourceQuota"))
			p := quota.New(c.Objects, c.Writer, limited)
			return p, []access.EventHandler{{Resource: quota.Resource, Set: p.Set, Remove: p.Remove}}, err
		},
	},
	off("AlwaysDeny", func(*Config) admission.Plugin { return alwaysDeny{} }),
}

func (c *Config) webhooks(plugin string) (webhook.Config, error) {
	creds, err := webhook.Read(c.File.For(plugin))
	return webhook.Config{
		Reader:      c.Objects,
		Authorizer:  c.Authorizer,
		Resolve:     c.Objects.Resolve,
		Outbound:    c.Outbound,
		Credentials: creds,
		Metrics:     c.Metrics,
	}, err
}

// on is the row of a plugin that has no configuration and follows no resource.
func on(name string, build func(*Config) admission.Plugin) row {
	return row{name: name, build: func(c *Config) (admission.Plugin, []access.EventHandler, error) {
		return build(c), nil, nil
	}}
}

// off is the row of such a plugin that is off by default.
func off(name string, build func(*Config) admission.Plugin) row {
	row := on(name, build)
	row.offByDefault = true
	return row
}

// New builds the chain, and returns the resources that it follows.
func New(c Config) (*admission.Chain, []access.EventHandler, error) {
	if err := Check(c.Enable, c.Disable); err != nil {
		return nil, nil, err
	}
	var chain []admission.Plugin
	var follow []access.EventHandler
	for _, r := range table {
		if slices.Contains(c.Disable, r.name) || r.offByDefault && !slices.Contains(c.Enable, r.name) {
			continue
		}
		p, f, err := r.build(&c)
		if err != nil {
			return nil, nil, fmt.Errorf("couldn't init admission plugin %q: %w", r.name, err)
		}
		chain = append(chain, p)
		follow = append(follow, f...)
	}
	return admission.NewChain(c.Metrics, chain...), follow, nil
}

// Check checks the names of plugins to enable and disable.
func Check(enable, disable []string) error {
	var errs []error
	for _, name := range enable {
		if !slices.ContainsFunc(table, func(r row) bool { return r.name == name }) {
			errs = append(errs, fmt.Errorf("enable-admission-plugins plugin %q is unknown", name))
		}
	}
	for _, name := range disable {
		if !slices.Contains(Names(), name) {
			errs = append(errs, fmt.Errorf("disable-admission-plugins plugin %q is unknown", name))
		}
	}
	var both []string
	for _, name := range slices.Sorted(slices.Values(enable)) {
		if slices.Contains(disable, name) && !slices.Contains(both, name) {
			both = append(both, name)
		}
	}
	if len(both) > 0 {
		errs = append(errs, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", both))
	}
	return errors.Join(errs...)
}

// Names are Kubernetes' plugin names, in the table's order.
func Names() []string {
	out := make([]string, len(table))
	for i, r := range table {
		out[i] = r.name
	}
	return out
}

// podIn returns the pod that req writes by one of the operations; nil: it writes none.
func podIn(req *admission.Request, operations ...admission.Operation) (*corev1.Pod, error) {
	if req.Resource != admission.Pods || req.Subresource != "" || !slices.Contains(operations, req.Operation) {
		return nil, nil
	}
	return admission.PodOf(req)
}
