// SPDX-License-Identifier: Apache-2.0

// Package discovery describes the kinds of discovery.k8s.io/v1.
package discovery

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/service"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	mostEndpoints = 1000
	mostPorts     = 20000
	mostAddresses = 100
	mostZones     = 8
)

// EndpointSlice describes discovery.k8s.io/v1 EndpointSlice.
func EndpointSlice() *kind.Kind {
	gv := discoveryv1.SchemeGroupVersion
	return kind.Spec[*discoveryv1.EndpointSlice]{
		Names:         kind.Names{Group: gv.Group, Version: gv.Version, Kind: "EndpointSlice", Resource: "endpointslices", Singular: "endpointslice", Namespaced: true},
		New:           func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		NewList:       func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		Default:       defaultSlice,
		PrepareCreate: func(s *discoveryv1.EndpointSlice) { s.Generation = 1 },
		PrepareUpdate: func(s, old *discoveryv1.EndpointSlice) { s.Generation = old.Generation + 1 },
		Validate: func(s *discoveryv1.EndpointSlice) field.ErrorList {
			return append(meta.Finalizers(s), validateSlice(s)...)
		},
		ValidateUpdate: func(s, old *discoveryv1.EndpointSlice) field.ErrorList {
			return append(validateSlice(s), apivalidation.ValidateImmutableField(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "AddressType", Type: "string", Description: "The type of address carried by this EndpointSlice."},
			{Name: "Ports", Type: "string", Description: "The ports of the endpoints."},
			{Name: "Endpoints", Type: "string", Description: "The addresses of the endpoints."},
			kind.AgeColumn,
		},
		Row: func(s *discoveryv1.EndpointSlice) []any {
			return []any{s.Name, string(s.AddressType), formatPorts(s.Ports), formatAddresses(s.Endpoints), kind.Age(s.CreationTimestamp)}
		},
	}.Erase()
}

func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new(string)
		}
		if p.Protocol == nil {
			tcp := corev1.ProtocolTCP
			p.Protocol = &tcp
		}
	}
}

func formatPorts(ports []discoveryv1.EndpointPort) string {
	if len(ports) == 0 {
		return "<unset>"
	}
	const most = 3
	var list []string
	for _, p := range ports {
		if p.Port == nil {
			list = append(list, "*")
		} else {
			list = append(list, strconv.Itoa(int(*p.Port)))
		}
	}
	if len(list) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:most], ","), len(list)-most)
	}
	return strings.Join(list, ",")
}

func formatAddresses(endpoints []discoveryv1.Endpoint) string {
	if len(endpoints) == 0 {
		return "<unset>"
	}
	const most = 3
	var list []string
	for i := range endpoints {
		list = append(list, endpoints[i].Addresses...)
	}
	if len(list) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:most], ","), len(list)-most)
	}
	return strings.Join(list, ",")
}

func validateSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	types := []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	known := sets.New(types...)
	if s.AddressType == "" {
		errs = append(errs, field.Required(field.NewPath("addressType"), ""))
	} else if !known.Has(s.AddressType) {
		errs = append(errs, field.NotSupported(field.NewPath("addressType"), s.AddressType, types))
	}
	if n := len(s.Endpoints); n > mostEndpoints {
		errs = append(errs, field.TooMany(field.NewPath("endpoints"), n, mostEndpoints))
		return errs
	}
	for i := range s.Endpoints {
		errs = append(errs, validateEndpoint(&s.Endpoints[i], s.AddressType, field.NewPath("endpoints").Index(i))...)
	}
	return append(errs, validatePorts(s.Ports)...)
}

func validateEndpoint(e *discoveryv1.Endpoint, t discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("addresses")
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(at, "must contain at least 1 address"))
	case n > mostAddresses:
		errs = append(errs, field.TooMany(at, n, mostAddresses))
	}
	for i, a := range e.Addresses {
		errs = append(errs, validateAddress(a, t, at.Index(i))...)
	}
	if e.NodeName != nil {
		for _, msg := range validation.IsDNS1123Subdomain(*e.NodeName) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *e.NodeName, msg))
		}
	}
	errs = append(errs, metav1validation.ValidateLabels(e.DeprecatedTopology, path.Child("deprecatedTopology"))...)
	if e.Hostname != nil {
		for _, msg := range validation.IsDNS1123Label(*e.Hostname) {
			errs = append(errs, field.Invalid(path.Child("hostname"), *e.Hostname, msg))
		}
	}
	if e.Hints != nil {
		zones := path.Child("hints", "forZones")
		if n := len(e.Hints.ForZones); n > mostZones {
			errs = append(errs, field.TooMany(zones, n, mostZones))
		}
		seen := sets.New[string]()
		for i, z := range e.Hints.ForZones {
			if seen.Has(z.Name) {
				errs = append(errs, field.Duplicate(zones.Index(i).Child("name"), z.Name))
			}
			seen.Insert(z.Name)
			for _, msg := range validation.IsValidLabelValue(z.Name) {
				errs = append(errs, field.Invalid(zones.Index(i).Child("name"), z.Name, msg))
			}
		}
	}
	return errs
}

func validateAddress(a string, t discoveryv1.AddressType, path *field.Path) field.ErrorList {
	ip := net.ParseIP(a)
	switch {
	case t == discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path, a)
	case t == discoveryv1.AddressTypeIPv4 && (ip == nil || ip.To4() == nil):
		return field.ErrorList{field.Invalid(path, a, "must be a valid IPv4 address")}
	case t == discoveryv1.AddressTypeIPv6 && (ip == nil || ip.To4() != nil):
		return field.ErrorList{field.Invalid(path, a, "must be a valid IPv6 address")}
	}
	return service.ValidateEndpointIP(a, path)
}

func validatePorts(ports []discoveryv1.EndpointPort) field.ErrorList {
	path := field.NewPath("ports")
	if n := len(ports); n > mostPorts {
		return field.ErrorList{field.TooMany(path, n, mostPorts)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != "" {
			for _, msg := range validation.IsDNS1123Label(name) {
				errs = append(errs, field.Invalid(at.Child("name"), name, msg))
			}
		}
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		seen.Insert(name)
		if p.Port != nil {
			for _, msg := range validation.IsValidPortNum(int(*p.Port)) {
				errs = append(errs, field.Invalid(at.Child("port"), *p.Port, msg))
			}
		}
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else if !sets.New(corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP).Has(*p.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), *p.Protocol, []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}))
		}
		if p.AppProtocol != nil {
			for _, msg := range validation.IsQualifiedName(*p.AppProtocol) {
				errs = append(errs, field.Invalid(at.Child("appProtocol"), *p.AppProtocol, msg))
			}
		}
	}
	return errs
}
