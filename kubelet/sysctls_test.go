// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestSysctlsOfPods(t *testing.T) {
	allowed := []string{"kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/*"}
	for name, tt := range map[string]struct {
		kernel  string
		unsafe  []string
		sysctl  string
		hostNet bool
		hostIPC bool
		want    string
	}{
		"safe":               {sysctl: "net.ipv4.ip_unprivileged_port_start"},
		"safe, with slashes": {sysctl: "net/ipv4/tcp_syncookies"},
		"unsafe": {
			sysctl: "kernel.msgmax",
			want:   `forbidden sysctl: "kernel.msgmax" not allowlisted`,
		},
		"of the host": {
			sysctl: "vm.swappiness",
			want:   `forbidden sysctl: "vm.swappiness" not allowlisted`,
		},
		"allowed by a prefix":              {unsafe: allowed, sysctl: "kernel.msgmax"},
		"allowed by its name":              {unsafe: allowed, sysctl: "net.core.somaxconn"},
		"allowed by a prefix with slashes": {unsafe: allowed, sysctl: "net.ipv4.conf.all.forwarding"},
		"not of the prefix": {
			unsafe: allowed,
			sysctl: "kernel.shmmax",
			want:   `forbidden sysctl: "kernel.shmmax" not allowlisted`,
		},
		"new in the kernel": {
			kernel: "4.14.0",
			sysctl: "net.ipv4.tcp_rmem",
			want:   `forbidden sysctl: "net.ipv4.tcp_rmem" not allowlisted`,
		},
		"safe since v1.37":       {sysctl: "net.ipv4.tcp_slow_start_after_idle"},
		"safe since v1.37, also": {sysctl: "net/ipv4/tcp_notsent_lowat"},
		"on the host's network": {
			sysctl:  "net.ipv4.tcp_syncookies",
			hostNet: true,
			want:    `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`,
		},
		"prefix on the host's network": {
			unsafe:  allowed,
			sysctl:  "net.ipv4.conf.all.forwarding",
			hostNet: true,
			want:    `not allowed with host Net enabled`,
		},
		"with the host's IPC": {
			unsafe:  allowed,
			sysctl:  "kernel.msgmax",
			hostIPC: true,
			want:    `forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.kernel == "" {
				tt.kernel = "6.12.43-amd64"
			}
			sysctls, err := newSysctls(tt.kernel, tt.unsafe)
			if err != nil {
				t.Fatal(err)
			}
			p := &corev1.Pod{
				Spec: corev1.PodSpec{
					HostNetwork: tt.hostNet,
					HostIPC:     tt.hostIPC,
					SecurityContext: &corev1.PodSecurityContext{
						Sysctls: []corev1.Sysctl{{Name: tt.sysctl, Value: "1"}},
					},
				},
			}
			got := ""
			if err := sysctls.check(p); err != nil {
				got = err.Error()
			}
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestValidateSysctls(t *testing.T) {
	for in, want := range map[string]string{
		"net.ipv4.*":    "",
		"kernel.sem":    "",
		"fs/mqueue/*":   "",
		"vm.swappiness": "not known to be namespaced",
		"*":             "not known to be namespaced",
		"vm.*":          "not known to be namespaced",
		"Net.x":         "must have at most 253 characters",
		"net.*.x":       "must have at most",
		"":              "must have at most",
	} {
		got := ""
		if err := ValidateSysctls([]string{in}); err != nil {
			got = err.Error()
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestSupports: every reason for which no node of this kind runs a pod, in Kubernetes' words.
func TestSupports(t *testing.T) {
	strict := corev1.SupplementalGroupsPolicyStrict
	yes := true
	plain, err := newSysctls("6.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	able := &corev1.Node{Status: corev1.NodeStatus{Features: &corev1.NodeFeatures{SupplementalGroupsPolicy: &yes}}}
	for name, tt := range map[string]struct {
		pod             func(*corev1.Pod)
		node            *corev1.Node
		reason, message string
	}{
		"plain": {pod: func(*corev1.Pod) {}},
		"linux": {pod: func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Linux} }},
		"windows": {
			func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, nil, "PodOSNotSupported",
			"Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
		},
		"label": {
			func(p *corev1.Pod) { p.Labels = map[string]string{"kubernetes.io/os": "windows"} }, nil,
			"PodOSSelectorNodeLabelDoesNotMatch",
			"Pod was rejected: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		},
		"strict": {
			func(p *corev1.Pod) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
			}, &corev1.Node{}, "SupplementalGroupsPolicyNotSupported",
			"Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node",
		},
		"strict, able": {
			pod: func(p *corev1.Pod) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
			},
			node: able,
		},
		"unsafe sysctl": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax"}}}
		}, nil, "SysctlForbidden", `Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted`},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{}
			tt.pod(p)
			if reason, message := (&admission{sysctls: plain}).checkSupported(p, tt.node); reason != tt.reason ||
				message != tt.message {
				t.Errorf("got %q %q, want %q %q", reason, message, tt.reason, tt.message)
			}
		})
	}
}
