// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// networkAttacks are what tenants do by Services and NetworkPolicies to other tenants and to nodes.
var networkAttacks = []attack{
	{name: "policy-of-4000-selectors", run: attackWidePolicy},
	{name: "external-ips", run: attackExternalIPs},
	{
		name: "external-ips-allowed",
		up:   []string{"--feature-gates=AllowServiceExternalIPs=true"},
		run:  attackExternalIPsAllowed,
	},
}

// attackWidePolicy isolates a pod by a policy with 4,000 selectors for each direction. New pods start on the node, in
// the policy's namespace and in others.
func attackWidePolicy(t *testing.T, c *live) {
	var policy strings.Builder
	policy.WriteString("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: wide}\nspec:\n  " +
		"podSelector: {}\n")
	for _, side := range []string{"ingress:\n  - from", "egress:\n  - to"} {
		fmt.Fprintf(&policy, "  %s:\n", side)
		for i := range 4000 {
			fmt.Fprintf(&policy, "    - podSelector: {matchLabels: {%.1s: v%d}}\n", side, i)
		}
	}
	policy.WriteString("---\n")
	c.apply(t, hello("victim", "sleep 1000", ""))
	c.must(t, "wait", "--for=condition=Ready", "pod/victim", "--timeout=60s")
	if out, err := c.kubectl(strings.NewReader(policy.String()), "create", "-f", "-"); err != nil {
		t.Fatalf("create the policy: %v\n%s", err, out)
	}
	c.must(t, "create", "namespace", "bystander")
	for i := range 3 {
		for _, ns := range []string{"default", "bystander"} {
			name := fmt.Sprint("new-", i)
			if out, err := c.kubectl(strings.NewReader(hello(name, "sleep 1000", "")), "apply", "-n", ns, "-f",
				"-"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			begin := time.Now()
			c.must(t, "wait", "-n", ns, "--for=condition=Ready", "pod/"+name, "--timeout=60s")
			t.Logf("pod %s/%s was ready after %s", ns, name, time.Since(begin).Round(time.Millisecond))
		}
	}
}

// externalService is a Service with an external IP.
func externalService(name, ip string, port int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {selector: {app: thief}, externalIPs: [%q], ports: [{port: %d, targetPort: 80}]}
`, name, ip, port)
}

// refuses creates a Service that the API server must reject.
func (c *live) refuses(t *testing.T, manifest, why string) {
	t.Helper()
	if out, err := c.kubectl(strings.NewReader(manifest), "create", "-f", "-"); err == nil ||
		!strings.Contains(out, why) {
		t.Errorf("got %v, %q, want a refusal with %q", err, out, why)
	}
}

// attackExternalIPs claims other tenants' addresses and the API's port, and an address outside of the cluster, which is
// not served.
func attackExternalIPs(t *testing.T, c *live) {
	c.apply(t, hello("victim", "sleep 1000", ""))
	c.must(t, "wait", "--for=condition=Ready", "pod/victim", "--timeout=60s")
	c.refuses(t, externalService("pod", c.must(t, "get", "pod", "victim", "-o", "jsonpath={.status.podIP}"), 80),
		"the range of pods")
	c.refuses(t, externalService("dns", c.must(t, "get", "svc", "-n", "kube-system", "kube-dns", "-o",
		"jsonpath={.spec.clusterIP}"), 53), "the range of Services")
	api, err := url.Parse(c.config(t).Host)
	if err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Sscan(api.Port(), &port); err != nil {
		t.Fatal(err)
	}
	c.refuses(t, externalService("api", "203.0.113.7", port), "that of the API server")
	c.apply(t, thief)
	c.must(t, "wait", "--for=condition=Ready", "pod/thief", "--timeout=60s")
	c.apply(t, externalService("outside", "203.0.113.7", 8099)+"---\n"+strings.Replace(
		externalService("mark", "203.0.113.8", 8099), "externalIPs: [\"203.0.113.8\"], ", "", 1))
	// The Service mark was written after the other one.
	ip := c.must(t, "get", "svc", "mark", "-o", "jsonpath={.spec.clusterIP}")
	if out := asksUntil(t, "http://"+ip+":8099/", "thief"); !strings.Contains(out, "thief") {
		t.Fatalf("the cluster IP: %q", out)
	}
	if out, _ := ask("http://203.0.113.7:8099/"); strings.Contains(out, "thief") {
		t.Errorf("an external IP leads to a tenant's pod, with the gate off: %q", out)
	}
}

// attackExternalIPsAllowed: with the gate on, an external IP is served.
func attackExternalIPsAllowed(t *testing.T, c *live) {
	c.apply(t, thief)
	c.must(t, "wait", "--for=condition=Ready", "pod/thief", "--timeout=60s")
	c.apply(t, externalService("outside", "203.0.113.7", 8099))
	if out := asksUntil(t, "http://203.0.113.7:8099/", "thief"); !strings.Contains(out, "thief") {
		t.Errorf("the external IP: %q", out)
	}
	c.refuses(t, externalService("pod", c.must(t, "get", "pod", "thief", "-o", "jsonpath={.status.podIP}"), 80),
		"the range of pods")
}

// thief is a pod with a web server.
const thief = `apiVersion: v1
kind: Pod
metadata: {name: thief, labels: {app: thief}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: keelson.local/hello, ports: [{containerPort: 80}]}]
---
`

// ask gets a URL from this machine.
func ask(address string) (string, error) {
	out, err := exec.Command("curl", "-sk", "-m", "2", address).CombinedOutput()
	return string(out), err
}

func asksUntil(t *testing.T, address, want string) (out string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if out, _ = ask(address); strings.Contains(out, want) {
			break
		}
	}
	return out
}

// TestAttackServiceOnTheAPI: Services ask for the API server's address and port, and for kubelets' port, while a node
// on a second machine is there. The node still reaches the server, also with a new connection and after a restart.
func TestAttackServiceOnTheAPI(t *testing.T) {
	if os.Getenv("KEELSON_ATTACK") == "" {
		t.Skip("set KEELSON_ATTACK=1, or run `make attack`")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	const machine, net = "keelson-svc", "10.199.19"
	unmake(machine)
	t.Cleanup(func() { unmake(machine) })
	for _, line := range machineLinks(machine, net) {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
	}
	live := startCluster(t, "--node-name", "server", "--bind-address", net+".1")
	node := filepath.Join(t.TempDir(), "node")
	inside := func(args ...string) *exec.Cmd {
		return exec.Command("nsenter", append([]string{"--net=/run/netns/" + machine, live.bin}, args...)...)
	}
	t.Cleanup(func() {
		if out, err := inside("down", "--purge", "--data-dir", node).CombinedOutput(); err != nil {
			t.Errorf("keelson down on the second machine: %v\n%s", err, out)
		}
	})
	command, err := live.keelson("token", "create", "--print-join-command")
	if err != nil {
		t.Fatal(err)
	}
	stop := background(t, inside(append(strings.Fields(command)[1:], "--data-dir", node, "--node-name", "n1")...))
	live.eventuallyWithin(t, time.Minute, "True", "get", "node", "n1", "-o", readyCondition)
	api := live.config(t).Host
	port := api[strings.LastIndex(api, ":")+1:]
	live.apply(t, strings.Replace(thief, "spec:", "spec:\n  nodeName: n1", 1))
	live.must(t, "wait", "--for=condition=Ready", "pod/thief", "--timeout=60s")
	// The first Service is for the cluster's own load balancer. The second has the addresses that another one, or an
	// earlier version, wrote.
	live.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: takes-the-api}
spec: {type: LoadBalancer, selector: {app: thief}, ports: [{port: %[1]s, targetPort: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: as-before}
spec: {type: LoadBalancer, loadBalancerClass: example.com/other, selector: {app: thief}, ports: [{name: a, port: %[1]s, targetPort: 80}, {name: k, port: 10250, targetPort: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: ssh}
spec: {type: LoadBalancer, selector: {app: thief}, ports: [{port: 2222, targetPort: 80}]}
---
`, port))
	live.must(t, "patch", "svc", "as-before", "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(
			`{"status":{"loadBalancer":{"ingress":[{"ip":"%[1]s.1","ipMode":"VIP"},{"ip":"%[1]s.2","ipMode":"VIP"}]}}}`,
			net))
	live.eventually(t, "is the API server's", "get", "events", "--field-selector=involvedObject.name=takes-the-api",
		"-o",
		"jsonpath={.items[*].message}")
	refused := live.eventually(t, "node n1 does not serve "+net+".1:"+port, "get", "events",
		"--field-selector=involvedObject.name=as-before", "-o", "jsonpath={.items[*].message}")
	if !strings.Contains(refused, "the API server has it") {
		t.Errorf("events: %s", refused)
	}
	live.eventually(t, "Proxy Proxy", "get", "svc", "ssh", "-o", "jsonpath={.status.loadBalancer.ingress[*].ipMode}")
	reaches := func(when string) {
		t.Helper()
		out, err := exec.Command("nsenter", "--net=/run/netns/"+machine, "curl", "-sk", "-m", "5", api+"/healthz").
			CombinedOutput()
		if err != nil || string(out) != "ok" {
			t.Errorf("%s: the second machine asks the API server: %v, %q", when, err, out)
		}
	}
	reaches("with the Services")
	if out := asksUntil(t, "http://"+net+".2:2222/", "thief"); !strings.Contains(out, "thief") {
		t.Errorf("the load balancer at the second machine: %q", out)
	}
	stop()
	stop = background(t, inside("kubelet", "--data-dir", node, "--node-name", "n1"))
	defer stop()
	reaches("after the node's process was killed")
	live.eventuallyWithin(t, time.Minute, "thief", "get", "--raw", "/api/v1/namespaces/default/pods/thief/proxy/")
	live.eventuallyWithin(t, time.Minute, "thief", "logs", "thief") // through the kubelet's port
}

const readyCondition = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`

// background runs a command until stop is called, which kills it, or the test ends.
func background(t *testing.T, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	run := exec.CommandContext(ctx, cmd.Args[0], cmd.Args[1:]...)
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	run.Stdout = file
	run.Stderr = file
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		cancel()
		_ = run.Wait()
		_ = file.Close()
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("%q:\n%s", cmd.Args, b)
		}
	}
	t.Cleanup(stop)
	return stop
}
