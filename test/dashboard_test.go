// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hostile is what a browser must not take for markup or a script.
const hostile = "<img src=x onerror=alert(1)>"

// shop are the objects that the browser looks at.
const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: broken, namespace: shop}
spec:
  selector: {matchLabels: {app: broken}}
  template:
    metadata: {labels: {app: broken}}
    spec:
      containers: [{name: app, image: "127.0.0.1:1/nothing:1"}]
---
apiVersion: v1
kind: Pod
metadata: {name: big, namespace: shop}
spec:
  containers: [{name: app, image: keelson.local/hello, resources: {requests: {cpu: "1000"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: crashing, namespace: shop}
spec:
  containers: [{name: app, image: keelson.local/hello, command: [sh, -c, "echo no database; exit 3"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: talker, namespace: shop}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: keelson.local/hello
    command: [sh, -c, 'i=0; while true; do i=$((i+1)); echo "word $i"; sleep 0.2; done']
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      tolerations: [{key: keelson.dev/fake, operator: Exists}]
      nodeSelector: {type: keelson-fake}
      containers: [{name: app, image: "keelson.local/hello:1"}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: shop}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: hostile
  namespace: shop
  annotations: {evil: "` + hostile + `"}
spec:
  restartPolicy: Never
  containers: [{name: app, image: keelson.local/hello, command: [sh, -c, "echo '` + hostile + `<script>alert(2)</script>'"]}]
---
apiVersion: v1
kind: Event
metadata: {name: hostile, namespace: shop}
involvedObject: {kind: Pod, namespace: shop, name: hostile}
reason: Evil
message: "` + hostile + `"
type: Warning
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {color: red}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: shop}
data: {password: c2VjcmV0}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: viewer, namespace: shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: viewer, namespace: shop}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: viewer}
subjects: [{kind: ServiceAccount, name: viewer, namespace: shop}]
`

// needBrowser returns the browser and the directory of the page's modules. Where there is none, the test is skipped; in
// CI it fails unless the npm registry cannot be reached.
func needBrowser(t *testing.T) (chromium, modules string) {
	t.Helper()
	inCI := os.Getenv("CI") != ""
	for _, program := range []string{"npm", "chromium"} {
		path, err := exec.LookPath(program)
		if err != nil && inCI {
			t.Fatalf("hack/test-needs could not install %s: %v", program, err)
		}
		if err != nil {
			t.Skipf("SKIPPED, needs %s (hack/test-needs installs it): %v", program, err)
		}
		chromium = path
	}
	if said, err := exec.CommandContext(t.Context(), "../hack/ui", "modules").CombinedOutput(); err != nil {
		if inCI && exec.CommandContext(t.Context(), "npm", "ping").Run() == nil {
			t.Fatalf("the registry answers, but the modules could not be installed: %v\n%s", err, said)
		}
		t.Skipf("SKIPPED, needs the npm registry once: %v\n%s", err, said)
	}
	modules, err := filepath.Abs("../.cache/ui")
	if err != nil {
		t.Fatal(err)
	}
	return chromium, modules
}

// TestDashboard looks at a real cluster in a real browser: ui/test/browser.mjs has the cases.
func TestDashboard(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: real containers")
	}
	t.Parallel()
	chromium, modules := needBrowser(t)
	keelson := binary(t)
	data := filepath.Join(t.TempDir(), "data")
	viewer := filepath.Join(t.TempDir(), "viewer")
	// a port that a start after a stop has again
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	up := fmt.Sprintf("up --detach --port %d --node-name here --fake-nodes 2 --eviction-hard nodefs.available<1%% "+
		"--data-dir %s", port, data)
	env := append(os.Environ(), "KEELSON="+keelson, "KEELSON_DATA_DIR="+data, "KUBECONFIG=", "CHROMIUM="+chromium,
		"VIEWER="+viewer, "UP="+up, "HOME="+t.TempDir())
	run := func(input, program string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 8*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = env
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	t.Cleanup(func() { run("", keelson, "down", "--purge", "--data-dir", data) })
	run("", keelson, strings.Fields(up)...)
	run(shop, keelson, "kubectl", "apply", "-f", "-")
	run("", keelson, "kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod/talker", "--timeout=120s")
	run("", keelson, "kubectl", "-n", "shop", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hostile",
		"--timeout=120s")
	run("", keelson, "kubectl", "-n", "shop", "wait", "pod/crashing", "--timeout=120s",
		"--for=jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}=3")
	token := run("", keelson, "kubectl", "-n", "shop", "create", "token", "viewer")
	config, err := os.ReadFile(filepath.Join(data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(viewer, config, 0o600); err != nil {
		t.Fatal(err)
	}
	env = append(env, "KUBECONFIG="+viewer)
	run("", keelson, "kubectl", "config", "set-credentials", "viewer", "--token="+token)
	run("", keelson, "kubectl", "config", "set-context", "--current", "--user=viewer", "--namespace=shop")
	env = append(env, "KUBECONFIG=")
	t.Logf("%s", run("", "node", "--test", "--test-reporter=spec", filepath.Join(modules, "test", "browser.mjs")))
}
