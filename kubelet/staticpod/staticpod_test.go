// SPDX-License-Identifier: Apache-2.0

package staticpod

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const manifest = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: st\nspec:\n  containers:\n  - name: c\n    image: " +
	"img:1\n"

func TestParse(t *testing.T) {
	pod, err := Parse([]byte(manifest), "Node-1")
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "st-node-1" || pod.Namespace != "default" || pod.UID == "" || pod.Spec.NodeName != "Node-1" ||
		pod.Spec.Containers[0].ImagePullPolicy != "IfNotPresent" {
		t.Errorf("got %+v", pod)
	}
	again, _ := Parse([]byte(manifest), "Node-1")
	other, _ := Parse([]byte(strings.Replace(manifest, "img:1", "img:2", 1)), "Node-1")
	if again.UID != pod.UID || other.UID == pod.UID {
		t.Errorf("identities: %s, again %s, changed %s; want the first two equal", pod.UID, again.UID, other.UID)
	}
	for name, bad := range map[string]string{
		"another kind":                     strings.Replace(manifest, "Pod", "Node", 1),
		"no name":                          strings.Replace(manifest, "name: st", "labels: {}", 1),
		"no containers":                    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n",
		"unknown field":                    manifest + "bogus: 1\n",
		"no YAML":                          "{",
		"a quantity of millions of digits": manifest + "    resources: {limits: {cpu: 1e2880888}}\n",
		"such a quantity, escaped":         manifest + `    resources: {limits: {cpu: "1\u00652880888"}}` + "\n",
	} {
		if _, err := Parse([]byte(bad), "n"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestParseRefusesReferences: a static pod refers to nothing of the API.
func TestParseRefusesReferences(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n"
	const plain = "  containers: [{name: c, image: i}]\n"
	for _, c := range []struct{ spec, want string }{
		{plain + "  volumes: [{name: v, emptyDir: {}}, {name: w, hostPath: {path: /}}]\n", ""},
		{plain + "  volumes: [{name: v, projected: {sources: [{downwardAPI: {items: []}}]}}]\n", ""},
		{plain + "  serviceAccountName: s\n", "serviceaccounts"},
		{plain + "  imagePullSecrets: [{name: s}]\n", "secrets"},
		{plain + "  volumes: [{name: v, secret: {secretName: s}}]\n", "secrets"},
		{"  containers: [{name: c, image: i, envFrom: [{configMapRef: {name: m}}]}]\n", "configmaps"},
		{plain + "  resourceClaims: [{name: r, resourceClaimName: r}]\n", "resourceclaims"},
		{plain + "  volumes: [{name: v, persistentVolumeClaim: {claimName: p}}]\n", "persistentvolumeclaims"},
		{plain + "  volumes: [{name: v, ephemeral: {}}]\n", "persistentvolumeclaims"},
		{plain + "  volumes: [{name: v, csi: {driver: d}}]\n", "csidrivers"},
		{
			plain + "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n",
			"serviceaccounts",
		},
		{
			plain + "  volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: t}}]}}]\n",
			"clustertrustbundles",
		},
	} {
		_, err := Parse([]byte(head+c.spec), "n")
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: got %v", c.spec, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), "may not reference "+c.want)):
			t.Errorf("%s: got %v, want it refused for %s", c.spec, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`))
	f.Add([]byte("apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}}]\n---\nkind: Pod\n"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = Parse(b, "n") })
}

// TestPriorityIsLogged: a static pod whose priority no class gives runs, and the log says what is wrong.
func TestPriorityIsLogged(t *testing.T) {
	for spec, want := range map[string]string{
		"": "",
		"  priorityClassName: system-node-critical\n":                         "",
		"  priorityClassName: system-node-critical\n  priority: 2000001000\n": "",
		"  priorityClassName: important\n":                                    `priorityClassName \"important\" is unknown`,
		"  priorityClassName: system-node-critical\n  priority: 7\n":          "priority 7 is not that of system-node-critical",
		"  priority: 7\n": "priority 7 has no priorityClassName",
	} {
		var log bytes.Buffer
		dir, err := Open(t.TempDir(), "node-1", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir.path, "pod.yaml"), []byte(manifest+spec), 0o600); err != nil {
			t.Fatal(err)
		}
		if pods := dir.Read(); len(pods) != 1 {
			t.Errorf("%q: got %d pods, want it to run", spec, len(pods))
		}
		if got := log.String(); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: got log %q, want %q", spec, got, want)
		}
	}
}
