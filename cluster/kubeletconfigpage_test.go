// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"keelson/cluster/configz"
	"keelson/cluster/noderoles"
	"keelson/kubelet"
)

// fieldsOf adds the paths of a configuration's fields, by their names in JSON, down to types of other packages.
func fieldsOf(t reflect.Type, lead string, into map[string]bool) {
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			continue // kind and apiVersion
		}
		of := field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && of.PkgPath() == t.PkgPath() {
			fieldsOf(of, lead+name+".", into)
			continue
		}
		into[lead+name] = true
	}
}

// TestKubeletConfiguration: docs/kubelet-config.md has a row for each field of Kubernetes' KubeletConfiguration, and no
// other. A flag that a row names is there. What /configz says is a field, and one that has an effect.
func TestKubeletConfiguration(t *testing.T) {
	page, err := os.ReadFile("../docs/kubelet-config.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]bool{}
	for _, role := range Roles() {
		if role.Name != noderoles.KubeletName {
			continue
		}
		for _, row := range role.Rows(&RoleConfig{}) {
			flags[row.Name] = true
		}
	}
	fields := map[string]bool{}
	fieldsOf(reflect.TypeFor[kubeletv1beta1.KubeletConfiguration](), "", fields)
	states := map[string]string{}
	count := map[string]int{}
	named := regexp.MustCompile("`--([a-z-]+)`")
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		if len(cells) != 3 || cells[0] == "field" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		field, state, text := cells[0], cells[1], cells[2]
		if !fields[field] || states[field] != "" {
			t.Errorf("%s: no field of v1.37, or a second row", field)
		}
		states[field] = state
		count[state]++
		found := named.FindStringSubmatch(text)
		if state == "flag" && (found == nil || !flags[found[1]]) {
			t.Errorf("%s: %q names no flag of the kubelet", field, text)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if states[field] == "" {
			t.Errorf("%s: no row", field)
		}
	}
	if want := fmt.Sprintf("%d fields: %d flag, %d fixed, %d own, %d absent.", len(fields), count["flag"],
		count["fixed"], count["own"], count["absent"]); !strings.Contains(string(page), want) {
		t.Errorf("the page does not say %q", want)
	}
	_, said := configz.Kubelet(&kubelet.Config{})
	for name := range said {
		isField := func(field string) bool {
			return (field == name || strings.HasPrefix(field, name+".")) && states[field] != "absent"
		}
		if name != "kind" && name != "apiVersion" && !slices.ContainsFunc(slices.Collect(maps.Keys(fields)), isField) {
			t.Errorf("/configz says %s, which has no row with an effect", name)
		}
	}
}
