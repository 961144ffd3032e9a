// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"strings"
	"testing"
)

// TestParse: what is right is understood, and what is wrong is named.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"": "[] [] map[] map[]",
		"upstreams: [192.0.2.53, '[2001:db8::53]:5353']": "[192.0.2.53:53 [2001:db8::53]:5353] [] map[] map[]",
		"stubDomains: {Corp.Example: [10.0.0.53], a.example.: ['10.0.0.54:54']}": "[] [{corp.example. " +
			"[10.0.0.53:53]} {a.example. [10.0.0.54:54]}] map[] map[]",
		"hosts: {DB.example: [192.0.2.1, '::ffff:192.0.2.2']}": "[] [] map[db.example.:[192.0.2.1 " +
			"192.0.2.2]] map[192.0.2.1:[db.example.] 192.0.2.2:[db.example.]]",
		"upstream: [192.0.2.53]":                           `unknown field "upstream"`,
		"upstreams: [ns.example]":                          `upstreams: "ns.example" is neither ADDRESS nor ADDRESS:PORT`,
		"upstreams: [0.0.0.0, '224.0.0.1', '192.0.2.1:0']": `upstreams: "0.0.0.0" is no server's address`,
		"stubDomains: {corp.example: []}": "stubDomains[corp.example]: no " +
			"server is named",
		"stubDomains: {a.cluster.local: [10.0.0.53]}": "stubDomains[a.cluster.local]: " +
			"names below cluster.local are the cluster's own",
		"hosts: {'*.example': [192.0.2.1]}": "hosts[*.example]: it is not a " +
			"domain name",
		"hosts: {a.example: [b.example]}": `hosts[a.example]: "b.example" is not an IP address`,
		"hosts: {a.example: []}": "hosts[a.example]: no address is " +
			"given",
		"hosts: {web.default.svc.cluster.local: [192.0.2.1]}": "names below cluster.local are the " +
			"cluster's own",
		"- a": "cannot unmarshal",
	} {
		s, err := Parse([]byte(text), "cluster.local")
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(s.Upstreams, s.Stubs, s.Hosts, s.Back)
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	if _, err := Parse([]byte("upstreams: ["+strings.Repeat("192.0.2.1,", maxServers+1)+"]"),
		"cluster.local"); err == nil || !strings.Contains(err.Error(), "at most 15") {
		t.Errorf("too many servers: %v", err)
	}
	if _, err := Parse(make([]byte, maxBytes+1), "cluster.local"); err == nil {
		t.Error("a configuration without end is read")
	}
}

// TestResolvers: of a resolv.conf the first three servers count, as for a resolver library.
func TestResolvers(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]",
		"nameserver 192.0.2.1\n#nameserver 192.0.2.2\nsearch a\nnameserver\t2001:db8::1":  "[192.0.2.1:53 [2001:db8::1]:53]",
		"nameserver 0.0.0.0\nnameserver fe80::1%eth0\nnameserver x\nnameserver 224.0.0.1": "[127.0.0.1:53 [fe80::1%eth0]:53]",
		strings.Repeat("nameserver 192.0.2.1\n",
			5): "[192.0.2.1:53 192.0.2.1:53 192.0.2.1:53]",
	} {
		if got := fmt.Sprint(Resolvers([]byte(text))); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// FuzzSettings: no text makes a reader fail.
func FuzzSettings(f *testing.F) {
	f.Add([]byte("upstreams: [192.0.2.53]\nstubDomains: {a.example: ['10.0.0.1:5']}\nhosts: {b.example: ['::1']}"))
	f.Add([]byte("nameserver 192.0.2.1\nsearch a b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(Resolvers(b)) > maxNode {
			t.Error("too many")
		}
		s, err := Parse(b, "cluster.local")
		if err == nil && len(s.Upstreams) > maxServers {
			t.Error("too many")
		}
	})
}
