// SPDX-License-Identifier: Apache-2.0

package check

import (
	"maps"
	"net/netip"
	"slices"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The ok functions below accept only what the apimachinery function of the same purpose accepts (a fuzz test holds
// that); they spare valid objects its regular expressions. Whatever they do not accept is asked there, which also
// gives the words.

func lowerAlnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

func alnum(c byte) bool { return lowerAlnum(c) || 'A' <= c && c <= 'Z' }

// okLabel accepts DNS-1123 labels.
func okLabel(s string) bool {
	if len(s) == 0 || len(s) > validation.DNS1123LabelMaxLength || !lowerAlnum(s[0]) || !lowerAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !lowerAlnum(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}

// okSubdomain accepts DNS-1123 subdomains.
func okSubdomain(s string) bool {
	if len(s) == 0 || len(s) > validation.DNS1123SubdomainMaxLength {
		return false
	}
	start := 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			if !lowerAlnum(s[i]) && s[i] != '-' {
				return false
			}
			continue
		}
		if i == start || s[start] == '-' || s[i-1] == '-' {
			return false
		}
		start = i + 1
	}
	return true
}

// okName accepts the name part of a qualified name, and non-empty label values.
func okName(s string) bool {
	if len(s) == 0 || len(s) > 63 || !alnum(s[0]) || !alnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// okQualified accepts qualified names: [subdomain/]name.
func okQualified(s string) bool {
	for i := range len(s) {
		if s[i] == '/' {
			return okSubdomain(s[:i]) && okName(s[i+1:])
		}
	}
	return okName(s)
}

// okKey accepts keys of config maps and secrets.
func okKey(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// okEnv accepts names of environment variables: printable ASCII without "=".
func okEnv(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '_' {
			return false
		}
	}
	return len(s) > 0
}

func (l *List) invalidEach(child, value string, msgs []string) {
	for _, m := range msgs {
		l.Invalid(child, value, m)
	}
}

// Label wants a DNS-1123 label.
func (l *List) Label(child, v string) {
	if !okLabel(v) {
		l.invalidEach(child, v, validation.IsDNS1123Label(v))
	}
}

// Subdomain wants a DNS-1123 subdomain.
func (l *List) Subdomain(child, v string) {
	if !okSubdomain(v) {
		l.invalidEach(child, v, validation.IsDNS1123Subdomain(v))
	}
}

// Name wants what nameFn accepts as a full name; nameFn must accept every DNS-1123 label.
func (l *List) Name(child, v string, nameFn apivalidation.ValidateNameFunc) {
	if !okLabel(v) {
		l.invalidEach(child, v, nameFn(v, false))
	}
}

// Prefix is Name for names that may end as a generateName does.
func (l *List) Prefix(child, v string, nameFn apivalidation.ValidateNameFunc) {
	if !okLabel(v) {
		l.invalidEach(child, v, nameFn(v, true))
	}
}

// Qualified wants a qualified name, such as a label key.
func (l *List) Qualified(child, v string) {
	if !okQualified(v) {
		l.invalidEach(child, v, validation.IsQualifiedName(v))
	}
}

// LabelValue wants a label value.
func (l *List) LabelValue(child, v string) {
	if v != "" && !okName(v) {
		l.invalidEach(child, v, validation.IsValidLabelValue(v))
	}
}

// Labels wants valid label keys and values in the map at the current field.
func (l *List) Labels(child string, labels map[string]string) {
	for k, v := range labels {
		if !okQualified(k) || v != "" && !okName(v) {
			l.badLabels(child, labels)
			return
		}
	}
}

// badLabels reports what is wrong with labels, in the order of their keys.
func (l *List) badLabels(child string, labels map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		l.invalidEach(child, k, validation.IsQualifiedName(k))
		l.invalidEach(child, labels[k], validation.IsValidLabelValue(labels[k]))
	}
}

// EnvName wants a name of an environment variable by the relaxed rules (KEP-4369).
func (l *List) EnvName(child, v string) {
	if !okEnv(v) {
		l.invalidEach(child, v, validation.IsRelaxedEnvVarName(v))
	}
}

// ConfigKey wants a key of a config map or secret.
func (l *List) ConfigKey(child, v string) {
	if !okKey(v) {
		l.invalidEach(child, v, validation.IsConfigMapKey(v))
	}
}

// Port wants a port number.
func (l *List) Port(child string, port int32) {
	if port < 1 || port > 65535 {
		for _, m := range validation.IsValidPortNum(int(port)) {
			l.Invalid(child, port, m)
		}
	}
}

// PortOrName wants a port number or an IANA service name.
func (l *List) PortOrName(child string, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		if port.IntVal < 1 || port.IntVal > 65535 {
			for _, m := range validation.IsValidPortNum(port.IntValue()) {
				l.Invalid(child, port.IntValue(), m)
			}
		}
		return
	}
	l.invalidEach(child, port.StrVal, PortName(port.StrVal))
}

