// SPDX-License-Identifier: Apache-2.0

package container

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const gpus = `{"cdiVersion": "0.7.0", "kind": "example.com/gpu", "containerEdits": {"env": ["ALL=1"]}, "devices": [
  {"name": "0", "containerEdits": {"env": ["GPU=0"], "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}],
    "mounts": [{"hostPath": "/usr/lib/gpu", "containerPath": "/usr/lib/gpu", "options": ["ro", "bind"]}],
    "hooks": [{"hookName": "createContainer", "path": "/bin/hook"}], "additionalGids": [44]}},
  {"name": "1", "containerEdits": {"env": ["GPU1=1"]}}]}`

// TestInjectMounts: the sources of mounts, of a device and of its specification, are resolved once each.
func TestInjectMounts(t *testing.T) {
	dir := t.TempDir()
	const metadata = `{"cdiVersion": "0.3.0", "kind": "x.io/metadata", "containerEdits": {"mounts": [{"hostPath": "/kubelet/all", "containerPath": "/all"}]}, "devices": [
	  {"name": "a", "containerEdits": {"mounts": [{"hostPath": "/kubelet/a", "containerPath": "/a"}, {"hostPath": "/usr/lib", "containerPath": "/b"}]}},
	  {"name": "c", "containerEdits": {"mounts": [{"hostPath": "/kubelet/c", "containerPath": "/c"}]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "metadata.json"), []byte(metadata), 0o600); err != nil {
		t.Fatal(err)
	}
	in := &injector{
		dirs: []string{dir},
		hostPath: func(p string) string {
			if rest, ok := strings.CutPrefix(p, "/kubelet/"); ok {
				return "/kubelet/data/" + rest
			}
			return p
		},
	}
	c := &runtimeapi.ContainerConfig{
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "x.io/metadata=a"}, {Name: "x.io/metadata=c"}},
	}
	spec := &specs.Spec{Mounts: []specs.Mount{{Source: "/kubelet/volume", Destination: "/volume"}}}
	if err := in.inject(c, spec); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range spec.Mounts {
		got[m.Destination] = m.Source
	}
	want := map[string]string{
		"/volume": "/kubelet/volume",
		"/all":    "/kubelet/data/all",
		"/a":      "/kubelet/data/a",
		"/b":      "/usr/lib",
		"/c":      "/kubelet/data/c",
	}
	if !maps.Equal(got, want) {
		t.Errorf("sources: got %v, want %v", got, want)
	}
}

func TestInject(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"gpus.json": gpus, "broken.json": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := &injector{dirs: []string{filepath.Join(dir, "none"), dir}}
	for _, tt := range []struct {
		names string
		want  string // of the environment
		err   string
	}{
		{"", "A=1", ""},
		{"example.com/gpu=0", "A=1 ALL=1 GPU=0", ""},
		{"example.com/gpu=0 example.com/gpu=1", "A=1 ALL=1 GPU=0 GPU1=1", ""},
		{"example.com/gpu=7", "", "unresolvable CDI devices example.com/gpu=7: no specification in "},
		{"../../etc", "", "unresolvable CDI devices ../../etc"},
		{strings.Repeat("x ", maxCDIDevices+1), "", "1025 CDI devices, more than 1024"},
	} {
		c := &runtimeapi.ContainerConfig{}
		for n := range strings.FieldsSeq(tt.names) {
			c.CDIDevices = append(c.CDIDevices, &runtimeapi.CDIDevice{Name: n})
		}
		spec := &specs.Spec{
			Process: &specs.Process{Env: []string{"A=1"}},
			Linux:   &specs.Linux{Resources: &specs.LinuxResources{}},
		}
		err := in.inject(c, spec)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%.40q: got %v, want %s", tt.names, err, tt.err)
			}
			continue
		}
		if err != nil || strings.Join(spec.Process.Env, " ") != tt.want {
			t.Errorf("%q: got %v, %v, want %s", tt.names, spec.Process.Env, err, tt.want)
		}
		if !strings.Contains(tt.names, "=0") {
			continue
		}
		if len(spec.Linux.Devices) != 1 || spec.Linux.Devices[0].Path != "/dev/gpu0" ||
			spec.Linux.Devices[0].Major != 1 || spec.Linux.Devices[0].Minor != 3 ||
			len(spec.Linux.Resources.Devices) != 1 || !spec.Linux.Resources.Devices[0].Allow ||
			len(spec.Mounts) != 1 || spec.Mounts[0].Source != "/usr/lib/gpu" ||
			spec.Hooks == nil || len(spec.Hooks.CreateContainer) != 1 ||
			!slices.Equal(spec.Process.User.AdditionalGids, []uint32{44}) {
			t.Errorf("%q: got %+v %+v", tt.names, spec, spec.Linux)
		}
	}
}
