// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
)

// validate validates a configuration with its defaults by kube-scheduler's rules. plugins are the names of all plugins.
func (c *Configuration) validate(plugins []string) (errs field.ErrorList) {
	if configuration := c.LeaderElection; *configuration.LeaderElect {
		at := field.NewPath("leaderElection")
		if configuration.ResourceLock != "leases" {
			errs = append(errs, field.Invalid(at.Child("resourceLock"), configuration.ResourceLock,
				`resourceLock value must be "leases"`))
		}
		if configuration.LeaseDuration.Duration <= configuration.RenewDeadline.Duration {
			errs = append(errs, field.Invalid(at.Child("leaseDuration"), configuration.LeaseDuration.Duration.String(),
				"must be greater than renewDeadline"))
		}
		if configuration.RenewDeadline.Duration <= configuration.RetryPeriod.Duration ||
			configuration.RetryPeriod.Duration <= 0 {
			errs = append(errs, field.Invalid(at.Child("renewDeadline"), configuration.RenewDeadline.Duration.String(),
				"must be greater than retryPeriod, which must be greater than zero"))
		}
	}
	if *c.Parallelism <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("parallelism"), *c.Parallelism,
			"should be an integer value greater than zero"))
	}
	errs = append(errs, percentage(field.NewPath("percentageOfNodesToScore"), c.PercentageOfNodesToScore)...)
	if *c.PodInitialBackoffSeconds <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("podInitialBackoffSeconds"), *c.PodInitialBackoffSeconds,
			"must be greater than 0"))
	}
	if *c.PodMaxBackoffSeconds < *c.PodInitialBackoffSeconds {
		errs = append(errs, field.Invalid(field.NewPath("podMaxBackoffSeconds"), *c.PodMaxBackoffSeconds,
			"must be greater than or equal to PodInitialBackoffSeconds"))
	}
	errs = append(errs, c.validateProfiles(plugins)...)
	return append(errs, validateExtenders(field.NewPath("extenders"), c.Extenders)...)
}

func percentage(at *field.Path, p *int32) field.ErrorList {
	if p != nil && (*p < 0 || *p > 100) {
		return field.ErrorList{field.Invalid(at, *p, "not in valid range [0-100]")}
	}
	return nil
}

func (c *Configuration) validateProfiles(plugins []string) (errs field.ErrorList) {
	names := map[string]bool{}
	for i := range c.KubeSchedulerConfiguration.Profiles {
		in := &c.KubeSchedulerConfiguration.Profiles[i]
		at := field.NewPath("profiles").Index(i)
		switch {
		case in.SchedulerName == nil || *in.SchedulerName == "":
			errs = append(errs, field.Required(at.Child("schedulerName"), ""))
		case names[*in.SchedulerName]:
			errs = append(errs, field.Duplicate(at.Child("schedulerName"), *in.SchedulerName))
		default:
			names[*in.SchedulerName] = true
		}
		errs = append(errs, percentage(at.Child("percentageOfNodesToScore"), in.PercentageOfNodesToScore)...)
		if in.Plugins != nil {
			errs = append(errs, validatePlugins(at.Child("plugins"), in.Plugins, plugins)...)
		}
		seen := map[string]bool{}
		for j, pc := range in.PluginConfig {
			at := at.Child("pluginConfig").Index(j)
			if seen[pc.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), pc.Name))
			}
			seen[pc.Name] = true
			if !slices.Contains(plugins, pc.Name) && !slices.Contains(notImplemented, pc.Name) {
				errs = append(errs, field.NotFound(at.Child("name"), pc.Name))
			}
			errs = append(errs, validateArgs(at.Child("args"), c.Profiles[i].Args[pc.Name])...)
		}
		for _, point := range []framework.Point{framework.AtQueueSort, framework.AtBind} {
			if len(c.Profiles[i].Points[point]) == 0 {
				errs = append(errs, field.Required(at.Child("plugins", string(point), "enabled"),
					"a profile has a plugin here"))
			}
		}
		sorts := func(i int) string { return fmt.Sprint(c.Profiles[i].Points[framework.AtQueueSort]) }
		if in.Plugins != nil && sorts(i) != sorts(0) && len(in.Plugins.QueueSort.Enabled)+
			len(in.Plugins.QueueSort.Disabled) > 0 {
			errs = append(errs, field.Invalid(at.Child("plugins", "queueSort"), len(in.Plugins.QueueSort.Enabled),
				"must be the same for all profiles"))
		}
	}
	return errs
}

