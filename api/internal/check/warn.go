// SPDX-License-Identifier: Apache-2.0

package check

import (
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// WarnIP returns Kubernetes' warnings about an address in a form that is not the usual one. What is no address at all
// is an error of validation and no warning.
func WarnIP(path *field.Path, value string) []string {
	if utilnet.ParseIPSloppy(value) == nil {
		return nil
	}
	return validation.GetWarningsForIP(path, value)
}

// WarnCIDR is WarnIP for ranges of addresses.
func WarnCIDR(path *field.Path, value string) []string {
	if _, _, err := utilnet.ParseCIDRSloppy(value); err != nil {
		return nil
	}
	return validation.GetWarningsForCIDR(path, value)
}
