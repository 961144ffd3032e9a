// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/gates"
	"keelson/apiserver/resources"
	"keelson/lib/option"
)

func gatesRow(on *gates.On) option.Row {
	return option.Set(on, "feature-gates",
		"Kubernetes feature gates `NAME=BOOL`,... (GenericWorkload, AllowServiceExternalIPs; "+
			"the others keep the release's defaults)")
}

// runtimeConfig is kube-apiserver's --runtime-config. The flag is checked and has no effect: Keelson serves every
// version it has, some of them only with their feature gate.
type runtimeConfig struct{}

// String formats the flag's value.
func (runtimeConfig) String() string { return "" }

// Type names the value in the usage text.
func (runtimeConfig) Type() string { return "string" }

// Set checks the flag's value.
func (runtimeConfig) Set(text string) error {
	var errs []error
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			errs = append(errs, checkVersion(part))
		}
	}
	return errors.Join(errs...)
}

func checkVersion(part string) error {
	what, value, given := strings.Cut(part, "=")
	if on, err := strconv.ParseBool(value); given && err != nil {
		return fmt.Errorf("%s: %q is neither true nor false", what, value)
	} else if given && !on {
		return fmt.Errorf("%s cannot be switched off", what)
	}
	switch what {
	case "api/all", "api/ga", "api/beta", "api/alpha":
		return nil
	}
	words := strings.SplitN(what, "/", 3)
	if what == "v1" || len(words) > 1 && words[0] == "api" {
		words = []string{"", words[len(words)-1]}
	}
	for _, row := range resources.Table(gates.All()) {
		n := row.Kind.Names
		if len(words) >= 2 && (schema.GroupVersion{Group: n.Group, Version: n.Version}) == (schema.GroupVersion{
			Group:   words[0],
			Version: words[1],
		}) && (len(words) == 2 || words[2] == n.Resource) {
			return nil
		}
	}
	return fmt.Errorf("this server has no %s", what)
}
