// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
	"keelson/lib/waittest"
)

// hostRoot is the host's user id of root in the first test pod's user namespace.
const hostRoot = 655360

func idMapping(first uint32) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: first, ContainerId: 0, Length: 65536}}
}

// mappedPod is the configuration of a pod with a user namespace whose root is first.
func (n *node) mappedPod(name string, first uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: "uid-" + name, Namespace: "test"},
		Hostname:     name,
		LogDirectory: filepath.Join(n.cfg.Dir, "logs", name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/keelson-" + n.cfg.ID,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
				Pid: runtimeapi.NamespaceMode_CONTAINER,
				UsernsOptions: &runtimeapi.UserNamespace{
					Mode: runtimeapi.NamespaceMode_POD,
					Uids: idMapping(first),
					Gids: idMapping(first),
				},
			}},
		},
	}
}

func (n *node) runPod(cfg *runtimeapi.PodSandboxConfig) string {
	n.t.Helper()
	p, err := n.c.Runtime.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		n.t.Fatal(err)
	}
	return p.GetPodSandboxId()
}

// mappedContainer is a container of the pod that runs a script of the built-in image's shell.
func mappedContainer(cfg *runtimeapi.PodSandboxConfig, name, script string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
		Command:  []string{"/hello", "sh", "-c", script},
		LogPath:  name + ".log",
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
}

func (n *node) create(pod string, cfg *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) (string, error) {
	r, err := n.c.Runtime.CreateContainer(n.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId:  pod,
		SandboxConfig: cfg,
		Config:        c,
	})
	return r.GetContainerId(), err
}

func (n *node) begin(pod string, cfg *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	id, err := n.create(pod, cfg, c)
	if err == nil {
		_, err = n.c.Runtime.StartContainer(n.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

// sh runs a script in a container and returns its output; a failure is part of it.
func (n *node) sh(id, script string) string {
	n.t.Helper()
	r, err := n.c.Runtime.ExecSync(n.t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id,
		Cmd:         []string{"/hello", "sh", "-c", script},
	})
	if err != nil {
		n.t.Fatalf("exec %q: %v", script, err)
	}
	out := string(r.GetStdout()) + string(r.GetStderr())
	if r.GetExitCode() != 0 {
		out += fmt.Sprintf("exit %d\n", r.GetExitCode())
	}
	return out
}

func hostOwner(t *testing.T, path string) string {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner")
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

// pidOf is the host's process id of a process that has the mark in its command line.
func pidOf(t *testing.T, mark string) string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
			return filepath.Base(filepath.Dir(f))
		}
	}
	t.Fatalf("no process with %q", mark)
	return ""
}

func wantIn(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(strings.Join(strings.Fields(got), " "), w) {
			t.Errorf("%s: got %q, want %q in it", what, got, w)
		}
	}
}

