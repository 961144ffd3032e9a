// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func option(name, value string) corev1.PodDNSConfigOption {
	if value == "" {
		return corev1.PodDNSConfigOption{Name: name}
	}
	return corev1.PodDNSConfigOption{Name: name, Value: &value}
}

// show is a configuration in three lines, and its warnings.
func show(d *runtimeapi.DNSConfig, warnings []Warning) string {
	s := fmt.Sprintf("%s / %s / %s", strings.Join(d.Servers, " "), strings.Join(d.Searches, " "),
		strings.Join(d.Options, " "))
	for _, w := range warnings {
		s += fmt.Sprintf("\n%t %s: %s", w.Node, w.Reason, w.Message)
	}
	return s
}

// TestDNS holds every dnsPolicy, with and without the host's network and a dnsConfig, against what Kubernetes' kubelet
// makes of it.
func TestDNS(t *testing.T) {
	const (
		ofHost    = "192.0.2.53 192.0.2.54 / corp.example other / timeout:1 rotate"
		ofCluster = "10.96.0.10 / ns.svc.c.local svc.c.local c.local corp.example other / ndots:5"
		missing   = `kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
		fallback  = ofHost + "\ntrue MissingClusterDNS: " + missing + "\nfalse MissingClusterDNS: pod: " +
			"\"p_ns(uid)\". " + missing
	)
	more := &corev1.PodDNSConfig{
		Nameservers: []string{"192.0.2.54", "192.0.2.55"},
		Searches:    []string{"other", "more.example", "more.example"},
		Options: []corev1.PodDNSConfigOption{
			option("ndots", "2"), option("rotate", ""), option("timeout", "3"), option("edns0", ""),
		},
	}
	for name, tt := range map[string]struct {
		policy    corev1.DNSPolicy
		host      bool
		noCluster bool
		conf      *corev1.PodDNSConfig
		want      string
	}{
		"ClusterFirst":            {policy: corev1.DNSClusterFirst, want: ofCluster},
		"ClusterFirst, host":      {policy: corev1.DNSClusterFirst, host: true, want: ofHost},
		"ClusterFirst, no server": {policy: corev1.DNSClusterFirst, noCluster: true, want: fallback},
		"ClusterFirst, host, no server": {
			policy:    corev1.DNSClusterFirst,
			host:      true,
			noCluster: true,
			want:      ofHost,
		},
		"ClusterFirstWithHostNet":       {policy: corev1.DNSClusterFirstWithHostNet, want: ofCluster},
		"ClusterFirstWithHostNet, host": {policy: corev1.DNSClusterFirstWithHostNet, host: true, want: ofCluster},
		"ClusterFirstWithHostNet, no server": {
			policy:    corev1.DNSClusterFirstWithHostNet,
			host:      true,
			noCluster: true,
			want:      fallback,
		},
		"Default":       {policy: corev1.DNSDefault, want: ofHost},
		"Default, host": {policy: corev1.DNSDefault, host: true, want: ofHost},
		"None": {
			policy: corev1.DNSNone,
			conf: &corev1.PodDNSConfig{
				Nameservers: []string{"192.0.2.1"},
			},
			want: "192.0.2.1 /  / ",
		},
		"None, host": {
			policy: corev1.DNSNone,
			host:   true,
			conf:   &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}},
			want:   "192.0.2.1 /  / ",
		},
		"None, with options": {
			policy: corev1.DNSNone,
			conf: &corev1.PodDNSConfig{
				Nameservers: []string{"192.0.2.1"},
				Options:     []corev1.PodDNSConfigOption{option("ndots", "2"), option("edns0", "")},
			},
			want: "192.0.2.1 /  / ndots:2 edns0",
		},
		"ClusterFirst, with more": {
			policy: corev1.DNSClusterFirst,
			conf:   more,
			want: "10.96.0.10 192.0.2.54 192.0.2.55 / ns.svc.c.local svc.c.local c.local corp.example other " +
				"more.example / ndots:2 rotate timeout:3 edns0",
		},
		"Default, with more": {
			policy: corev1.DNSDefault,
			conf:   more,
			want: "192.0.2.53 192.0.2.54 192.0.2.55 / corp.example other more.example / ndots:2 rotate timeout:3 " +
				"edns0",
		},
		"ClusterFirst, an option taken back": {
			policy: corev1.DNSClusterFirst,
			conf:   &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{option("ndots", "")}},
			want:   "10.96.0.10 / ns.svc.c.local svc.c.local c.local corp.example other / ndots",
		},
		"too many servers": {
			policy: corev1.DNSDefault,
			conf:   &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "192.0.2.2"}},
			want: "192.0.2.53 192.0.2.54 192.0.2.1 / corp.example other / timeout:1 rotate\nfalse " +
				"DNSConfigForming: Nameserver limits were exceeded, some nameservers have been omitted, the applied " +
				"nameserver line is: 192.0.2.53 192.0.2.54 192.0.2.1",
		},
		"a domain that programs do not stand": {
			policy: corev1.DNSNone,
			conf: &corev1.PodDNSConfig{
				Nameservers: []string{"192.0.2.1"},
				Searches:    []string{"a.example", strings.Repeat("a", 254), "b.example"},
			},
			want: "192.0.2.1 / a.example b.example / \nfalse DNSConfigForming: Search Line limits were exceeded, " +
				"some " +
				"search paths have been omitted, the applied search line is: a.example b.example",
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := &runtimeapi.DNSConfig{
				Servers: []string{"192.0.2.53", "192.0.2.54"},
				Searches: []string{
					"corp.example", "other",
				},
				Options: []string{"timeout:1", "rotate"},
			}
			before := show(host, nil)
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"},
				Spec:       corev1.PodSpec{DNSPolicy: tt.policy, HostNetwork: tt.host, DNSConfig: tt.conf},
			}
			cluster := []string{"10.96.0.10"}
			if tt.noCluster {
				cluster = nil
			}
			if got := show(DNS(p, host, cluster, "c.local")); got != sorted(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if show(host, nil) != before {
				t.Errorf("the host's configuration was changed: %s", show(host, nil))
			}
		})
	}
}

// sorted is want, if got differs from it in the order of options only, which Kubernetes leaves open.
func sorted(got, want string) string {
	options := func(s string) (rest string, list []string) {
		line, after, _ := strings.Cut(s, "\n")
		i := strings.LastIndex(line, " / ")
		list = strings.Fields(line[i+3:])
		slices.Sort(list)
		return line[:i] + "\n" + after, list
	}
	a, x := options(got)
	b, y := options(want)
	if a == b && slices.Equal(x, y) {
		return got
	}
	return want
}

// TestSearchLimits: 32 domains and 2,048 characters.
func TestSearchLimits(t *testing.T) {
	for name, tt := range map[string]struct{ n, length, want int }{
		"32":               {32, 10, 32},
		"33":               {33, 10, 32},
		"2,047 characters": {16, 127, 16},
		"2,063 characters": {16, 128, 15},
		"long ones":        {32, 253, 8},
	} {
		d := &runtimeapi.DNSConfig{}
		for i := range tt.n {
			d.Searches = append(d.Searches, fmt.Sprintf("%0*d", tt.length, i))
		}
		warnings := fit(d)
		if len(d.Searches) != tt.want || (len(warnings) == 1) != (tt.want < tt.n) ||
			len(strings.Join(d.Searches, " ")) > 2048 {
			t.Errorf("%s: %d domains are left, warnings %v, want %d", name, len(d.Searches), warnings, tt.want)
		}
	}
}

// TestHostDNS: the node's resolvers are those that a pod can reach.
func TestHostDNS(t *testing.T) {
	const stub, behind = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n",
		"nameserver 192.0.2.53\nsearch corp.example\n"
	for name, tt := range map[string]struct {
		files map[string]string
		file  string
		want  string
	}{
		"plain": {
			map[string]string{nodeResolvConf: "nameserver 192.0.2.1\n", realResolvConf: behind}, "", "192.0.2.1 /  / ",
		},
		"a stub": {
			map[string]string{nodeResolvConf: stub, realResolvConf: behind}, "", "192.0.2.53 / corp.example / ",
		},
		"a stub next to a server": {
			map[string]string{nodeResolvConf: stub + "nameserver 192.0.2.1\n", realResolvConf: behind},
			"",
			"127.0.0.53 192.0.2.1 /  / edns0 trust-ad",
		},
		"a stub, asked for": {
			map[string]string{nodeResolvConf: stub, realResolvConf: behind},
			nodeResolvConf,
			"127.0.0.53 /  / edns0 trust-ad",
		},
		"a stub with nothing behind": {map[string]string{nodeResolvConf: stub}, "", "127.0.0.53 /  / edns0 trust-ad"},
		"another local server": {
			map[string]string{nodeResolvConf: "nameserver 127.0.0.1\n", realResolvConf: behind}, "", "127.0.0.1 /  / ",
		},
		"another file": {
			map[string]string{nodeResolvConf: stub, "/f": behind}, "/f", "192.0.2.53 / corp.example / ",
		},
		"none": {nil, "", " /  / "},
	} {
		got, err := HostDNS(func(path string) ([]byte, error) {
			if s, ok := tt.files[path]; ok {
				return []byte(s), nil
			}
			return nil, fs.ErrNotExist
		}, tt.file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if s := show(got, nil); s != tt.want {
			t.Errorf("%s: got %q, want %q", name, s, tt.want)
		}
	}
}

// TestParseResolvConf: files are read as the resolver library reads them.
func TestParseResolvConf(t *testing.T) {
	for text, want := range map[string]string{
		"# c\n; c\nnameserver 192.0.2.53\nsearch corp.example. other\noptions timeout:1\nbroken\n": "192.0.2.53 / corp.example other / timeout:1",
		"nameserver 192.0.2.1 \n\tnameserver\t2001:db8::1\nnameserver\n":                           "192.0.2.1 2001:db8::1 /  / ",
		"search a.example\nsearch b.example c.example\n":                                           " / b.example c.example / ",
		"search a.example\nsearch\n":                                                               " /  / ",
		"search . a.example.\n":                                                                    " / a.example / ",
		"options ndots:1 rotate\noptions ndots:3\n":                                                " /  / rotate ndots:3",
		"#nameserver 192.0.2.1\ndomain example.com\n":                                              " /  / ",
	} {
		d, err := ParseResolvConf(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, show(d, nil)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}
