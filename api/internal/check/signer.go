// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxSignerPath = validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 1
	maxSigner     = validation.DNS1123SubdomainMaxLength + maxSignerPath + 1
)

// SignerName wants <domain>/<path>: a domain of two labels or more, and a path of DNS subdomains joined by dots.
func (l *List) SignerName(child, name string) {
	if name == "" {
		l.Required(child, "")
		return
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		l.Invalid(child, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		l.TooLong(child, validation.DNS1123SubdomainMaxLength)
	}
	labels := strings.Split(domain, ".")
	l.firstWrong(child, domain, labels, validation.IsDNS1123Label)
	if len(labels) < 2 {
		l.Invalid(child, domain, "should be a domain with at least two segments separated by dots")
	}
	l.firstWrong(child, path, strings.Split(path, "."), validation.IsDNS1123Subdomain)
	if len(name) > maxSigner {
		l.TooLong(child, maxSigner)
	}
}

// firstWrong reports the first of whole's parts that check finds wrong; the errors of more would look the same.
func (l *List) firstWrong(child, whole string, parts []string, check func(string) []string) {
	for _, part := range parts {
		msgs := check(part)
		for _, m := range msgs {
			l.Invalid(child, whole, fmt.Sprintf("validating label %q: %s", part, m))
		}
		if len(msgs) > 0 {
			return
		}
	}
}
