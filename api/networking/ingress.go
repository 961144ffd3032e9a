// SPDX-License-Identifier: Apache-2.0

// Package networking describes the kinds of networking.k8s.io/v1: ingresses and
// their classes, network policies, and the ranges and addresses of services.
// The registry lists them. Nothing here opens or filters a connection.
package networking

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// classNote is where the class stood before it had a field.
const classNote = "kubernetes.io/ingress.class"

func names(k, resource, singular string, namespaced bool, short ...string) kind.Names {
	gv := networkingv1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		ShortNames: short,
		Namespaced: namespaced,
	}
}

// Ingress describes networking.k8s.io/v1 Ingress.
func Ingress() *kind.Kind {
	return kind.Spec[*networkingv1.Ingress]{
		Names:   names("Ingress", "ingresses", "ingress", true, "ing"),
		New:     func() *networkingv1.Ingress { return &networkingv1.Ingress{} },
		NewList: func() runtime.Object { return &networkingv1.IngressList{} },
		PrepareCreate: func(i *networkingv1.Ingress) {
			i.Generation = 1
			i.Status = networkingv1.IngressStatus{}
		},
		PrepareUpdate: func(i, old *networkingv1.Ingress) {
			i.Status = old.Status
			i.Generation = old.Generation
			if !equality.Semantic.DeepEqual(i.Spec, old.Spec) {
				i.Generation++
			}
		},
		Validate: func(i *networkingv1.Ingress) field.ErrorList {
			errs := append(meta.Finalizers(i), validateIngress(&i.Spec)...)
			if note, ok := i.Annotations[classNote]; ok && i.Spec.IngressClassName != nil &&
				note != *i.Spec.IngressClassName {
				errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classNote), note,
					"must match `ingressClassName` when both are specified"))
			}
			return errs
		},
		ValidateUpdate: func(i, _ *networkingv1.Ingress) field.ErrorList { return validateIngress(&i.Spec) },
		Warnings: func(i, old *networkingv1.Ingress) []string {
			if _, ok := i.Annotations[classNote]; ok && old == nil && i.Spec.IngressClassName == nil {
				return []string{
					fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classNote),
				}
			}
			return nil
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{
				Name:        "Class",
				Type:        "string",
				Description: "The name of the IngressClass resource that should be used for additional configuration",
			},
			{
				Name:        "Hosts",
				Type:        "string",
				Description: "Hosts that incoming requests are matched against before the ingress rule",
			},
			{
				Name:        "Address",
				Type:        "string",
				Description: "Address is a list containing ingress points for the load-balancer",
			},
			{Name: "Ports", Type: "string", Description: "Ports of TLS configurations that open"},
			kind.AgeColumn,
		},
		Row: ingressRow,
		Status: &kind.Sub[*networkingv1.Ingress]{
			PrepareUpdate: func(i, old *networkingv1.Ingress) { i.Spec = old.Spec },
			ValidateUpdate: func(i, _ *networkingv1.Ingress) field.ErrorList {
				return validateIngressStatus(&i.Status)
			},
			Warnings: func(i *networkingv1.Ingress) []string {
				var out []string
				for j, ingress := range i.Status.LoadBalancer.Ingress {
					if ingress.IP != "" {
						at := field.NewPath("status", "loadBalancer", "ingress").Index(j)
						out = append(out, check.WarnIP(at, ingress.IP)...)
					}
				}
				return out
			},
		},
	}.Erase()
}

func ingressRow(ingress *networkingv1.Ingress) []any {
	class := "<none>"
	ports := "80"
	if c := ingress.Spec.IngressClassName; c != nil {
		class = *c
	}
	if len(ingress.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	addresses := map[string]bool{}
	for _, in := range ingress.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			addresses[in.IP] = true
		} else if in.Hostname != "" {
			addresses[in.Hostname] = true
		}
	}
	return []any{
		ingress.Name, class, hosts(ingress.Spec.Rules), strings.Join(slices.Sorted(maps.Keys(addresses)), ","), ports,
		kind.Age(ingress.CreationTimestamp),
	}
}

// hosts are the first three: "a,b,c + 2 more...".
func hosts(rules []networkingv1.IngressRule) string {
	const most = 3
	var list []string
	more := false
	for i := range rules {
		more = more || len(list) == most
		if !more && rules[i].Host != "" {
			list = append(list, rules[i].Host)
		}
	}
	switch {
	case len(list) == 0:
		return "*"
	case more:
		return fmt.Sprintf("%s + %d more...", strings.Join(list, ","), len(rules)-most)
	}
	return strings.Join(list, ",")
}