// IP wants an IP address; leading zeros and IPv4-mapped IPv6 are refused (KEP-4858).
func (l *List) IP(child, v string) {
	if a, err := netip.ParseAddr(v); err != nil || a.Is4In6() || a.Zone() != "" {
		l.Add(validation.IsValidIPForLegacyField(l.Path(child), v, true, nil)...)
	}
}

// CIDR wants an address range; bits beyond the prefix length are refused (KEP-4858).
func (l *List) CIDR(child, v string) {
	if p, err := netip.ParsePrefix(v); err != nil || p.Addr().Is4In6() || p.Masked() != p {
		l.Add(validation.IsValidCIDRForLegacyField(l.Path(child), v, true, nil)...)
	}
}

// UserID wants a user id in range; nil is fine.
func (l *List) UserID(child string, id *int64) {
	if id != nil {
		for _, m := range validation.IsValidUserID(*id) {
			l.Invalid(child, *id, m)
		}
	}
}

// GroupID wants a group id in range; nil is fine.
func (l *List) GroupID(child string, id *int64) {
	if id != nil {
		for _, m := range validation.IsValidGroupID(*id) {
			l.Invalid(child, *id, m)
		}
	}
}

// NotNegative wants a number of zero or more.
func (l *List) NotNegative(child string, v int64) {
	if v < 0 {
		l.Invalid(child, v, apivalidation.IsNegativeErrorMsg)
	}
}

// Pointer reports *value unless it is one of valid (in the order to print); nil is fine.
func Pointer[T ~string](l *List, child string, value *T, valid ...T) {
	if value != nil && !slices.Contains(valid, *value) {
		NotSupported(l, child, *value, valid...)
	}
}

// okPortName accepts IANA service names.
func okPortName(s string) bool {
	if len(s) == 0 || len(s) > 15 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	letter := false
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z':
			letter = true
		case '0' <= c && c <= '9':
		case c == '-' && s[i-1] != '-':
		default:
			return false
		}
	}
	return letter
}

// PortName says what is wrong with s as an IANA service name.
func PortName(s string) []string {
	if okPortName(s) {
		return nil
	}
	return validation.IsValidPortName(s)
}

// LabelValue says what is wrong with s as a label value.
func LabelValue(s string) []string {
	if s == "" || okName(s) {
		return nil
	}
	return validation.IsValidLabelValue(s)
}

// Selector wants a valid label selector; nil is fine.
func (l *List) Selector(child string, s *metav1.LabelSelector) {
	if s == nil || okSelector(s) {
		return
	}
	l.In(child)
	l.Labels("matchLabels", s.MatchLabels)
	for i := range s.MatchExpressions {
		at := l.Path("matchExpressions").Index(i)
		l.Add(metavalidation.ValidateLabelSelectorRequirement(s.MatchExpressions[i],
			metavalidation.LabelSelectorValidationOptions{}, at)...)
	}
	l.Out()
}

func okSelector(s *metav1.LabelSelector) bool {
	for k, v := range s.MatchLabels {
		if !okQualified(k) || v != "" && !okName(v) {
			return false
		}
	}
	for i := range s.MatchExpressions {
		requirement := &s.MatchExpressions[i]
		switch requirement.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(requirement.Values) == 0 {
				return false
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(requirement.Values) > 0 {
				return false
			}
		default:
			return false
		}
		if !okQualified(requirement.Key) || slices.ContainsFunc(requirement.Values, func(v string) bool {
			return v != "" && !okName(v)
		}) {
			return false
		}
	}
	return true
}
