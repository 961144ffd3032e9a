// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// failover is three API servers on one etcd and two joined nodes. Each is a machine: a network namespace at a bridge.
type failover struct {
	bin, dir string
	stops    map[string]func()
	logs     map[string]string // of nodes
	nodes    []string
	etcd     string
}

const (
	failoverNet = "10.199.30"
	failoverLAN = "keelson-fo"
)

// at is a machine's last number in its address; this machine, with etcd, is 1.
var failoverMachines = map[string]int{"s1": 11, "s2": 12, "s3": 13, "n1": 21, "n2": 22}

func (f *failover) namespace(name string) string { return failoverLAN + "-" + name }

func (f *failover) data(name string) string { return filepath.Join(f.dir, name) }

func address(name string) string { return fmt.Sprintf("%s.%d", failoverNet, failoverMachines[name]) }

func newFailover(t *testing.T) *failover {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	bin := os.Getenv("KEELSON_ETCD")
	if found, err := exec.LookPath("etcd"); bin == "" {
		if err != nil {
			t.Skip("SKIPPED: no etcd on this machine (Debian: etcd-server)")
		}
		bin = found
	}
	f := &failover{
		bin:   binary(t),
		dir:   t.TempDir(),
		stops: map[string]func(){},
		logs:  map[string]string{},
	}
	clean := func() {
		for name := range failoverMachines {
			unmake(f.namespace(name))
		}
		_ = exec.Command("ip", "link", "del", failoverLAN).Run() // there may be none
	}
	clean()
	t.Cleanup(clean)
	f.ip(t, "link add "+failoverLAN+" type bridge")
	f.ip(t, "addr add "+failoverNet+".1/24 dev "+failoverLAN)
	f.ip(t, "link set "+failoverLAN+" up")
	for name := range failoverMachines {
		ns := f.namespace(name)
		f.ip(t, "netns add "+ns)
		f.ip(t, "link add fo"+name+" type veth peer name eth0 netns "+ns)
		f.ip(t, "link set fo"+name+" master "+failoverLAN+" up")
		f.ip(t, "-n "+ns+" addr add "+address(name)+"/24 dev eth0")
		f.ip(t, "-n "+ns+" link set eth0 up")
		f.ip(t, "-n "+ns+" link set lo up")
		f.ip(t, "-n "+ns+" route add default via "+failoverNet+".1")
	}
	f.etcd = "http://" + failoverNet + ".1:23791"
	peer := "http://127.0.0.1:23801"
	background(t, exec.Command(bin, "--data-dir", f.data("etcd"), "--name", "m0", "--listen-client-urls", f.etcd,
		"--advertise-client-urls", f.etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "m0="+peer))
	return f
}

func (f *failover) ip(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
}

// inside is a command on a machine.
func (f *failover) inside(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + f.namespace(name)}, args...)...)
}