func validateIngress(ingressSpec *networkingv1.IngressSpec) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	if len(ingressSpec.Rules) == 0 && ingressSpec.DefaultBackend == nil {
		errs.Invalid("", ingressSpec.Rules, "either `defaultBackend` or `rules` must be specified")
	}
	if b := ingressSpec.DefaultBackend; b != nil {
		errs.Within("defaultBackend", func() { validateBackend(errs, b) })
	}
	check.Each(errs, "rules", ingressSpec.Rules, func(_ int, r *networkingv1.IngressRule) { validateRule(errs, r) })
	check.Each(errs, "tls", ingressSpec.TLS, func(_ int, t *networkingv1.IngressTLS) {
		check.Each(errs, "hosts", t.Hosts, func(_ int, h *string) { host(errs, "", *h) })
		if t.SecretName != "" {
			errs.Subdomain("secretName", t.SecretName)
		}
	})
	if c := ingressSpec.IngressClassName; c != nil {
		errs.Subdomain("ingressClassName", *c)
	}
	return errs.Errors()
}

// host wants a DNS name, whose first label may be a star.
func host(l *check.List, child, h string) {
	if !strings.Contains(h, "*") {
		l.Subdomain(child, h)
		return
	}
	for _, msg := range validation.IsWildcardDNS1123Subdomain(h) {
		l.Invalid(child, h, msg)
	}
}

func validateRule(errs *check.List, ingressRule *networkingv1.IngressRule) {
	if ingressRule.Host != "" {
		if isIP(ingressRule.Host) {
			errs.Invalid("host", ingressRule.Host, "must be a DNS name, not an IP address")
		}
		host(errs, "host", ingressRule.Host)
	}
	if ingressRule.HTTP == nil {
		return
	}
	errs.In("http")
	defer errs.Out()
	if len(ingressRule.HTTP.Paths) == 0 {
		errs.Required("paths", "")
	}
	check.Each(errs, "paths", ingressRule.HTTP.Paths, func(_ int, p *networkingv1.HTTPIngressPath) {
		if p.PathType == nil {
			errs.Required("pathType", "pathType must be specified")
			return
		}
		validatePath(errs, p)
		errs.Within("backend", func() { validateBackend(errs, &p.Backend) })
	})
}

func validatePath(errs *check.List, path *networkingv1.HTTPIngressPath) {
	absolute := func() {
		if !strings.HasPrefix(path.Path, "/") {
			errs.Invalid("path", path.Path, "must be an absolute path")
		}
	}
	switch *path.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		absolute()
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(path.Path, bad) {
				errs.Invalid("path", path.Path, fmt.Sprintf("must not contain '%s'", bad))
			}
		}
		for _, bad := range []string{"/..", "/."} {
			if strings.HasSuffix(path.Path, bad) {
				errs.Invalid("path", path.Path, fmt.Sprintf("cannot end with '%s'", bad))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if path.Path != "" {
			absolute()
		}
	default:
		check.NotSupported(errs, "pathType", *path.PathType, networkingv1.PathTypeExact,
			networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix)
	}
}

func validateBackend(errs *check.List, b *networkingv1.IngressBackend) {
	switch {
	case b.Resource != nil && b.Service != nil:
		errs.Invalid("", "", "cannot set both resource and service backends")
	case b.Resource != nil:
		errs.Within("resource", func() {
			validateReference(errs, b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name, false)
		})
	case b.Service != nil:
		validateServiceBackend(errs, b.Service)
	default:
		errs.Invalid("", "", "resource or service backend is required")
	}
}

func validateServiceBackend(errs *check.List, backend *networkingv1.IngressServiceBackend) {
	errs.Within("service", func() {
		if backend.Name == "" {
			errs.Required("name", "")
			return
		}
		for _, msg := range apivalidation.NameIsDNSLabel(backend.Name, false) {
			errs.Invalid("name", backend.Name, msg)
		}
	})
	switch {
	case backend.Port.Name != "" && backend.Port.Number != 0:
		errs.Invalid("", "", "cannot set both port name & port number")
	case backend.Port.Name != "":
		for _, msg := range check.PortName(backend.Port.Name) {
			errs.Add(field.Invalid(errs.Path("service").Child("port").Child("name"), backend.Port.Name, msg))
		}
	case backend.Port.Number != 0:
		for _, msg := range validation.IsValidPortNum(int(backend.Port.Number)) {
			errs.Add(field.Invalid(errs.Path("service").Child("port").Child("number"), backend.Port.Number, msg))
		}
	default:
		errs.Required("", "port name or number is required")
	}
}

// validateReference checks a reference to an object of any kind.
func validateReference(l *check.List, group *string, k, name string, declared bool) {
	if group != nil {
		for _, msg := range validation.IsDNS1123Subdomain(*group) {
			l.Invalid("apiGroup", group, msg)
		}
	}
	segment(l, "kind", k, declared)
	segment(l, "name", name, declared)
}

func validateIngressStatus(s *networkingv1.IngressStatus) field.ErrorList {
	errs := check.At(field.NewPath("status", "loadBalancer"))
	check.Each(errs, "ingress", s.LoadBalancer.Ingress, func(_ int, in *networkingv1.IngressLoadBalancerIngress) {
		if in.IP != "" {
			errs.IP("ip", in.IP)
		}
		if in.Hostname != "" {
			errs.Subdomain("hostname", in.Hostname)
			if isIP(in.Hostname) {
				errs.Invalid("hostname", in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	})
	return errs.Errors()
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
