// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

const passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:201::/home/web:/bin/sh\n"

const group = "root:x:0:\nweb:x:201:\nextra:x:301:web,other\n"

// input is a container that asks for nothing, on a machine that can do everything; tests change it.
func input(change ...func(*Input)) Input {
	in := Input{
		Container: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{},
			},
		},
		Sandbox: &runtimeapi.PodSandboxConfig{
			Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{}},
		},
		Image: ocispec.ImageConfig{
			Entrypoint: []string{"/entry"},
			Cmd:        []string{"cmd"},
			Env:        []string{"A=image", "PATH=/image"},
		},
		Host: linux.Facts{
			Capabilities:  linux.AllCapabilities(),
			OOMScoreFloor: -1000,
			OpenFiles:     5000,
			Seccomp:       true,
			Swap:          true,
			Controllers:   []string{"cpu", "hugetlb", "memory"},
		},
		Hostname:   "pod",
		Rootfs:     "/rootfs",
		Passwd:     []byte(passwd),
		Group:      []byte(group),
		Namespaces: Namespaces{Network: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"},
		Files: PodFiles{
			Hosts:      "/f/hosts",
			ResolvConf: "/f/resolv.conf",
			Hostname:   "/f/hostname",
			Shm:        "/f/shm",
		},
		CgroupPath: "/pod/c",
	}
	for _, c := range change {
		c(&in)
	}
	return in
}

func secure(f func(*runtimeapi.LinuxContainerSecurityContext)) func(*Input) {
	return func(in *Input) { f(in.Container.Linux.SecurityContext) }
}

func spec(t *testing.T, change ...func(*Input)) *specs.Spec {
	t.Helper()
	r, err := Spec(input(change...))
	if err != nil {
		t.Fatal(err)
	}
	return r.Spec
}

func TestArgs(t *testing.T) {
	for _, tc := range []struct{ command, args, want []string }{
		{nil, nil, []string{"/entry", "cmd"}},
		{nil, []string{"mine"}, []string{"/entry", "mine"}},
		{[]string{"/mine"}, nil, []string{"/mine"}},
		{[]string{"/mine"}, []string{"x", "y"}, []string{"/mine", "x", "y"}},
	} {
		got := spec(t, func(in *Input) {
			in.Container.Command = tc.command
			in.Container.Args = tc.args
		}).Process.Args
		if !slices.Equal(got, tc.want) {
			t.Errorf("command %q, args %q: got %q, want %q", tc.command, tc.args, got, tc.want)
		}
	}
	empty := func(in *Input) { in.Image.Entrypoint = []string{""} } // as some builders write an image without one
	if got := spec(t, empty).Process.Args; !slices.Equal(got, []string{"cmd"}) {
		t.Errorf("an empty entrypoint: got %q, want cmd", got)
	}
	none := func(in *Input) { in.Image.Entrypoint = nil }
	if got := spec(t, none).Process.Args; !slices.Equal(got, []string{"cmd"}) {
		t.Errorf("an image with Cmd alone: got %q, want cmd", got)
	}
}

func TestWorkingDirectory(t *testing.T) {
	for _, tc := range []struct{ container, image, want string }{
		{"", "", "/"},
		{"", "/image", "/image"},
		{"/pod", "/image", "/pod"},
	} {
		got := spec(t, func(in *Input) {
			in.Container.WorkingDir = tc.container
			in.Image.WorkingDir = tc.image
		}).Process.Cwd
		if got != tc.want {
			t.Errorf("pod's %q, image's %q: got %q, want %q", tc.container, tc.image, got, tc.want)
		}
	}
}

func TestEnv(t *testing.T) {
	got := spec(t, func(in *Input) {
		in.Container.Tty = true
		in.Container.Envs = []*runtimeapi.KeyValue{
			{Key: "A", Value: []byte("pod=1")},
			{Key: "B"},
			{Key: "HOSTNAME", Value: []byte("other")},
		}
	}).Process.Env
	want := []string{"PATH=/image", "TERM=xterm", "HOSTNAME=other", "A=pod=1", "B="}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
}