// pluginSets returns the plugin sets of a profile by their names in the file.
func pluginSets(p *configv1.Plugins) map[string]configv1.PluginSet {
	out := map[string]configv1.PluginSet{"multiPoint": p.MultiPoint, "preFilter": p.PreFilter, "preScore": p.PreScore}
	for _, point := range extensionPoints {
		out[string(point)] = pluginSet(p, point)
	}
	return out
}

func validatePlugins(at *field.Path, in *configv1.Plugins, plugins []string) (errs field.ErrorList) {
	list := func(name string) *field.Path { return at.Child(name, "enabled") }
	for name, set := range pluginSets(in) {
		seen := map[string]bool{}
		for i, p := range set.Enabled {
			at := at.Child(name, "enabled").Index(i).Child("name")
			if seen[p.Name] {
				errs = append(errs, field.Duplicate(at, p.Name))
			}
			seen[p.Name] = true
			if !slices.Contains(plugins, p.Name) && !slices.Contains(notImplemented, p.Name) {
				errs = append(errs, field.NotFound(at, p.Name))
			}
			if p.Weight != nil && *p.Weight < 0 {
				errs = append(errs, field.Invalid(list(name).Index(i).Child("weight"), *p.Weight,
					"must not be negative"))
			}
		}
	}
	if n := len(in.QueueSort.Enabled); n > 1 {
		errs = append(errs, field.Invalid(at.Child("queueSort", "enabled"), n,
			"only one queue sort plugin can be enabled"))
	}
	return errs
}

func validateExtenders(at *field.Path, in []configv1.Extender) (errs field.ErrorList) {
	binders := 0
	managed := map[string]bool{}
	for i := range in {
		extender := &in[i]
		at := at.Index(i)
		if u, err := url.Parse(extender.URLPrefix); err != nil || u.Host == "" ||
			u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs,
				field.Invalid(at.Child("urlPrefix"), extender.URLPrefix, "must be a URL with a host, http or https"))
		}
		if extender.PrioritizeVerb != "" && extender.Weight <= 0 {
			errs = append(errs,
				field.Invalid(at.Child("weight"), extender.Weight, "must have a positive weight applied to it"))
		}
		if extender.Weight > math.MaxInt32 {
			errs = append(errs,
				field.Invalid(at.Child("weight"), extender.Weight,
					fmt.Sprintf("must not be greater than %d", math.MaxInt32)))
		}
		errs = append(errs, validateTLS(at.Child("tlsConfig"), extender.TLSConfig)...)
		if extender.HTTPTimeout.Duration < 0 {
			errs = append(errs, field.Invalid(at.Child("httpTimeout"), extender.HTTPTimeout.Duration.String(),
				"must not be negative"))
		}
		if extender.BindVerb != "" {
			binders++
		}
		for j, resource := range extender.ManagedResources {
			at := at.Child("managedResources").Index(j).Child("name")
			for _, msg := range validation.IsQualifiedName(resource.Name) {
				errs = append(errs, field.Invalid(at, resource.Name, msg))
			}
			if !strings.Contains(resource.Name, "/") ||
				strings.Contains(resource.Name, corev1.ResourceDefaultNamespacePrefix) ||
				strings.HasPrefix(resource.Name, corev1.DefaultResourceRequestsPrefix) {
				errs = append(errs, field.Invalid(at, resource.Name, "is an invalid extended resource name"))
			}
			if managed[resource.Name] {
				errs = append(errs, field.Invalid(at, resource.Name, "duplicate extender managed resource name"))
			}
			managed[resource.Name] = true
		}
	}
	if binders > 1 {
		errs = append(errs, field.Invalid(at, fmt.Sprintf("found %d extenders implementing bind", binders),
			"only one extender can implement bind"))
	}
	return errs
}

func validateTLS(at *field.Path, t *configv1.ExtenderTLSConfig) (errs field.ErrorList) {
	if t == nil {
		return nil
	}
	if t.Insecure && (t.CAFile != "" || len(t.CAData) > 0) {
		errs = append(errs,
			field.Invalid(at.Child("insecure"), true, "must not be set together with a certificate authority"))
	}
	if cert, key := t.CertFile != "" || len(t.CertData) > 0, t.KeyFile != "" || len(t.KeyData) > 0; cert != key {
		errs = append(errs,
			field.Invalid(at, field.OmitValueType{}, "a client certificate and its key must be set together"))
	}
	return errs
}
