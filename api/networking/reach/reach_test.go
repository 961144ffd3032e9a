// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Asked{
		"tcp:web:80":          {Host: "web", Port: 80, Protocol: corev1.ProtocolTCP, Timeout: DefaultTimeout},
		"udp:10.0.0.1:53":     {Host: "10.0.0.1", Port: 53, Protocol: corev1.ProtocolUDP, Timeout: DefaultTimeout},
		"tcp:fd00::1:443":     {Host: "fd00::1", Port: 443, Protocol: corev1.ProtocolTCP, Timeout: DefaultTimeout},
		"tcp:web.ns.svc.x.:1": {Host: "web.ns.svc.x.", Port: 1, Protocol: corev1.ProtocolTCP, Timeout: DefaultTimeout},
	} {
		got, err := Parse(url.Values{Param: {text}})
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "tcp", "tcp:web", "tcp::80", "tcp:web:0", "tcp:web:70000", "sctp:web:80", "icmp:web:1", "tcp:a b:80",
		"tcp:web/x:80", "tcp:..:80", "tcp:.:80",
		"tcp:0.0.0.0:80", "tcp:255.255.255.255:9", "udp:224.0.0.1:9", "tcp:fe80::1%eth0:80",
		"tcp:" + strings.Repeat("a", 254) + ":80", "tcp:a\nb:80",
	} {
		if got, err := Parse(url.Values{Param: {text}}); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, got)
		}
	}
	for _, text := range []string{"-1s", "0", "11s", "x", "1000h"} {
		if _, err := Parse(url.Values{Param: {"tcp:web:80"}, timeoutParam: {text}}); err == nil {
			t.Errorf("a time-out of %q is taken", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("tcp:web:80", "3s")
	f.Add("udp:fd00::1:53", "")
	f.Fuzz(func(t *testing.T, text, timeout string) {
		a, err := Parse(url.Values{Param: {text}, timeoutParam: {timeout}})
		if err != nil {
			return
		}
		if a.Port == 0 || a.Timeout <= 0 || a.Timeout > 10*time.Second || len(a.Host) > mostHost {
			t.Errorf("Parse(%q, %q) = %+v: out of bounds", text, timeout, a)
		}
		if again, err := Parse(a.Values()); err != nil || again != a {
			t.Errorf("Parse(Values(%+v)) = %+v, %v", a, again, err)
		}
	})
}