func TestUser(t *testing.T) {
	id := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for _, tc := range []struct {
		name   string
		change func(*runtimeapi.LinuxContainerSecurityContext)
		image  string
		want   user
	}{
		{"nothing said", func(*runtimeapi.LinuxContainerSecurityContext) {}, "", user{0, 0, []uint32{0}}},
		{"image's name", func(*runtimeapi.LinuxContainerSecurityContext) {}, "web", user{101, 201, []uint32{201, 301}}},
		{
			"image's name and group", func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
			}, "web:extra", user{101, 301, []uint32{301}},
		},
		{
			"image's name and number", func(*runtimeapi.LinuxContainerSecurityContext) {}, "web:5",
			user{101, 5, []uint32{5, 301}},
		},
		{
			"image's number and group", func(*runtimeapi.LinuxContainerSecurityContext) {}, "101:extra",
			user{101, 301, []uint32{301}},
		},
		{"image's number", func(*runtimeapi.LinuxContainerSecurityContext) {}, "7", user{7, 0, []uint32{0}}},
		{"image's numbers", func(*runtimeapi.LinuxContainerSecurityContext) {}, "7:8", user{7, 8, []uint32{8}}},
		{
			"pod's number", func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = id(101) }, "root",
			user{101, 201, []uint32{201, 301}},
		},
		{
			"unknown number", func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = id(999) }, "",
			user{999, 0, []uint32{0}},
		},
		{
			"pod's name", func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "web" }, "",
			user{101, 201, []uint32{201, 301}},
		},
		{
			"pod's group", func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.RunAsUser = id(101)
				s.RunAsGroup = id(5)
			}, "",
			user{101, 5, []uint32{5, 301}},
		},
		{
			"supplemental", func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.RunAsUser = id(101)
				s.SupplementalGroups = []int64{9, 9}
			}, "", user{101, 201, []uint32{9, 201, 301}},
		},
		{
			"strict", func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.RunAsUser = id(101)
				s.SupplementalGroups = []int64{9}
				s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
			}, "", user{101, 201, []uint32{9, 201}},
		},
	} {
		p := spec(t, secure(tc.change), func(in *Input) { in.Image.User = tc.image }).Process.User
		if got := (user{p.UID, p.GID, p.AdditionalGids}); !cmp.Equal(got, tc.want, cmp.AllowUnexported(user{})) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestInvalid(t *testing.T) {
	mount := func(m *runtimeapi.Mount) func(*Input) {
		return func(in *Input) { in.Container.Mounts = []*runtimeapi.Mount{m} }
	}
	for name, change := range map[string]func(*Input){
		"no command": func(in *Input) { in.Image = ocispec.ImageConfig{} },
		"unknown user name": secure(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUsername = "no-such-user"
		}),
		"group without user": secure(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsGroup = &runtimeapi.Int64Value{Value: 1}
		}),
		"relative directory":    func(in *Input) { in.Container.WorkingDir = "x" },
		"privileged in a plain": secure(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }),
		"user namespace without one": secure(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &runtimeapi.NamespaceOption{
				UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD},
			}
		}),
		"mount over the root": mount(&runtimeapi.Mount{ContainerPath: "/", HostPath: "/x"}),
		"mount of nothing":    mount(&runtimeapi.Mount{ContainerPath: "/x"}),
		"mount option": mount(&runtimeapi.Mount{
			ContainerPath: "/x",
			HostPath:      "/x",
			MountOptions:  []string{"dev"},
		}),
		"recursive, not ro": mount(&runtimeapi.Mount{ContainerPath: "/x", HostPath: "/x", RecursiveReadOnly: true}),
		"id mappings": mount(&runtimeapi.Mount{
			ContainerPath: "/x",
			HostPath:      "/x",
			UidMappings:   []*runtimeapi.IDMapping{{}},
		}),
		"seccomp without": func(in *Input) {
			in.Host.Seccomp = false
			defaultProfile(in)
		},
		"broken seccomp":   secure(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Seccomp = localhost() }),
		"AppArmor without": secure(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Apparmor = localhost() }),
		"negative supplemental": secure(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.SupplementalGroups = []int64{-1}
		}),
	} {
		if _, err := Spec(input(change)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
}

func localhost() *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"}
}

func defaultProfile(in *Input) {
	in.Container.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{
		ProfileType: runtimeapi.SecurityProfile_RuntimeDefault,
	}
}

