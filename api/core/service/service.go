// SPDX-License-Identifier: Apache-2.0

// Package service describes services, and endpoints, their old companions.
package service

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

// Service describes services. Before its functions see one that is created or updated, the server has settled its
// addresses, families and node ports (see Complete and SettleFamilies): validation judges the final object.
func Service() *kind.Kind {
	return kind.Spec[*corev1.Service]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Service",
			Resource:   "services",
			Singular:   "service",
			ShortNames: []string{"svc"},
			Categories: []string{"all"},
			Namespaced: true,
		},
		New:     func() *corev1.Service { return &corev1.Service{} },
		NewList: func() runtime.Object { return &corev1.ServiceList{} },
		Default: defaultService,
		PrepareCreate: func(s *corev1.Service) {
			s.Status = corev1.ServiceStatus{}
			dropPolicy(s)
		},
		PrepareUpdate:  prepareServiceUpdate,
		Validate:       func(s *corev1.Service) field.ErrorList { return validateService(s, nil) },
		ValidateUpdate: validateServiceUpdate,
		ValidateName:   apivalidation.NameIsDNSLabel, // KEP-5311
		Warnings:       func(s, _ *corev1.Service) []string { return serviceWarnings(s) },
		Fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Type", Type: "string", Description: corev1.ServiceSpec{}.SwaggerDoc()["type"]},
			{Name: "Cluster-IP", Type: "string", Description: corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]},
			{Name: "External-IP", Type: "string", Description: corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]},
			{Name: "Port(s)", Type: "string", Description: corev1.ServiceSpec{}.SwaggerDoc()["ports"]},
			kind.AgeColumn,
			kind.Wide("Selector", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
		},
		Row: serviceRow,
		Status: &kind.Sub[*corev1.Service]{
			PrepareUpdate: func(s, old *corev1.Service) {
				s.Spec = old.Spec
				defaultIPMode(s)
			},
			ValidateUpdate: validateLoadBalancerStatus,
			Warnings: func(s *corev1.Service) []string {
				var out []string
				for i, ingress := range s.Status.LoadBalancer.Ingress {
					if ingress.IP != "" {
						at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
						out = append(out, check.WarnIP(at, ingress.IP)...)
					}
				}
				return out
			},
		},
		CreateOnUpdate: true,
	}.Erase()
}

func serviceRow(s *corev1.Service) []any {
	ip := ""
	if len(s.Spec.ClusterIPs) > 0 {
		ip = s.Spec.ClusterIPs[0]
	}
	return []any{
		s.Name, string(s.Spec.Type), kind.OrNone(ip), externalIP(s), kind.OrNone(portsString(s.Spec.Ports)),
		kind.Age(s.CreationTimestamp),
		labels.FormatLabels(s.Spec.Selector),
	}
}

// externalIP is where the service is reached from outside, as kubectl prints it.
func externalIP(service *corev1.Service) string {
	external := strings.Join(service.Spec.ExternalIPs, ",")
	switch service.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return kind.OrNone(external)
	case corev1.ServiceTypeExternalName:
		return service.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var given []string
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				given = append(given, ingress.IP)
			} else if ingress.Hostname != "" {
				given = append(given, ingress.Hostname)
			}
		}
		slices.Sort(given)
		given = append(slices.Compact(given), service.Spec.ExternalIPs...)
		if len(given) == 0 {
			return "<pending>"
		}
		return strings.Join(given, ",")
	default:
		return "<unknown>"
	}
}

func portsString(ports []corev1.ServicePort) string {
	parts := make([]string, len(ports))
	for i, p := range ports {
		if p.NodePort > 0 {
			parts[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		} else {
			parts[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		}
	}
	return strings.Join(parts, ",")
}

func serviceWarnings(service *corev1.Service) []string {
	var out []string
	spec := field.NewPath("spec")
	if _, ok := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		out = append(out, fmt.Sprintf("annotation %s is deprecated, please use %s instead",
			corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	ip := func(path *field.Path, v string) { out = append(out, check.WarnIP(path, v)...) }
	if service.Spec.Type != corev1.ServiceTypeExternalName && !headless(service) {
		for i, v := range service.Spec.ClusterIPs {
			ip(spec.Child("clusterIPs").Index(i), v)
		}
	}
	if headless(service) {
		out = append(out, headlessWarnings(&service.Spec)...)
	}
	for i, v := range service.Spec.ExternalIPs {
		ip(spec.Child("externalIPs").Index(i), v)
	}
	if len(service.Spec.ExternalIPs) > 0 && !headless(service) && service.Spec.Type != corev1.ServiceTypeExternalName {
		out = append(out, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if service.Spec.LoadBalancerIP != "" {
		ip(spec.Child("loadBalancerIP"), service.Spec.LoadBalancerIP)
	}
	for i, v := range service.Spec.LoadBalancerSourceRanges {
		out = append(out, check.WarnCIDR(spec.Child("loadBalancerSourceRanges").Index(i), v)...)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName && len(service.Spec.ExternalIPs) > 0 {
		out = append(out, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q",
			corev1.ServiceTypeExternalName))
	}
	if service.Spec.Type != corev1.ServiceTypeExternalName && service.Spec.ExternalName != "" {
		out = append(out, fmt.Sprintf("spec.externalName is ignored when spec.type is not %q",
			corev1.ServiceTypeExternalName))
	}
	if d := service.Spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		out = append(out, fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q", *d,
			corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return out
}

// headlessWarnings name what a service without an address has no use for.
func headlessWarnings(s *corev1.ServiceSpec) []string {
	var out []string
	if s.LoadBalancerIP != "" {
		out = append(out, "spec.loadBalancerIP is ignored for headless services")
	}
	if len(s.ExternalIPs) > 0 {
		out = append(out, "spec.externalIPs is ignored for headless services")
	}
	if s.SessionAffinity != corev1.ServiceAffinityNone {
		out = append(out, "spec.SessionAffinity is ignored for headless services")
	}
	return out
}