// server starts an API server. Those after the first have its keys.
func (f *failover) server(t *testing.T, name string, flags ...string) {
	t.Helper()
	if name != "s1" && !exists(f.data(name)) {
		if err := os.MkdirAll(f.data(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-r", f.data("s1")+"/pki", f.data(name)).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v\n%s", err, out)
		}
	}
	args := []string{
		f.bin, "apiserver", "--data-dir", f.data(name), "--etcd-servers", f.etcd, "--bind-address",
		address(name), "--port", "6443",
	}
	f.stops[name] = background(t, f.inside(name, append(args, flags...)...))
	f.until(t, "the server "+name+" is ready", func() bool { return f.kubectl(name, "get", "--raw", "/readyz") == "ok" })
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// kubectl runs it at one of the servers, on this machine.
func (f *failover) kubectl(server string, args ...string) string {
	out, err := exec.Command(f.bin, append([]string{
		"kubectl", "--kubeconfig", f.data(server) + "/kubeconfig",
		"--request-timeout=5s",
	}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return string(out)
}

func (f *failover) until(t *testing.T, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for end := began.Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %s: %s", patience, what)
		}
	}
	return time.Since(began)
}

// agents starts controllers and a scheduler as processes of their own, which know s1.
func (f *failover) agents(t *testing.T) {
	t.Helper()
	for role, flags := range map[string][]string{
		"controller-manager": {"--allocate-node-cidrs", "--cluster-cidr", "10.189.0.0/16"},
		"scheduler":          nil,
	} {
		args := []string{
			role, "--data-dir", f.data("s1"), "--kubeconfig", f.data("s1") + "/pki/" + role + ".kubeconfig",
			"--secure-port", "0",
		}
		background(t, exec.Command(f.bin, append(args, flags...)...))
	}
}

// join starts a node by a join command.
func (f *failover) join(t *testing.T, node, command string) {
	t.Helper()
	f.nodes = append(f.nodes, node)
	f.logs[node] = filepath.Join(f.dir, node+".log")
	// a disk that is rather full is not what is tested
	line := fmt.Sprintf("exec %s %s --data-dir %s --node-name %s '--eviction-hard=memory.available<1Mi' >%s 2>&1", f.bin,
		strings.TrimPrefix(strings.TrimSpace(command), "keelson "), f.data(node), node, f.logs[node])
	stop := background(t, f.inside(node, "sh", "-c", line))
	t.Cleanup(func() {
		stop()
		if out, err := f.inside(node, f.bin, "down", "--purge", "--data-dir", f.data(node)).CombinedOutput(); err != nil {
			t.Errorf("keelson down on %s: %v\n%s", node, err, out)
		}
		if b, _ := os.ReadFile(f.logs[node]); t.Failed() {
			t.Logf("%s:\n%s", node, b)
		}
	})
}

// deploys creates a Deployment by a server, and returns how long it takes until its pods are Ready: controllers and
// scheduler have to see it.
func (f *failover) deploys(t *testing.T, server, name string) time.Duration {
	t.Helper()
	began := time.Now()
	f.until(t, "a Deployment is made by "+server, func() bool {
		out := f.kubectl(server, "create", "deployment", name, "--image", "keelson.local/hello", "--replicas", "2")
		return strings.Contains(out, "created") || strings.Contains(out, "already exists")
	})
	f.until(t, "the Deployment "+name+" is available", func() bool {
		return f.kubectl(server, "get", "deployment", name, "-o", "jsonpath={.status.availableReplicas}") == "2"
	})
	return time.Since(began)
}

// works creates a pod on each node by a server, and returns how long it takes until both are Ready: the nodes have to
// see them and to say so.
func (f *failover) works(t *testing.T, server, name string) time.Duration {
	t.Helper()
	began := time.Now()
	var manifest strings.Builder
	for _, node := range f.nodes {
		fmt.Fprintf(&manifest, `apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]s, labels: {round: %[1]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: keelson.local/hello}]
---
`, name, node)
	}
	file := filepath.Join(f.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(manifest.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	f.until(t, "pods are made by "+server, func() bool {
		return strings.Contains(f.kubectl(server, "apply", "-f", file), "pod/"+name+"-"+f.nodes[len(f.nodes)-1])
	})
	f.until(t, "the pods "+name+" are Ready", func() bool {
		out := f.kubectl(server, "get", "pods", "-l", "round="+name, "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		return strings.Count(out, "True") == len(f.nodes)
	})
	return time.Since(began)
}

// reaches asks for logs and a command of the first pods by each server.
func (f *failover) reaches(t *testing.T, servers ...string) {
	t.Helper()
	for _, server := range servers {
		for _, node := range f.nodes {
			f.until(t, server+" reaches "+node, func() bool {
				return strings.Contains(f.kubectl(server, "logs", "first-"+node), "serves HTTP") &&
					strings.Contains(f.kubectl(server, "exec", "first-"+node, "--", "echo", "hi"), "hi")
			})
		}
	}
}

var usesServer = regexp.MustCompile(`another API server is used" .*server=` + regexp.QuoteMeta(failoverNet) + `\.(\d+):`)

// uses is the server that a node uses, by its log.
func (f *failover) uses(t *testing.T, log string) string {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	found := usesServer.FindAllStringSubmatch(string(b), -1)
	if len(found) == 0 {
		return "s1"
	}
	return "s" + found[len(found)-1][1][1:]
}

// TestFailover: three servers on one etcd, two nodes that joined the first. Whichever fails in whatever way, the nodes
// go on at another one within 5 s; no pod is evicted; each server reaches the pods; a server that is back is noticed.
func TestFailover(t *testing.T) {
	f := newFailover(t)
	for _, name := range []string{"s1", "s2", "s3"} {
		f.server(t, name)
	}
	f.agents(t)
	f.until(t, "all servers are endpoints", func() bool {
		out := f.kubectl("s1", "get", "endpoints", "kubernetes")
		return strings.Contains(out, address("s1")) && strings.Contains(out, address("s3"))
	})
	out, err := exec.Command(f.bin, "token", "create", "--print-join-command", "--data-dir", f.data("s1")).Output()
	if err != nil || !strings.Contains(string(out), "https://"+address("s1")+":6443") {
		t.Fatalf("token create: %v, %s; want the address of s1", err, out)
	}
	for _, node := range []string{"n1", "n2"} {
		f.join(t, node, string(out))
	}
	f.works(t, "s1", "first")
	f.until(t, "all servers are known", func() bool {
		b, _ := os.ReadFile(f.data("n1") + "/servers.json")
		return strings.Contains(string(b), address("s2")) && strings.Contains(string(b), address("s3"))
	})
	f.reaches(t, "s1", "s2", "s3")

	f.stops["s1"]()
	began := time.Now()
	t.Logf("killed: Ready pods on both nodes after %s", f.short(t, f.works(t, "s2", "killed")))
	t.Logf("killed: a Deployment's pods took %s", f.short(t, f.deploys(t, "s2", "killed")))
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("controllers and scheduler worked again after %s, want less than 10 s", d)
	}
	f.reaches(t, "s2", "s3")
	f.server(t, "s1")
	f.reaches(t, "s1")

	lost := f.uses(t, f.logs["n1"])
	f.ip(t, "link set fo"+lost+" nomaster") // its packets are dropped
	t.Logf("vanished %s: Ready pods after %s", lost, f.short(t, f.works(t, f.other(lost), "vanished")))
	f.ip(t, "link set fo"+lost+" master "+failoverLAN)
	f.until(t, lost+" is back", func() bool { return f.kubectl(lost, "get", "--raw", "/readyz") == "ok" })
	f.reaches(t, lost)

	lost = f.uses(t, f.logs["n1"])
	drop := "add table inet cut; add chain inet cut out { type filter hook output priority 0; }; " +
		"add rule inet cut out tcp dport 23791 drop"
	if out, err := f.inside(lost, "nft", drop).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	t.Logf("not ready %s: Ready pods after %s", lost, f.short(t, f.works(t, f.other(lost), "unready")))

	f.undisturbed(t, f.other(lost))
}

// undisturbed: no node was lost, and no pod was evicted.
func (f *failover) undisturbed(t *testing.T, server string) {
	t.Helper()
	events := f.kubectl(server, "get", "events", "-A", "-o", `jsonpath={range .items[*]}{.reason}{"\n"}{end}`)
	for _, reason := range []string{"NodeNotReady", "TaintManagerEviction"} {
		if slices.Contains(strings.Split(events, "\n"), reason) {
			t.Errorf("there is an event %s", reason)
		}
	}
}

// other is a server that is not this one.
func (f *failover) other(name string) string {
	if name == "s2" {
		return "s3"
	}
	return "s2"
}

// short complains about a fail-over that takes too long. The pods themselves take a part of it.
func (f *failover) short(t *testing.T, d time.Duration) time.Duration {
	t.Helper()
	if d > 5*time.Second {
		t.Errorf("it took %s, want less than 5 s", d)
	}
	return d.Round(10 * time.Millisecond)
}