func TestCapabilities(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    *runtimeapi.Capability
		has  []string
		not  []string
		n    int
	}{
		{"default", nil, []string{"CAP_CHOWN"}, []string{"CAP_SYS_ADMIN"}, len(defaultCapabilities)},
		{
			"add", &runtimeapi.Capability{AddCapabilities: []string{"net_admin"}},
			[]string{"CAP_NET_ADMIN"},
			nil,
			len(defaultCapabilities) + 1,
		},
		{
			"drop", &runtimeapi.Capability{DropCapabilities: []string{"CHOWN"}}, nil,
			[]string{"CAP_CHOWN"},
			len(defaultCapabilities) - 1,
		},
		{"drop all", &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}, nil, nil, 0},
		{
			"drop all, add one", &runtimeapi.Capability{
				DropCapabilities: []string{"ALL"},
				AddCapabilities:  []string{"KILL"},
			},
			[]string{"CAP_KILL"},
			nil, 1,
		},
		{
			"add all, drop one", &runtimeapi.Capability{
				AddCapabilities:  []string{"ALL"},
				DropCapabilities: []string{"SYS_TIME"},
			},
			[]string{"CAP_SYS_ADMIN"},
			[]string{"CAP_SYS_TIME"},
			len(linux.AllCapabilities()) - 1,
		},
	} {
		got := spec(t, secure(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = tc.c
		})).Process.Capabilities.Bounding
		for _, h := range tc.has {
			if !slices.Contains(got, h) {
				t.Errorf("%s: no %s in %v", tc.name, h, got)
			}
		}
		for _, h := range tc.not {
			if slices.Contains(got, h) {
				t.Errorf("%s: %s in %v", tc.name, h, got)
			}
		}
		if len(got) != tc.n {
			t.Errorf("%s: got %d capabilities %v, want %d", tc.name, len(got), got, tc.n)
		}
	}
	poor := func(in *Input) { in.Host.Capabilities = []string{"CAP_CHOWN"} }
	if got := spec(t, poor).Process.Capabilities.Effective; !slices.Equal(got, []string{"CAP_CHOWN"}) {
		t.Errorf("on a machine with few: got %v", got)
	}
}

func TestClamps(t *testing.T) {
	s := spec(t, func(in *Input) {
		in.Host.OOMScoreFloor = 0
		in.Host.OpenFiles = 20000
		in.Container.Linux.Resources.OomScoreAdj = -997
	})
	if *s.Process.OOMScoreAdj != 0 || s.Process.Rlimits[0].Hard != 20000 || s.Process.Rlimits[0].Soft != 20000 {
		t.Errorf("got oom score %d, limits %v, want 0 and 20000", *s.Process.OOMScoreAdj, s.Process.Rlimits)
	}
}

func TestMounts(t *testing.T) {
	s := spec(t, func(in *Input) {
		in.Container.Linux.SecurityContext.ReadonlyRootfs = true
		in.Container.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/data/inner/", HostPath: "/h/inner", Readonly: true},
			{
				ContainerPath: "/data",
				HostPath:      "/h/data",
				Propagation:   runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			},
			{ContainerPath: "/etc/hosts", HostPath: "/kubelet/hosts"},
			{
				ContainerPath:     "/ro",
				HostPath:          "/h/ro",
				Readonly:          true,
				RecursiveReadOnly: true,
				MountOptions:      []string{"noexec"},
			},
		}
	})
	at := map[string]int{}
	for i, m := range s.Mounts {
		if _, twice := at[m.Destination]; twice {
			t.Errorf("%s is mounted twice", m.Destination)
		}
		at[m.Destination] = i
	}
	if at["/data"] > at["/data/inner"] || at["/dev"] > at["/dev/shm"] {
		t.Errorf("order of mounts: %v", at)
	}
	for dest, want := range map[string]string{
		"/data":            "/h/data rbind,rslave,rw",
		"/data/inner":      "/h/inner rbind,rprivate,ro",
		"/etc/hosts":       "/kubelet/hosts rbind,rprivate,rw",
		"/ro":              "/h/ro rbind,rprivate,rro,noexec",
		"/etc/resolv.conf": "/f/resolv.conf rbind,rprivate,ro",
		"/dev/shm":         "/f/shm rbind,rprivate,rw",
		"/sys":             "sysfs nosuid,noexec,nodev,ro",
	} {
		m := s.Mounts[at[dest]]
		if got := m.Source + " " + strings.Join(m.Options, ","); got != want {
			t.Errorf("mount at %s: got %q, want %q", dest, got, want)
		}
	}
	if s.Linux.RootfsPropagation != "rslave" || !s.Root.Readonly {
		t.Errorf("root: got propagation %q, readonly %v", s.Linux.RootfsPropagation, s.Root.Readonly)
	}
}

