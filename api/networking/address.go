// SPDX-License-Identifier: Apache-2.0

package networking

import (
	"fmt"
	"net/netip"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

// IPAddress describes networking.k8s.io/v1 IPAddress; its name is the address.
func IPAddress() *kind.Kind {
	return kind.Spec[*networkingv1.IPAddress]{
		Names:        names("IPAddress", "ipaddresses", "ipaddress", false, "ip"),
		New:          func() *networkingv1.IPAddress { return &networkingv1.IPAddress{} },
		NewList:      func() runtime.Object { return &networkingv1.IPAddressList{} },
		ValidateName: addressName,
		Validate:     validateAddress,
		ValidateUpdate: func(a, old *networkingv1.IPAddress) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Fixed("parentRef", equality.Semantic.DeepEqual(a.Spec.ParentRef, old.Spec.ParentRef))
			return append(validateAddress(a), l.Errors()...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {Name: "ParentRef", Type: "string", Description: "The object that has the address."},
		},
		Row: func(a *networkingv1.IPAddress) []any {
			parent := "<none>"
			if p := a.Spec.ParentRef; p != nil {
				parent = strings.ToLower(schema.GroupResource{Group: p.Group, Resource: p.Resource}.String())
				if p.Namespace != "" {
					parent += "/" + p.Namespace
				}
				parent += "/" + p.Name
			}
			return []any{a.Name, parent}
		},
	}.Erase()
}

// addressName wants an address written as RFC 5952 says.
func addressName(name string, _ bool) []string {
	a, err := netip.ParseAddr(name)
	if err != nil || a.Zone() != "" {
		return []string{"must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"}
	}
	if a.String() != name {
		return []string{fmt.Sprintf("must be in canonical form (%q)", a.String())}
	}
	return nil
}

func validateAddress(a *networkingv1.IPAddress) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	errs.Add(meta.Finalizers(a)...)
	reference := a.Spec.ParentRef
	if reference == nil {
		errs.Missing("parentRef")
		return errs.Errors()
	}
	errs.In("parentRef")
	if reference.Group != "" {
		errs.Subdomain("group", reference.Group)
	}
	segment(errs, "resource", reference.Resource, true)
	segment(errs, "name", reference.Name, true)
	if reference.Namespace != "" {
		segment(errs, "namespace", reference.Namespace, false)
	}
	return errs.Errors()
}

// ServiceCIDR describes networking.k8s.io/v1 ServiceCIDR.
func ServiceCIDR() *kind.Kind {
	return kind.Spec[*networkingv1.ServiceCIDR]{
		Names:          names("ServiceCIDR", "servicecidrs", "servicecidr", false),
		New:            func() *networkingv1.ServiceCIDR { return &networkingv1.ServiceCIDR{} },
		NewList:        func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		PrepareCreate:  func(c *networkingv1.ServiceCIDR) { c.Status = networkingv1.ServiceCIDRStatus{} },
		PrepareUpdate:  func(c, old *networkingv1.ServiceCIDR) { c.Status = old.Status },
		Validate:       validateRange,
		ValidateUpdate: validateRangeUpdate,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {
				Name:        "CIDRs",
				Type:        "string",
				Description: "The ranges that addresses of services come from.",
			}, kind.AgeColumn,
		},
		Row: func(c *networkingv1.ServiceCIDR) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), kind.Age(c.CreationTimestamp)}
		},
		Status: &kind.Sub[*networkingv1.ServiceCIDR]{
			PrepareUpdate: func(c, old *networkingv1.ServiceCIDR) { // its conditions may have no reason
				c.Spec = old.Spec
				meta.KeepAllForStatus(c, old)
			},
		},
	}.Erase()
}

func validateRange(c *networkingv1.ServiceCIDR) field.ErrorList {
	return append(meta.Finalizers(c), validateRangeSpec(c)...)
}

func validateRangeSpec(c *networkingv1.ServiceCIDR) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	cidrs := c.Spec.CIDRs
	const most = 2
	switch {
	case len(cidrs) == 0:
		errs.Required("cidrs", "at least one CIDR required")
		return errs.Errors()
	case len(cidrs) > most:
		errs.Invalid("cidrs", rangeSpec{cidrs}, "may only hold up to 2 values")
		return errs.Errors()
	}
	check.Each(errs, "cidrs", cidrs, func(_ int, cidr *string) { errs.CIDR("", *cidr) })
	if len(cidrs) == most && sameFamily(cidrs[0], cidrs[1]) {
		errs.Invalid("cidrs", cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and "+
			"2001:db8::/64")
	}
	return errs.Errors()
}

// rangeSpec is how Kubernetes prints what it finds wrong with a whole spec.
type rangeSpec struct{ CIDRs []string }

func sameFamily(a, b string) bool {
	x, err := netip.ParsePrefix(a)
	y, err2 := netip.ParsePrefix(b)
	return err == nil && err2 == nil && x.Addr().Is4() == y.Addr().Is4()
}

// validateRangeUpdate: a range of the other family may be added, nothing else.
func validateRangeUpdate(serviceCIDR, old *networkingv1.ServiceCIDR) field.ErrorList {
	const fixed = "field is immutable"
	errs := meta.Finalizers(serviceCIDR)
	path := field.NewPath("spec", "cidrs")
	now := serviceCIDR.Spec.CIDRs
	was := old.Spec.CIDRs
	if grows := len(was) == 1 && len(now) == 2; len(now) != len(was) && !grows {
		return append(errs, field.Invalid(path, now, fixed))
	}
	for i := range was {
		if now[i] != was[i] {
			errs = invalid.Append(errs, field.Invalid(path.Index(i), now[i], fixed))
		}
	}
	if len(now) > len(was) {
		errs = append(errs, validateRangeSpec(serviceCIDR)...)
	}
	return errs
}
