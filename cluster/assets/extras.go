// SPDX-License-Identifier: Apache-2.0

package assets

import (
	"fmt"
	"strings"
)

// Extras is the environment variable that adds what a test API server lacks: names of extras, separated by commas.
const Extras = "KEELSON_ENVTEST"

// extras are the controllers of each name in Extras.
var extras = map[string][]string{
	"gc":         {"garbage-collector-controller"},
	"namespaces": {"namespace-controller"},
	"serviceaccounts": {
		"serviceaccount-controller", "serviceaccount-token-controller", "root-ca-certificate-publisher-controller",
	},
}

// controllersOf returns the controllers that the value of Extras names.
func controllersOf(value string) ([]string, error) {
	var out []string
	for _, name := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		if name == "all" {
			return controllersOf("gc,namespaces,serviceaccounts")
		}
		names, ok := extras[name]
		if !ok {
			return nil, fmt.Errorf("%s=%s: there is no %q; there are gc, namespaces, serviceaccounts and all", Extras,
				value, name)
		}
		out = append(out, names...)
	}
	return out, nil
}