func TestNamespaces(t *testing.T) {
	have := func(s *specs.Spec) map[specs.LinuxNamespaceType]string {
		out := map[specs.LinuxNamespaceType]string{}
		for _, n := range s.Linux.Namespaces {
			out[n.Type] = n.Path
		}
		return out
	}
	want := map[specs.LinuxNamespaceType]string{
		"mount":   "",
		"pid":     "",
		"network": "/ns/net",
		"ipc":     "/ns/ipc",
		"uts":     "/ns/uts",
	}
	if diff := cmp.Diff(want, have(spec(t))); diff != "" {
		t.Errorf("a pod's container (-want +got):\n%s", diff)
	}
	host := spec(t, func(in *Input) {
		in.Namespaces = Namespaces{}
		in.Host.Cgroups = linux.CgroupV2
		in.Container.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
			Pid: runtimeapi.NamespaceMode_NODE,
		}
	})
	if diff := cmp.Diff(map[specs.LinuxNamespaceType]string{"mount": "", "cgroup": ""}, have(host)); diff != "" {
		t.Errorf("on the host's namespaces (-want +got):\n%s", diff)
	}
}

// TestAppArmor: a profile by name is given to the process, on a machine that has AppArmor.
func TestAppArmor(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*runtimeapi.LinuxContainerSecurityContext)
		want   string
	}{
		"nothing said": {func(*runtimeapi.LinuxContainerSecurityContext) {}, ""},
		"by name": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Apparmor = &runtimeapi.SecurityProfile{
				ProfileType:  runtimeapi.SecurityProfile_Localhost,
				LocalhostRef: "localhost/tight",
			}
		}, "tight"},
		"unconfined": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		}, ""},
		"by an old kubelet": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.ApparmorProfile = "localhost/old" //nolint:staticcheck // as it says
		}, "old"},
	} {
		s := spec(t, secure(c.change), func(in *Input) { in.Host.AppArmor = true })
		if got := s.Process.ApparmorProfile; got != c.want {
			t.Errorf("%s: got profile %q, want %q", name, got, c.want)
		}
	}
}

// TestUserNamespace: the pod's is joined first, and mounts with id mappings, and the runtime's own files, are mapped as
// it maps ids.
func TestUserNamespace(t *testing.T) {
	ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
	s := spec(t, func(in *Input) {
		in.Namespaces.User = "/ns/user"
		in.Container.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
			UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids},
		}
		in.Container.Mounts = []*runtimeapi.Mount{
			{
				ContainerPath: "/mapped",
				HostPath:      "/h/mapped",
				UidMappings:   ids,
				GidMappings:   ids,
			}, {ContainerPath: "/plain", HostPath: "/h/plain"},
		}
	})
	if !slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/ns/user"}) {
		t.Errorf("namespaces: got %v", s.Linux.Namespaces)
	}
	if len(s.Linux.UIDMappings)+len(s.Linux.GIDMappings) > 0 {
		t.Errorf("got mappings %v, %v for a namespace that has them", s.Linux.UIDMappings, s.Linux.GIDMappings)
	}
	want := map[string]bool{
		"/mapped":          true,
		"/etc/hosts":       true,
		"/etc/resolv.conf": true,
		"/etc/hostname":    true,
	}
	for _, m := range s.Mounts {
		if got := slices.Contains(m.Options, "idmap"); got != want[m.Destination] {
			t.Errorf("mount at %s: options %v, mapped want %v", m.Destination, m.Options, want[m.Destination])
		}
	}
}

func TestPrivileged(t *testing.T) {
	s := spec(t, func(in *Input) {
		sec := in.Container.Linux.SecurityContext
		sec.Privileged = true
		sec.MaskedPaths = []string{"/proc/kcore"}
		sec.ReadonlyPaths = []string{"/proc/sys"}
		in.Sandbox.Linux.SecurityContext.Privileged = true
		defaultProfile(in)
		in.Devices = []Device{{specs.LinuxDevice{
			Path:  "/dev/x",
			Type:  "c",
			Major: 9,
			Minor: 9,
		}, "rwm"}}
	})
	if s.Linux.Seccomp != nil || len(s.Linux.MaskedPaths)+len(s.Linux.ReadonlyPaths) > 0 ||
		len(s.Process.Capabilities.Bounding) != len(linux.AllCapabilities()) || len(s.Linux.Devices) != 1 ||
		len(s.Linux.Resources.Devices) != 1 || !s.Linux.Resources.Devices[0].Allow {
		t.Errorf("privileged: got %+v, %+v", s.Linux, s.Process.Capabilities)
	}
}

