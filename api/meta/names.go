// SPDX-License-Identifier: Apache-2.0

package meta

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ChildName names what a controller makes for owner: the owner's name and suffix, which begins with a hyphen or a dot.
// A name that would be too long is made of the beginning of the owner's. It is no longer unique then, if suffix is not.
func ChildName(owner, suffix string) string {
	if most := validation.DNS1123SubdomainMaxLength - len(suffix); len(owner) > most {
		owner = strings.TrimRight(owner[:most], ".") // no part of a name is empty or begins with a hyphen
	}
	return owner + suffix
}
