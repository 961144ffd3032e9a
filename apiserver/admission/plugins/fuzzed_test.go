// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"strings"
	"testing"

	"keelson/apiserver/admission/config"
)

// FuzzDocuments: whatever a plugin's document holds, the plugin is made or its document refused by place.
func FuzzDocuments(f *testing.F) {
	heads := map[string]string{
		"EventRateLimit": "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n",
		"PodSecurity":    "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n",
		"ResourceQuota":  "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\n",
	}
	f.Add("limits: [{type: Server, qps: 1, burst: 1}]")
	f.Add("defaults: {enforce: baseline, enforce-version: v1.30}\nexemptions: {namespaces: [a], usernames: [b], " +
		"runtimeClasses: [c]}")
	f.Add("limitedResources: [{resource: pods, apiGroup: '', matchContains: [a], matchScopes: [{scopeName: " +
		"PriorityClass, operator: In, values: [x]}]}]")
	f.Add("exemptions: {namespaces: [a, a, A]}")
	f.Fuzz(func(t *testing.T, text string) {
		for name, head := range heads {
			file, err := config.Parse([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: "+
				"AdmissionConfiguration\nplugins: [{name: "+name+", path: x}]"), Names(),
				func(string) ([]byte, error) { return []byte(head + text), nil })
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range table {
				if r.name != name {
					continue
				}
				p, _, err := r.build(&Config{Objects: bare{}, File: file})
				if err != nil && !strings.HasPrefix(err.Error(), "plugins[0] ("+name+") in x: ") ||
					err == nil && p.Name() != name {
					t.Fatalf("%s: %q: got %v, %v", name, text, p, err)
				}
			}
		}
	})
}
