// SPDX-License-Identifier: Apache-2.0

// Package discovery describes the kinds of discovery.k8s.io/v1.
package discovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"keelson/api/core/service"
	"keelson/api/internal/check"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	mostEndpoints = 1000
	mostPorts     = 20000
	mostAddresses = 100
	mostZones     = 8
	mostNodes     = 8
	mostTopology  = 16
)

// EndpointSlice describes discovery.k8s.io/v1 EndpointSlice.
func EndpointSlice() *kind.Kind {
	gv := discoveryv1.SchemeGroupVersion
	return kind.Spec[*discoveryv1.EndpointSlice]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "EndpointSlice",
			Resource:   "endpointslices",
			Singular:   "endpointslice",
			Namespaced: true,
		},
		New:     func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		Default: defaultSlice,
		PrepareCreate: func(s *discoveryv1.EndpointSlice) {
			s.Generation = 1
			dropTopology(s, nil)
		},
		PrepareUpdate: prepareUpdate,
		Validate: func(s *discoveryv1.EndpointSlice) field.ErrorList {
			return append(meta.Finalizers(s), validateSlice(s, nil)...)
		},
		ValidateUpdate: func(s, old *discoveryv1.EndpointSlice) field.ErrorList {
			return append(append(meta.Finalizers(s), validateSlice(s, old)...),
				apivalidation.ValidateImmutableField(s.AddressType, old.AddressType, field.NewPath("addressType")).
					MarkBeta()...)
		},
		Warnings: warnings,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "AddressType", Type: "string", Description: discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]},
			{Name: "Ports", Type: "string", Description: discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]},
			{Name: "Endpoints", Type: "string", Description: discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]},
			kind.AgeColumn,
		},
		Row: func(s *discoveryv1.EndpointSlice) []any {
			return []any{s.Name, string(s.AddressType), formatPorts(s.Ports), formatAddresses(s.Endpoints), kind.Age(
				s.CreationTimestamp)}
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

// prepareUpdate counts every change but those of the metadata; labels and annotations are counted too.
func prepareUpdate(slice, old *discoveryv1.EndpointSlice) {
	now := *slice
	was := *old
	now.ObjectMeta = metav1.ObjectMeta{}
	was.ObjectMeta = metav1.ObjectMeta{}
	now.TypeMeta = metav1.TypeMeta{}
	was.TypeMeta = metav1.TypeMeta{}
	slice.Generation = old.Generation
	if !equality.Semantic.DeepEqual(now, was) || !equality.Semantic.DeepEqual(slice.Labels, old.Labels) {
		slice.Generation++
	}
	dropTopology(slice, old)
}

// dropTopology: the field is left from v1beta1. Where it alone said what node an endpoint is on, nodeName says it from
// now on.
func dropTopology(slice, old *discoveryv1.EndpointSlice) {
	nodes := sets.New[string]()
	if old != nil {
		if equality.Semantic.DeepEqual(slice.Endpoints, old.Endpoints) {
			return
		}
		for i := range old.Endpoints {
			nodes.Insert(old.Endpoints[i].DeprecatedTopology[corev1.LabelHostname])
		}
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		node := e.DeprecatedTopology[corev1.LabelHostname]
		if e.NodeName == nil && nodes.Has(node) && len(validation.IsDNS1123Subdomain(node)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

// warnings are about names and, unless a controller wrote them, about addresses in a form that is not the usual one.
func warnings(slice, old *discoveryv1.EndpointSlice) []string {
	var out []string
	if old == nil && slice.AddressType == discoveryv1.AddressTypeFQDN {
		out = append(out, "spec.addressType: FQDN endpoints are deprecated")
	}
	switch slice.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return out
	}
	for i := range slice.Endpoints {
		for j, a := range slice.Endpoints[i].Addresses {
			out = append(out,
				check.WarnIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), a)...)
		}
	}
	return out
}

func validateSlice(slice, old *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	types := []discoveryv1.AddressType{
		discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6,
	}
	if slice.AddressType == "" {
		errs = append(errs, field.Required(field.NewPath("addressType"), "").MarkBeta())
	} else if !slices.Contains(types, slice.AddressType) {
		errs = append(errs, field.NotSupported(field.NewPath("addressType"), slice.AddressType, types).MarkBeta())
	}
	errs = append(errs, validatePorts(slice.Ports)...)
	if old != nil && equality.Semantic.DeepEqual(slice.Endpoints, old.Endpoints) {
		return errs
	}
	if n := len(slice.Endpoints); n > mostEndpoints {
		return append(errs, field.TooMany(field.NewPath("endpoints"), n, mostEndpoints))
	}
	for i := range slice.Endpoints {
		errs = invalid.Append(errs,
			validateEndpoint(&slice.Endpoints[i], slice.AddressType, field.NewPath("endpoints").Index(i))...)
	}
	return errs
}

func validateEndpoint(endpoint *discoveryv1.Endpoint, t discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("addresses")
	switch n := len(endpoint.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(at, "").MarkBeta())
	case n > mostAddresses:
		errs = append(errs, field.TooMany(at, n, mostAddresses).MarkBeta())
	}
	for i, a := range endpoint.Addresses {
		errs = invalid.Append(errs, validateAddress(a, t, at, i)...)
	}
	if endpoint.NodeName != nil {
		for _, msg := range validation.IsDNS1123Subdomain(*endpoint.NodeName) {
			errs = invalid.Append(errs, field.Invalid(path.Child("nodeName"), *endpoint.NodeName, msg))
		}
	}
	if n := len(endpoint.DeprecatedTopology); n > mostTopology {
		errs = append(errs, field.TooMany(path.Child("deprecatedTopology"), n, mostTopology))
	}
	errs = append(errs, metav1validation.ValidateLabels(endpoint.DeprecatedTopology,
		path.Child("deprecatedTopology"))...)
	if endpoint.Hostname != nil {
		for _, msg := range validation.IsDNS1123Label(*endpoint.Hostname) {
			errs = invalid.Append(errs, field.Invalid(path.Child("hostname"), *endpoint.Hostname, msg))
		}
	}
	if endpoint.Hints == nil {
		return errs
	}
	var zones, nodes []string
	for _, z := range endpoint.Hints.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range endpoint.Hints.ForNodes {
		nodes = append(nodes, n.Name)
	}
	found := validateHints(path.Child("hints", "forZones"), zones, mostZones, validation.IsValidLabelValue)
	if len(zones) <= mostZones {
		found = append(found, validateHints(path.Child("hints", "forNodes"), nodes, mostNodes,
			validation.IsDNS1123Subdomain)...)
	}
	return append(errs, found...)
}

