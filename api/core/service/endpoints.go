// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"keelson/api/internal/check"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

// Endpoints describes v1 Endpoints.
func Endpoints() *kind.Kind {
	return kind.Spec[*corev1.Endpoints]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Endpoints",
			Resource:   "endpoints",
			Singular:   "endpoints",
			ShortNames: []string{"ep"},
			Namespaced: true,
		},
		New:     func() *corev1.Endpoints { return &corev1.Endpoints{} },
		NewList: func() runtime.Object { return &corev1.EndpointsList{} },
		Default: func(e *corev1.Endpoints) {
			for i := range e.Subsets {
				for j := range e.Subsets[i].Ports {
					if p := &e.Subsets[i].Ports[j]; p.Protocol == "" {
						p.Protocol = corev1.ProtocolTCP
					}
				}
			}
		},
		Validate: func(e *corev1.Endpoints) field.ErrorList {
			return append(meta.Finalizers(e), validateEndpoints(e)...)
		},
		ValidateUpdate: func(e, old *corev1.Endpoints) field.ErrorList {
			if equality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
				return nil // what was allowed once stays
			}
			return validateEndpoints(e)
		},
		CreateOnUpdate: true,
		Warnings:       func(e, _ *corev1.Endpoints) []string { return endpointsWarnings(e) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {
				Name:        "Endpoints",
				Type:        "string",
				Description: corev1.Endpoints{}.SwaggerDoc()["subsets"],
			}, kind.AgeColumn,
		},
		Row: func(e *corev1.Endpoints) []any {
			return []any{e.Name, formatEndpoints(e), kind.Age(e.CreationTimestamp)}
		},
	}.Erase()
}

// endpointsWarnings are about addresses in a form that is not the usual one. The controller writes none such.
func endpointsWarnings(e *corev1.Endpoints) []string {
	if e.Labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
		return nil
	}
	var out []string
	for i := range e.Subsets {
		at := field.NewPath("subsets").Index(i)
		for j, address := range e.Subsets[i].Addresses {
			path := at.Child("addresses").Index(j).Child("ip")
			out = append(out, check.WarnIP(path, address.IP)...)
		}
		for j, address := range e.Subsets[i].NotReadyAddresses {
			path := at.Child("notReadyAddresses").Index(j).Child("ip")
			out = append(out, check.WarnIP(path, address.IP)...)
		}
	}
	return out
}

// formatEndpoints shows at most three addresses: "10.42.0.7:80,10.42.0.8:80 + 3 more...".
func formatEndpoints(e *corev1.Endpoints) string {
	const most = 3
	var list []string
	for i := range e.Subsets {
		s := &e.Subsets[i]
		if len(s.Ports) == 0 {
			for _, a := range s.Addresses {
				list = append(list, a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				list = append(list, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	switch {
	case len(list) == 0:
		return "<none>"
	case len(list) > most:
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:most], ","), len(list)-most)
	}
	return strings.Join(list, ",")
}

func validateEndpoints(e *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range e.Subsets {
		endpointSubset := &e.Subsets[i]
		path := field.NewPath("subsets").Index(i)
		if len(endpointSubset.Addresses)+len(endpointSubset.NotReadyAddresses) == 0 {
			errs = invalid.Append(errs, field.Required(path, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range endpointSubset.Addresses {
			errs = invalid.Append(errs, validateEndpointAddress(&endpointSubset.Addresses[j],
				path.Child("addresses").Index(j))...)
		}
		for j := range endpointSubset.NotReadyAddresses {
			errs = invalid.Append(errs,
				validateEndpointAddress(&endpointSubset.NotReadyAddresses[j],
					path.Child("notReadyAddresses").Index(j))...)
		}
		for j := range endpointSubset.Ports {
			errs = invalid.Append(errs, validateEndpointPort(&endpointSubset.Ports[j], len(endpointSubset.Ports) > 1,
				path.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateEndpointAddress(address *corev1.EndpointAddress, path *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(path.Child("ip"), address.IP, true, nil)
	if address.Hostname != "" {
		for _, msg := range validation.IsDNS1123Label(address.Hostname) {
			errs = invalid.Append(errs, field.Invalid(path.Child("hostname"), address.Hostname, msg))
		}
	}
	if address.NodeName != nil {
		for _, msg := range validation.IsDNS1123Subdomain(*address.NodeName) {
			errs = invalid.Append(errs, field.Invalid(path.Child("nodeName"), *address.NodeName, msg))
		}
	}
	return append(errs, ValidateEndpointIP(address.IP, path.Child("ip"))...)
}

// ValidateEndpointIP refuses addresses that must not be reached through a service: unspecified, loopback, link-local.
func ValidateEndpointIP(address string, path *field.Path) field.ErrorList {
	ip := utilnet.ParseIPSloppy(address)
	switch {
	case ip == nil:
		return field.ErrorList{field.Invalid(path, address, "must be a valid IP address")}
	case ip.IsUnspecified():
		return field.ErrorList{field.Invalid(path, address, fmt.Sprintf("may not be unspecified (%v)", address))}
	case ip.IsLoopback():
		return field.ErrorList{field.Invalid(path, address, "may not be in the loopback range (127.0.0.0/8, ::1/128)")}
	case ip.IsLinkLocalUnicast():
		return field.ErrorList{
			field.Invalid(path, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
		}
	case ip.IsLinkLocalMulticast():
		return field.ErrorList{
			field.Invalid(path, address, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
		}
	}
	return nil
}

func validateEndpointPort(endpointPort *corev1.EndpointPort, nameRequired bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if endpointPort.Name == "" {
		if nameRequired {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
	} else {
		for _, msg := range validation.IsDNS1123Label(endpointPort.Name) {
			errs = invalid.Append(errs, field.Invalid(path.Child("name"), endpointPort.Name, msg))
		}
	}
	for _, msg := range validation.IsValidPortNum(int(endpointPort.Port)) {
		errs = invalid.Append(errs, field.Invalid(path.Child("port"), endpointPort.Port, msg))
	}
	switch endpointPort.Protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	case "":
		errs = append(errs, field.Required(path.Child("protocol"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("protocol"), endpointPort.Protocol, []corev1.Protocol{
			corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP,
		}))
	}
	if endpointPort.AppProtocol != nil {
		for _, msg := range validation.IsQualifiedName(*endpointPort.AppProtocol) {
			errs = invalid.Append(errs, field.Invalid(path.Child("appProtocol"), *endpointPort.AppProtocol, msg))
		}
	}
	return errs
}