func TestUserNamespace(t *testing.T) {
	node := newNode(t)
	cfg := node.mappedPod("mapped", hostRoot)
	cfg.Linux.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "1",
		"kernel.shmmax":                       "65536",
		"fs.mqueue.msg_max":                   "20",
	}
	pod := node.runPod(cfg)
	vol := t.TempDir()
	if err := os.WriteFile(filepath.Join(vol, "theirs"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := mappedContainer(cfg, "c", "echo mark-"+node.cfg.ID+"; echo by name >/dev/stdout; echo x >/vol/mine; sleep "+
		"1000; : lives-"+node.cfg.ID)
	c.Mounts = []*runtimeapi.Mount{
		{ContainerPath: "/vol", HostPath: vol, UidMappings: idMapping(hostRoot), GidMappings: idMapping(hostRoot)},
		{ContainerPath: "/plain", HostPath: vol},
	}
	id := node.begin(pod, cfg, c)
	waittest.Until(t, "the container writes", func() bool {
		_, err := os.Stat(filepath.Join(vol, "mine"))
		return err == nil
	})

	for _, f := range []string{"uid_map", "gid_map"} {
		wantIn(t, f, node.sh(id, "cat /proc/self/"+f), "0 655360 65536")
		wantIn(t, f+" of process 1", node.sh(id, "cat /proc/1/"+f), "0 655360 65536")
	}
	wantIn(t, "user inside", node.sh(id, "id"), "uid=0 gid=0")
	raw, err := os.ReadFile("/proc/" + pidOf(t, "lives-"+node.cfg.ID) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	wantIn(t, "user outside", string(raw), "Uid: 655360 655360 655360 655360", "Gid: 655360 655360 655360 655360")

	// A volume keeps the ids that the pod's have inside; the host's root is the overflow user without a mapping.
	if got := hostOwner(t, filepath.Join(vol, "mine")); got != "0:0" {
		t.Errorf("a file in the volume belongs to %s on the host, want the mapped mount's 0:0", got)
	}
	wantIn(t, "volume", node.sh(id, "stat /vol/theirs; cat /vol/theirs"), "uid=0 gid=0", "x")
	wantIn(t, "volume without a mapping", node.sh(id, "stat /plain/theirs; cat /plain/theirs"), "uid=65534 gid=65534",
		"permission denied")
	for _, f := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/hello", "/", "/dev/shm"} {
		wantIn(t, f, node.sh(id, "stat "+f), "uid=0 gid=0")
	}
	wantIn(t, "etc", node.sh(id, "echo 1.2.3.4 x >>/etc/hosts && echo ok"), "ok")
	wantIn(t, "root file system", node.sh(id, "echo x >/new && stat /new"), "uid=0 gid=0")
	upper := filepath.Join(node.cfg.Dir, "snapshots", id, "upper", "new")
	if got := hostOwner(t, upper); got != "655360:655360" {
		t.Errorf("a file in the container's root belongs to %s on the host, want 655360:655360", got)
	}
	wantIn(t, "shared memory", node.sh(id, "echo x >/dev/shm/f && stat /dev/shm/f"), "uid=0 gid=0")
	wantIn(t, "devices", node.sh(id, "echo x >/dev/null && stat /dev/null && stat /dev/tty && echo ok"), "mode=0666",
		"ok")
	wantIn(t, "sysctls",
		node.sh(id, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shmmax "+
			"/proc/sys/fs/mqueue/msg_max"), "1 65536 20")
	wantIn(t, "hostname", node.sh(id, "hostname"), "mapped")
	waittest.Until(t, "the log has what the container said", func() bool {
		got := node.logOf(cfg, "c")
		return strings.Contains(got, "mark-"+node.cfg.ID) && strings.Contains(got, "by name")
	})
}

// TestDevicesBelongToTheirPod starts containers with and without user namespaces at once, and one after them. Those
// without have device files that belong to root. Those with have the host's, whose owner they cannot see.
func TestDevicesBelongToTheirPod(t *testing.T) {
	node := newNode(t)
	create := func(i int, own bool) string {
		t.Helper()
		cfg := node.mappedPod(fmt.Sprint("pod-", i), hostRoot+uint32(i)*65536) // small
		if !own {
			cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = nil
		}
		id, err := node.create(node.runPod(cfg), cfg, mappedContainer(cfg, "c", "sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	start := func(id string) {
		if _, err := node.c.Runtime.StartContainer(t.Context(),
			&runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}
	var ids []string
	for i := range 12 {
		ids = append(ids, create(i, i%2 == 0))
	}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { start(id) })
	}
	wg.Wait()
	ids = append(ids, create(len(ids), false))
	start(ids[len(ids)-1])
	for i, id := range ids {
		owner := "uid=65534 gid=65534"
		if i%2 == 1 || i == len(ids)-1 {
			owner = "uid=0 gid=0"
		}
		if out := node.sh(id, "stat /dev/null /dev/tty /dev/urandom"); strings.Count(out, owner) != 3 {
			t.Errorf("the devices of pod %d do not belong to %s:\n%s", i, owner, out)
		}
	}
}

func (n *node) logOf(cfg *runtimeapi.PodSandboxConfig, name string) string {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(cfg.GetLogDirectory(), name+".log"))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// TestUserNamespaceIsNoWayOut: with an unmasked /proc and every capability, the host's parameters and devices are out
// of reach; with the same rights and the host's user namespace they would not be.
func TestUserNamespaceIsNoWayOut(t *testing.T) {
	before, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	node := newNode(t)
	cfg := node.mappedPod("attack", hostRoot)
	cfg.Linux.SecurityContext.Privileged = true
	pod := node.runPod(cfg)
	host := t.TempDir()
	for _, privileged := range []bool{false, true} {
		c := mappedContainer(cfg, fmt.Sprintf("c-%v", privileged), "sleep 1000")
		sec := c.Linux.SecurityContext
		sec.Privileged = privileged
		sec.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/host", HostPath: host}}
		id := node.begin(pod, cfg, c)
		for _, try := range []string{
			"echo '|/tmp/x' >/proc/sys/kernel/core_pattern", "echo x >/proc/sysrq-trigger",
			"echo 1 >/proc/sys/vm/drop_caches",
			"echo x >/sys/kernel/uevent_helper", "echo x >/host/written", "cat /dev/kmsg", "cat /proc/kcore",
			"echo 0 >/sys/fs/cgroup/memory/cgroup.procs", "mkdir /sys/fs/cgroup/memory/x",
			"echo 1 >/proc/sys/kernel/panic",
		} {
			if got := node.sh(id, try); !strings.Contains(got, "exit ") {
				t.Errorf("privileged %v: %q succeeded: %q", privileged, try, got)
			}
		}
	}
	if after, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || string(after) != string(before) {
		t.Errorf("the host's core pattern: got %q, %v, want %q", after, err, before)
	}
}

// TestUserNamespaceOutlivesRestarts of the runtime and the death of its supervisor: exec and new containers come to the
// same user namespace.
func TestUserNamespaceOutlivesRestarts(t *testing.T) {
	node := newNode(t)
	cfg := node.mappedPod("lives", hostRoot)
	pod := node.runPod(cfg)
	id := node.begin(pod, cfg, mappedContainer(cfg, "one", "sleep 1000"))
	before := node.sh(id, "readlink /proc/self/ns/user")
	for _, kill := range []bool{false, true} {
		node.stop()
		if kill {
			pid, err := strconv.Atoi(pidOf(t, filepath.Join(node.cfg.Dir, "shim")))
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		node.start()
		if after := node.sh(id, "readlink /proc/self/ns/user"); after != before {
			t.Errorf("exec after a restart (supervisor killed: %v): got user namespace %s, want %s", kill, after,
				before)
		}
	}
	if _, err := node.c.Runtime.StopContainer(t.Context(),
		&runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	again := mappedContainer(cfg, "one", "sleep 1000")
	again.Metadata.Attempt = 1
	if after := node.sh(node.begin(pod, cfg, again), "readlink /proc/self/ns/user"); after != before {
		t.Errorf("the container's second life: got user namespace %s, want %s", after, before)
	}
}

// TestUserNamespaceSharedProcesses: containers see each other, the first process is in the pod's user namespace.
func TestUserNamespaceSharedProcesses(t *testing.T) {
	node := newNode(t)
	cfg := node.mappedPod("shared", hostRoot)
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	pod := node.runPod(cfg)
	node.begin(pod, cfg, mappedContainer(cfg, "one", "sleep 1000; : seen-"+node.cfg.ID))
	two := mappedContainer(cfg, "two", "sleep 1000")
	id := node.begin(pod, cfg, two)
	wantIn(t, "processes", node.sh(id, "ps"), "seen-"+node.cfg.ID, "pause")
	wantIn(t, "process 1", node.sh(id, "cat /proc/1/uid_map"), "0 655360 65536")

	debug := mappedContainer(cfg, "debug", "sleep 1000")
	opts := &runtimeapi.NamespaceOption{
		Pid:           runtimeapi.NamespaceMode_TARGET,
		TargetId:      id,
		UsernsOptions: cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(),
	}
	debug.Linux.SecurityContext.NamespaceOptions = opts
	wantIn(t, "an ephemeral container", node.sh(node.begin(pod, cfg, debug), "ps; cat /proc/self/uid_map"),
		"seen-"+node.cfg.ID,
		"0 655360 65536")
}

// TestUserNamespaceTarget: an ephemeral container sees the processes of another container.
func TestUserNamespaceTarget(t *testing.T) {
	n := newNode(t)
	cfg := n.mappedPod("target", hostRoot)
	pod := n.runPod(cfg)
	id := n.begin(pod, cfg, mappedContainer(cfg, "one", "sleep 1000; : seen-"+n.cfg.ID))
	debug := mappedContainer(cfg, "debug", "sleep 1000")
	debug.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
		Pid:           runtimeapi.NamespaceMode_TARGET,
		TargetId:      id,
		UsernsOptions: cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(),
	}
	wantIn(t, "an ephemeral container", n.sh(n.begin(pod, cfg, debug), "ps; cat /proc/self/uid_map"), "seen-"+n.cfg.ID,
		"0 655360 65536")
}

// TestUserNamespaceUsers: users, groups and terminals of containers, and images as volumes.
func TestUserNamespaceUsers(t *testing.T) {
	node := newNode(t)
	cfg := node.mappedPod("users", hostRoot)
	pod := node.runPod(cfg)
	config := mappedContainer(cfg, "c", "echo said >/dev/stdout; sleep 1000; : lives-"+node.cfg.ID)
	config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	config.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 3000}
	config.Linux.SecurityContext.SupplementalGroups = []int64{2000}
	config.Mounts = []*runtimeapi.Mount{{
		ContainerPath: "/image",
		Image:         &runtimeapi.ImageSpec{Image: critest.HelloImage},
		Readonly:      true,
		UidMappings:   idMapping(hostRoot),
		GidMappings:   idMapping(hostRoot),
	}}
	id := node.begin(pod, cfg, config)
	wantIn(t, "id", node.sh(id, "id"), "uid=1000 gid=3000", "2000")
	wantIn(t, "image volume", node.sh(id, "stat /image/hello"), "uid=0 gid=0")
	raw, err := os.ReadFile("/proc/" + pidOf(t, "lives-"+node.cfg.ID) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	wantIn(t, "outside", string(raw), "Uid: 656360", "Gid: 658360", "Groups: 657360 658360")
	waittest.Until(t, "a user writes to /dev/stdout", func() bool {
		return strings.Contains(node.logOf(cfg, "c"), "said")
	})

	tty := mappedContainer(cfg, "tty", "stty size; echo said >/dev/tty; sleep 1000")
	tty.Tty = true
	tty.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	node.begin(pod, cfg, tty)
	waittest.Until(t, "a user writes to its terminal", func() bool {
		return strings.Contains(node.logOf(cfg, "tty"), "said")
	})
}

// TestUserNamespaceRefused: a pod whose mapping is impossible, or would not protect the node, does not start.
func TestUserNamespaceRefused(t *testing.T) {
	node := newNode(t)
	for name, change := range map[string]func(*runtimeapi.NamespaceOption){
		"host network": func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE },
		"host pid":     func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE },
		"host ipc":     func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE },
		"mode": func(o *runtimeapi.NamespaceOption) {
			o.UsernsOptions.Mode = runtimeapi.NamespaceMode_TARGET
		},
		"no mappings":     func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids = nil },
		"no groups":       func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Gids = nil },
		"the host's root": func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids = idMapping(0) },
		"no root":         func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Gids[0].ContainerId = 1 },
		"no ids":          func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids[0].Length = 0 },
		"too many ids":    func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids[0].Length = 1<<32 - 1 },
	} {
		cfg := node.mappedPod("refused", hostRoot)
		change(cfg.Linux.SecurityContext.NamespaceOptions)
		_, err := node.c.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
	cfg := node.mappedPod("refused", hostRoot)
	pod := node.runPod(cfg)
	for name, mount := range map[string]*runtimeapi.Mount{
		"another pod's ids": {
			HostPath:    node.cfg.Dir,
			UidMappings: idMapping(720896),
			GidMappings: idMapping(720896),
		},
		"a file system that cannot do it": {
			HostPath:    "/proc",
			UidMappings: idMapping(hostRoot),
			GidMappings: idMapping(hostRoot),
		},
	} {
		c := mappedContainer(cfg, "c", "sleep 1000")
		mount.ContainerPath = "/vol"
		c.Mounts = []*runtimeapi.Mount{mount}
		if _, err := node.create(pod, cfg, c); err == nil || !strings.Contains(err.Error(), "mount at /vol") {
			t.Errorf("a mount with %s: got %v, want it refused", name, err)
		}
	}
	for name, change := range map[string]func(*runtimeapi.LinuxContainerSecurityContext){
		"a user": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser = &runtimeapi.Int64Value{Value: 65536}
		},
		"a group": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser = &runtimeapi.Int64Value{}
			s.RunAsGroup = &runtimeapi.Int64Value{Value: 100000}
		},
		"a supplemental group": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.SupplementalGroups = []int64{100000}
		},
	} {
		c := mappedContainer(cfg, "c", "sleep 1000")
		change(c.Linux.SecurityContext)
		if _, err := node.create(pod, cfg, c); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "is not mapped") {
			t.Errorf("%s that is not mapped: got %v, want it refused", name, err)
		}
	}
	plain := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{
		Name:      "plain",
		Uid:       "plain",
		Namespace: "test",
	}}
	c := mappedContainer(cfg, "c", "sleep 1000")
	if _, err := node.create(node.runPod(plain), plain, c); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a container with a user namespace in a pod without: got %v, want it refused", err)
	}
}

// TestUserNamespaceStatus: the runtime says what it can do, and an impossible place for root file systems is a reason.
func TestUserNamespaceStatus(t *testing.T) {
	node := newNode(t)
	says := func() (bool, string) {
		t.Helper()
		r, err := node.c.Runtime.Status(context.WithoutCancel(t.Context()), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil || len(r.GetRuntimeHandlers()) != 1 {
			t.Fatalf("status: got %v, %v", r, err)
		}
		return r.GetRuntimeHandlers()[0].GetFeatures().GetUserNamespaces(), r.GetInfo()["userNamespaces"]
	}
	if ok, why := says(); !ok {
		t.Errorf("user namespaces: not supported: %s", why)
	}
	node.stop()
	node.cfg.MappedDir = "/proc/none"
	node.cfg.Snapshots = nil
	node.start()
	if ok, why := says(); ok || !strings.Contains(why, "/proc/none") {
		t.Errorf("user namespaces without a place for root file systems: got %v, %q", ok, why)
	}
	_, err := node.c.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: node.mappedPod("refused", hostRoot),
	})
	if status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "user namespaces are not supported") {
		t.Errorf("run: got %v, want it refused", err)
	}
	node.cfg.MappedDir = ""
}
