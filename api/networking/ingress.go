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
			if _, ok := i.Annotations[classNote]; ok && old == nil {
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
		},
	}.Erase()
}

func ingressRow(i *networkingv1.Ingress) []any {
	class := "<none>"
	ports := "80"
	if c := i.Spec.IngressClassName; c != nil {
		class = *c
	}
	if len(i.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	addresses := map[string]bool{}
	for _, in := range i.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			addresses[in.IP] = true
		} else if in.Hostname != "" {
			addresses[in.Hostname] = true
		}
	}
	return []any{
		i.Name, class, hosts(i.Spec.Rules), strings.Join(slices.Sorted(maps.Keys(addresses)), ","), ports,
		kind.Age(i.CreationTimestamp),
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

func validateIngress(s *networkingv1.IngressSpec) field.ErrorList {
	l := check.At(field.NewPath("spec"))
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		l.Invalid("", s.Rules, "either `defaultBackend` or `rules` must be specified")
	}
	if b := s.DefaultBackend; b != nil {
		l.Within("defaultBackend", func() { validateBackend(l, b) })
	}
	check.Each(l, "rules", s.Rules, func(_ int, r *networkingv1.IngressRule) { validateRule(l, r) })
	check.Each(l, "tls", s.TLS, func(_ int, t *networkingv1.IngressTLS) {
		check.Each(l, "hosts", t.Hosts, func(_ int, h *string) { host(l, "", *h) })
		if t.SecretName != "" {
			l.Subdomain("secretName", t.SecretName)
		}
	})
	if c := s.IngressClassName; c != nil {
		l.Subdomain("ingressClassName", *c)
	}
	return l.Errors()
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

func validateRule(l *check.List, r *networkingv1.IngressRule) {
	if r.Host != "" {
		if isIP(r.Host) {
			l.Invalid("host", r.Host, "must be a DNS name, not an IP address")
		}
		host(l, "host", r.Host)
	}
	if r.HTTP == nil {
		return
	}
	l.In("http")
	defer l.Out()
	if len(r.HTTP.Paths) == 0 {
		l.Required("paths", "")
	}
	check.Each(l, "paths", r.HTTP.Paths, func(_ int, p *networkingv1.HTTPIngressPath) {
		if p.PathType == nil {
			l.Required("pathType", "pathType must be specified")
			return
		}
		validatePath(l, p)
		l.Within("backend", func() { validateBackend(l, &p.Backend) })
	})
}

func validatePath(l *check.List, p *networkingv1.HTTPIngressPath) {
	absolute := func() {
		if !strings.HasPrefix(p.Path, "/") {
			l.Invalid("path", p.Path, "must be an absolute path")
		}
	}
	switch *p.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		absolute()
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(p.Path, bad) {
				l.Invalid("path", p.Path, fmt.Sprintf("must not contain '%s'", bad))
			}
		}
		for _, bad := range []string{"/..", "/."} {
			if strings.HasSuffix(p.Path, bad) {
				l.Invalid("path", p.Path, fmt.Sprintf("cannot end with '%s'", bad))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if p.Path != "" {
			absolute()
		}
	default:
		check.NotSupported(l, "pathType", *p.PathType, networkingv1.PathTypeExact,
			networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix)
	}
}

func validateBackend(l *check.List, b *networkingv1.IngressBackend) {
	switch {
	case b.Resource != nil && b.Service != nil:
		l.Invalid("", "", "cannot set both resource and service backends")
	case b.Resource != nil:
		l.Within("resource", func() {
			validateReference(l, b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name, false)
		})
	case b.Service != nil:
		validateServiceBackend(l, b.Service)
	default:
		l.Invalid("", "", "resource or service backend is required")
	}
}

func validateServiceBackend(l *check.List, s *networkingv1.IngressServiceBackend) {
	l.Within("service", func() {
		if s.Name == "" {
			l.Required("name", "")
			return
		}
		for _, msg := range apivalidation.NameIsDNSLabel(s.Name, false) {
			l.Invalid("name", s.Name, msg)
		}
	})
	switch {
	case s.Port.Name != "" && s.Port.Number != 0:
		l.Invalid("", "", "cannot set both port name & port number")
	case s.Port.Name != "":
		for _, msg := range check.PortName(s.Port.Name) {
			l.Add(field.Invalid(l.Path("service").Child("port").Child("name"), s.Port.Name, msg))
		}
	case s.Port.Number != 0:
		for _, msg := range validation.IsValidPortNum(int(s.Port.Number)) {
			l.Add(field.Invalid(l.Path("service").Child("port").Child("number"), s.Port.Number, msg))
		}
	default:
		l.Required("", "port name or number is required")
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
	l := check.At(field.NewPath("status", "loadBalancer"))
	check.Each(l, "ingress", s.LoadBalancer.Ingress, func(_ int, in *networkingv1.IngressLoadBalancerIngress) {
		if in.IP != "" {
			l.IP("ip", in.IP)
		}
		if in.Hostname != "" {
			l.Subdomain("hostname", in.Hostname)
			if isIP(in.Hostname) {
				l.Invalid("hostname", in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	})
	return l.Errors()
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