func validateHints(path *field.Path, names []string, most int, valid func(string) []string) field.ErrorList {
	if n := len(names); n > most {
		return field.ErrorList{field.TooMany(path, n, most)}
	}
	var errs field.ErrorList
	for i, name := range names {
		at := path.Index(i).Child("name")
		if slices.Contains(names[:i], name) {
			errs = invalid.Append(errs, field.Duplicate(at, name))
		}
		for _, msg := range valid(name) {
			errs = invalid.Append(errs, field.Invalid(at, name, msg))
		}
	}
	return errs
}

// validateAddress checks address i of those at path. An address of a type that is not known may be anything.
func validateAddress(a string, t discoveryv1.AddressType, path *field.Path, i int) field.ErrorList {
	at := path.Index(i)
	var errs field.ErrorList
	switch t {
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(at, a)
	case discoveryv1.AddressTypeIPv4:
		if errs = validation.IsValidIPForLegacyField(at, a, true, nil); len(errs) == 0 && !utilnet.IsIPv4String(a) {
			errs = field.ErrorList{field.Invalid(path, a, "must be an IPv4 address")}
			return append(errs, service.ValidateEndpointIP(a, at)...)
		}
	case discoveryv1.AddressTypeIPv6:
		if errs = validation.IsValidIP(at, a); len(errs) == 0 && !utilnet.IsIPv6String(a) {
			errs = field.ErrorList{field.Invalid(path, a, "must be an IPv6 address")}
			return append(errs, service.ValidateEndpointIP(a, at)...)
		}
	default:
		return nil
	}
	if len(errs) > 0 {
		return errs
	}
	return service.ValidateEndpointIP(a, at)
}

func validatePorts(ports []discoveryv1.EndpointPort) field.ErrorList {
	path := field.NewPath("ports")
	if n := len(ports); n > mostPorts {
		return field.ErrorList{field.TooMany(path, n, mostPorts)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range ports {
		endpointPort := &ports[i]
		at := path.Index(i)
		name := ""
		if endpointPort.Name != nil {
			name = *endpointPort.Name
		}
		if name != "" {
			for _, msg := range validation.IsDNS1123Label(name) {
				errs = invalid.Append(errs, field.Invalid(at.Child("name"), name, msg))
			}
		}
		if seen.Has(name) {
			errs = invalid.Append(errs, field.Duplicate(at.Child("name"), name))
		}
		seen.Insert(name)
		if endpointPort.Protocol == nil {
			errs = invalid.Append(errs, field.Required(at.Child("protocol"), ""))
		} else if !sets.New(corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP).Has(*endpointPort.Protocol) {
			errs = invalid.Append(errs,
				field.NotSupported(at.Child("protocol"), *endpointPort.Protocol, []corev1.Protocol{
					corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP,
				}))
		}
		if endpointPort.AppProtocol != nil {
			for _, msg := range validation.IsQualifiedName(*endpointPort.AppProtocol) {
				errs = invalid.Append(errs, field.Invalid(at.Child("appProtocol"), *endpointPort.AppProtocol, msg))
			}
		}
	}
	return errs
}
