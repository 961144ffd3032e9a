// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"keelson/api/apitest"
	"keelson/api/networking/verdict"
)

var update = flag.Bool("update", false, "rewrite golden files")

const node = "here"

// cluster is what a test speaks of: the namespaces x, y, z (labels ns=x...) with the pods a, b, c (labels pod=a...)
// each, as upstream's truth tables.
type cluster struct {
	namespaces map[string]map[string]string
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
	most       int // State.most; 0: namespaceBound
}

// newCluster puts x and a of each namespace on this node. All serve port 80 (TCP, "serve-80"), 81 (TCP and UDP,
// "serve-81"); b calls 8080 "serve-80".
func newCluster() *cluster {
	c := &cluster{namespaces: map[string]map[string]string{}}
	for i, ns := range []string{"x", "y", "z"} {
		c.namespaces[ns] = map[string]string{"ns": ns, "kubernetes.io/metadata.name": ns}
		for j, name := range []string{"a", "b", "c"} {
			p := newPod(ns, name, fmt.Sprintf("10.0.%d.%d", i, j+1), fmt.Sprintf("fd00::%d:%d", i, j+1))
			p.Labels = map[string]string{"pod": name}
			if ns != "x" && name != "a" {
				p.Spec.NodeName = "there"
			}
			c.pods = append(c.pods, p)
		}
	}
	return c
}

func newPod(ns, name string, ips ...string) *corev1.Pod {
	web := int32(80)
	if name == "b" {
		web = 8080
	}
	return apitest.Pod(ns+"/"+name, apitest.UID("uid-"), apitest.On(node), apitest.IPs(ips...), func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "serve-80", ContainerPort: web, Protocol: corev1.ProtocolTCP},
			{Name: "serve-81", ContainerPort: 81, Protocol: corev1.ProtocolTCP},
			{Name: "serve-81", ContainerPort: 81, Protocol: corev1.ProtocolUDP},
		}}}
	})
}

// state is a new one that knows the cluster.
func (c *cluster) state() *State {
	s := NewState()
	if c.most > 0 {
		s.most = c.most
	}
	for name, l := range c.namespaces {
		s.SetNamespace(name, l)
	}
	for _, p := range c.policies {
		s.SetPolicy(p)
	}
	for _, p := range c.pods {
		note(s, p)
	}
	return s
}

func note(s *State, p *corev1.Pod) {
	if in, ok := FromObject(p, node); ok {
		s.SetPod(in)
	} else {
		s.DeletePod(p.Namespace, p.Name)
	}
}

func (c *cluster) verdicts() *verdict.Cluster {
	return &verdict.Cluster{Policies: c.policies, Namespaces: c.namespaces}
}

func parsePolicies(t testing.TB, text string) []*networkingv1.NetworkPolicy {
	t.Helper()
	var out []*networkingv1.NetworkPolicy
	for doc := range strings.SplitSeq(text, "\n---\n") {
		p := &networkingv1.NetworkPolicy{}
		if err := yaml.UnmarshalStrict([]byte(doc), p); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		out = append(out, p)
	}
	return out
}

// TestGolden compares plan, rules and truth table of each testdata/*.yaml with the golden file next to it.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			c := newCluster()
			c.policies = parsePolicies(t, string(text))
			p := c.state().Plan()
			var b bytes.Buffer
			b.WriteString(truth(c, p))
			b.WriteString("\n" + p.String())
			b.WriteString("\n" + Table("keelson-test-pol", p).String())
			golden(t, strings.TrimSuffix(f, ".yaml")+".golden", b.Bytes())
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update rewrites it):\n%s", file, got)
	}
}

// truth is a table of who reaches whom at TCP 80: a line a client, a column a server. The last client is no pod.
func truth(c *cluster, plan *Plan) string {
	var out strings.Builder
	out.WriteString("tcp 80 ")
	for _, server := range c.pods {
		fmt.Fprintf(&out, " %s/%s", server.Namespace, server.Name)
	}
	out.WriteString("\n")
	outside := []string{"192.0.2.7"}
	for _, client := range c.pods {
		outside = append(outside, client.Status.PodIP)
	}
	for _, from := range append(outside[1:], outside[0]) {
		fmt.Fprintf(&out, "%-9s", from)
		for _, server := range c.pods {
			mark := "X"
			if plan.allows(netip.MustParseAddr(from), netip.MustParseAddr(server.Status.PodIP), tcp, 80) {
				mark = "."
			}
			fmt.Fprintf(&out, "%-4s", mark)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// allows interprets a plan as this node's kernel would. A plan judges the ends of this node only.
func (p *Plan) allows(client, server netip.Addr, proto uint8, port uint16) bool {
	return client == server || p.passes(Egress, client, server, server, proto, port) && p.passes(Ingress, server,
		client, server, proto, port)
}

func (p *Plan) passes(d Direction, at, peer, server netip.Addr, proto uint8, port uint16) bool {
	name, isolated := p.Isolated[d][at]
	if !isolated {
		return true
	}
	for _, rule := range p.Chains[name].Rules {
		for _, e := range rule.Endpoints {
			if p.Sets[e].Elements[Element{server, proto, port}] > 0 {
				return true
			}
		}
		ports := rule.AnyPort
		for _, o := range rule.Ports {
			ports = ports || o.Proto == proto && o.From <= port && port <= o.To
		}
		peers := rule.AnyPeer
		if rule.Peers != "" {
			peers = peers || p.Sets[rule.Peers].Elements[Element{Addr: peer}] > 0
		}
		if rule.Blocks != "" {
			for _, s := range p.Sets[rule.Blocks].Spans {
				peers = peers || s.contains(peer)
			}
		}
		if ports && peers {
			return true
		}
	}
	return false
}