func TestResources(t *testing.T) {
	resources := &runtimeapi.LinuxContainerResources{
		CpuPeriod:          100000,
		CpuQuota:           50000,
		CpuShares:          1,
		MemoryLimitInBytes: 1 << 20,
		HugepageLimits:     []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}},
		Unified:            map[string]string{"memory.high": "1"},
	}
	got := Resources(resources, linux.Facts{Cgroups: linux.CgroupV2, Swap: true, Controllers: []string{"hugetlb"}})
	if *got.CPU.Shares != 2 || *got.CPU.Quota != 50000 || *got.CPU.Period != 100000 || *got.Memory.Limit != 1<<20 ||
		*got.Memory.Swap != 1<<20 ||
		len(got.HugepageLimits) != 1 || got.Unified["memory.high"] != "1" {
		t.Errorf("got %+v", got)
	}
	got = Resources(resources, linux.Facts{})
	if got.Memory.Swap != nil || got.HugepageLimits != nil || got.Unified != nil {
		t.Errorf("on a machine without: got %+v", got)
	}
	if got := Resources(nil, linux.Facts{}); got.Memory.Limit != nil || got.CPU.Shares != nil {
		t.Errorf("nothing said: got %+v", got)
	}
}

func TestSeccomp(t *testing.T) {
	linuxSeccomp := spec(t, defaultProfile).Linux.Seccomp
	names := map[string]specs.LinuxSeccompAction{}
	for _, c := range linuxSeccomp.Syscalls {
		for _, n := range c.Names {
			names[n] = c.Action
		}
	}
	for n, want := range map[string]specs.LinuxSeccompAction{
		"read":       specs.ActAllow,
		"chroot":     specs.ActAllow,
		"socket":     specs.ActAllow,
		"clone3":     specs.ActErrno,
		"mount":      "",
		"keyctl":     "",
		"bpf":        "",
		"kexec_load": "",
		"unshare":    "",
	} {
		if names[n] != want {
			t.Errorf("%s: got %q, want %q", n, names[n], want)
		}
	}
	own := `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO"}]}`
	linuxSeccomp = spec(t, secure(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Seccomp = localhost() }), func(
		in *Input,
	) {
		in.SeccompProfile = []byte(own)
	}).Linux.Seccomp
	if linuxSeccomp.DefaultAction != specs.ActAllow || len(linuxSeccomp.Syscalls) != 1 {
		t.Errorf("own profile: got %+v", linuxSeccomp)
	}
	if s := spec(t); s.Linux.Seccomp != nil {
		t.Errorf("nothing said: got %+v", s.Linux.Seccomp)
	}
}

func FuzzUser(f *testing.F) {
	f.Add("web:5", []byte(passwd), []byte(group))
	f.Add("0", []byte("root:x:0"), []byte(":::"))
	f.Add("nobody:nogroup", []byte("nobody:x:65534:65534::/:/bin/false\n#\n"), []byte("nogroup:x:65534:\n"))
	f.Fuzz(func(t *testing.T, image string, passwd, group []byte) {
		in := input(func(in *Input) {
			in.Image.User = image
			in.Passwd = passwd
			in.Group = group
		})
		if _, err := Spec(in); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("user %q: got %v, want it refused as invalid", image, err)
		}
	})
}

// FuzzSeccomp: a profile that a user put on the node is a filter or refused.
func FuzzSeccomp(f *testing.F) {
	f.Add([]byte(
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}`))
	f.Add([]byte(`{"defaultAction":"x","architectures":["SCMP_ARCH_X86"],"syscalls":null,"flags":[""]}`))
	f.Add([]byte(`{"syscalls":[{"args":[{"index":99,"op":""}]}]}`))
	f.Fuzz(func(t *testing.T, profile []byte) {
		in := input(secure(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Seccomp = localhost() }),
			func(in *Input) { in.SeccompProfile = profile })
		if r, err := Spec(in); err == nil && r.Spec.Linux.Seccomp == nil || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", profile, err)
		}
	})
}

func BenchmarkSpec(b *testing.B) {
	in := input(defaultProfile)
	for b.Loop() {
		if _, err := Spec(in); err != nil {
			b.Fatal(err)
		}
	}
}
