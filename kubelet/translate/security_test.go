// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestProcMount: /proc is masked unless the container asks for it as it is, or is privileged; a user namespace changes
// nothing in that.
func TestProcMount(t *testing.T) {
	yes := true
	def := corev1.DefaultProcMount
	unmasked := corev1.UnmaskedProcMount
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}
	for name, c := range map[string]struct {
		sc     *corev1.SecurityContext
		masked bool
	}{
		"nothing said":           {nil, true},
		"default":                {&corev1.SecurityContext{ProcMount: &def}, true},
		"unmasked":               {&corev1.SecurityContext{ProcMount: &unmasked}, false},
		"privileged":             {&corev1.SecurityContext{Privileged: &yes}, false},
		"privileged and default": {&corev1.SecurityContext{Privileged: &yes, ProcMount: &def}, false},
	} {
		for _, ns := range []*runtimeapi.UserNamespace{nil, users} {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", SecurityContext: c.sc}}}}
			sc, err := containerSecurity(p, &p.Spec.Containers[0], ContainerInput{Users: ns})
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Contains(sc.GetMaskedPaths(), "/proc/kcore"); got != c.masked ||
				(len(sc.GetMaskedPaths()) > 0) != c.masked {
				t.Errorf("%s: masked %v, want it masked %v", name, sc.GetMaskedPaths(), c.masked)
			}
			if got := slices.Contains(sc.GetReadonlyPaths(), "/proc/sys"); got != c.masked {
				t.Errorf("%s: read-only %v, want them %v", name, sc.GetReadonlyPaths(), c.masked)
			}
		}
	}
}

func TestThrottles(t *testing.T) {
	sys := t.TempDir()
	for _, d := range []string{"cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu1", "cpufreq/thermal_throttle"} {
		if err := os.MkdirAll(filepath.Join(sys, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{sys + "/cpu0/thermal_throttle", sys + "/cpu12/thermal_throttle"}
	if diff := cmp.Diff(want, throttles(sys)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUsers: the node's user namespace is said too, for runtimes that would choose otherwise; with one of its own all
// mounts are mapped.
func TestUsers(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	box, err := Sandbox(pod, SandboxInput{})
	if err != nil {
		t.Fatal(err)
	}
	if got := box.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(); got == nil ||
		got.GetMode() != runtimeapi.NamespaceMode_NODE {
		t.Errorf("without a user namespace: got %v", got)
	}
	ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	c, err := Container(pod, &pod.Spec.Containers[0], ContainerInput{
		Users:  users,
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/a"}, {ContainerPath: "/b"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(); got != users {
		t.Errorf("container: got %v", got)
	}
	for _, m := range c.GetMounts() {
		if len(m.GetUidMappings()) != 1 || len(m.GetGidMappings()) != 1 {
			t.Errorf("mount at %s: got mappings %v, %v", m.GetContainerPath(), m.GetUidMappings(), m.GetGidMappings())
		}
	}
}

// TestPrivilegedSandbox: a pod counts as privileged by any of its containers, also by one that was added later.
func TestPrivilegedSandbox(t *testing.T) {
	privileged := corev1.Container{Name: "p", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}
	plain := corev1.Container{Name: "c"}
	for name, spec := range map[string]corev1.PodSpec{
		"main": {Containers: []corev1.Container{plain, privileged}},
		"init": {InitContainers: []corev1.Container{privileged}, Containers: []corev1.Container{plain}},
		"ephemeral": {
			Containers: []corev1.Container{plain},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon(privileged)},
			},
		},
	} {
		if got := sandboxLinux(&corev1.Pod{Spec: spec}, SandboxInput{}); !got.GetSecurityContext().GetPrivileged() {
			t.Errorf("%s: the sandbox is not privileged", name)
		}
	}
	if got := sandboxLinux(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{plain}}},
		SandboxInput{}); got.GetSecurityContext().GetPrivileged() {
		t.Error("a plain pod: the sandbox is privileged")
	}
}
