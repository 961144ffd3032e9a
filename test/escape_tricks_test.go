// SPDX-License-Identifier: Apache-2.0

package test

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// trick is an image or a pod that tries to get hold of the host before its program runs: the runtime, or the kubelet,
// would have to be the one to make the mistake. Whether the pod then starts or is refused is not the question; HOST
// stands for a directory of the host.
type trick struct {
	name    string
	entries []tar.Header // of the image
	cfg     v1.Config
	spec    string // of the pod; may hold init containers
	ctr     string // of its container
	// refused says that the container must not have started.
	refused bool
}

func link(at, to string) tar.Header {
	return tar.Header{
		Typeflag: tar.TypeSymlink,
		Name:     at,
		Linkname: to,
		Mode:     0o777,
	}
}

// prepared is a volume in which an earlier container made a symlink.
func prepared(at, to string) string {
	return fmt.Sprintf(`  volumes: [{name: volume, emptyDir: {}}]
  initContainers:
  - {name: prepare, image: %s, imagePullPolicy: Never, args: [symlink, %q, %q], volumeMounts: [{name: volume, mountPath: /volume}]}
`, escapeImage, to, at)
}

var tricks = slices.Concat([]trick{
	{
		name:    "workdir-is-a-link",
		entries: []tar.Header{link("work", "/proc/self/fd/9")},
		cfg:     v1.Config{WorkingDir: "/work"},
	},
	{name: "workdir-up", cfg: v1.Config{WorkingDir: "/../../../../../../../../HOST"}},
	{name: "dev-is-a-link", entries: []tar.Header{link("dev", "HOST")}},
	{name: "proc-is-a-link", entries: []tar.Header{link("proc", "HOST")}},
	{name: "sys-is-a-link", entries: []tar.Header{link("sys", "HOST")}},
	{name: "etc-is-a-link", entries: []tar.Header{link("etc", "HOST")}},
	{name: "etc-goes-up", entries: []tar.Header{link("etc", "../../../../../../../../../../../../HOST")}},
	{
		name: "hosts-is-a-link",
		entries: []tar.Header{link("etc/hosts", "HOST/hosts"), link("etc/resolv.conf", "HOST/resolv.conf"), link(
			"etc/hostname", "HOST/hostname")},
	},
	{
		name:    "passwd-is-a-link",
		entries: []tar.Header{link("etc/passwd", "HOST/marker"), link("etc/group", "HOST/marker")},
		cfg:     v1.Config{User: "somebody"},
		refused: true,
	},
	{
		name:    "passwd-never-ends",
		entries: []tar.Header{link("etc/passwd", "/dev/zero")},
		cfg:     v1.Config{User: "somebody"},
		refused: true,
	},
	{
		name:    "passwd-is-a-pipe",
		entries: []tar.Header{{Typeflag: tar.TypeFifo, Name: "etc/passwd", Mode: 0o666}},
		cfg:     v1.Config{User: "somebody"},
		refused: true,
	},
	// Layers whose entries go through a link that the layer itself made.
	{
		name: "layer-whiteout-through-a-link",
		entries: []tar.Header{
			{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o755},
			{Typeflag: tar.TypeReg, Name: "a/.wh.file", Mode: 0o644},
			link("a", "HOST"),
			{Typeflag: tar.TypeReg, Name: "a/marker/x", Mode: 0o644},
			{
				Typeflag: tar.TypeReg,
				Name:     "a/file/x",
				Mode:     0o644,
			},
		},
	},
	{
		name: "layer-mode-through-a-link",
		entries: []tar.Header{
			link("a", "HOST"), {
				Typeflag: tar.TypeDir,
				Name:     "a/",
				Mode:     0o777,
				Uid:      1000,
			}, link("b", "HOST"), {
				Typeflag: tar.TypeDir,
				Name:     "b/new/",
				Mode:     0o777,
				Uid:      1000,
			},
		},
	},
	{
		name: "layer-hard-link-to-the-host",
		entries: []tar.Header{
			{Typeflag: tar.TypeLink, Name: "data", Linkname: "HOST"},
			{Typeflag: tar.TypeLink, Name: "data/marker", Linkname: "HOST/marker"},
		},
	},
	{
		name: "layer-goes-up",
		entries: []tar.Header{
			{Typeflag: tar.TypeReg, Name: "../../../../../../../../../../../../../../..HOST/new", Mode: 0o644},
		},
	},
	{
		name:    "mount-at-a-link",
		entries: []tar.Header{link("data", "HOST")},
		spec:    "  volumes: [{name: volume, emptyDir: {}}]\n",
		ctr:     "    volumeMounts: [{name: volume, mountPath: /data}]\n",
	},
	{
		name:    "mount-below-a-link",
		entries: []tar.Header{link("data", "HOST")},
		spec:    "  volumes: [{name: volume, emptyDir: {}}]\n",
		ctr:     "    volumeMounts: [{name: volume, mountPath: /data/new}]\n",
	},
	{
		name:    "subpath-is-a-link",
		spec:    prepared("/volume/link", "/"),
		ctr:     "    volumeMounts: [{name: volume, mountPath: /sub, subPath: linkHOST}]\n",
		refused: true,
	},
	{
		name:    "subpath-goes-up",
		spec:    prepared("/volume/link", "../../../../../../../../../../../.."),
		ctr:     "    volumeMounts: [{name: volume, mountPath: /sub, subPath: linkHOST}]\n",
		refused: true,
	},
	{
		name: "termination-log-at-a-link",
		spec: prepared("/volume/link", "HOST"),
		ctr:  "    terminationMessagePath: /volume/link/log\n    volumeMounts: [{name: volume, mountPath: /volume}]\n",
	},
	// CVE-2025-31133: what masks /proc/kcore is bind mounted from the container's /dev/null.
	{
		name: "null-is-a-link",
		spec: prepared("/volume/null", "/proc/sys/kernel/core_pattern"),
		ctr:  "    volumeMounts: [{name: volume, mountPath: /dev}]\n",
	},
	// CVE-2025-52565: the terminal is bind mounted onto /dev/console.
	{
		name: "console-is-a-link",
		spec: prepared("/volume/console", "/proc/sys/kernel/core_pattern"),
		ctr:  "    tty: true\n    volumeMounts: [{name: volume, mountPath: /dev}]\n",
	},
	{
		name: "ptmx-is-a-link",
		spec: prepared("/volume/ptmx", "/proc/sys/kernel/core_pattern"),
		ctr:  "    tty: true\n    volumeMounts: [{name: volume, mountPath: /dev}]\n",
	},
	// CVE-2025-52881: labels and sysctls are written through /proc/self of the container.
	{
		name:    "attr-is-elsewhere",
		spec:    prepared("/volume/self", "/proc/sys/kernel"),
		ctr:     "    volumeMounts: [{name: volume, mountPath: /proc}]\n",
		refused: true,
	},
}, workingDescriptors())

// workingDescriptors are working directories that are descriptors of the runtime (CVE-2024-21626).
func workingDescriptors() []trick {
	var out []trick
	for fd := 3; fd < 20; fd++ {
		out = append(out, trick{
			name: fmt.Sprintf("workdir-is-descriptor-%d", fd),
			ctr:  fmt.Sprintf("    workingDir: /proc/self/fd/%d\n", fd),
		})
	}
	return out
}

// TestEscapeTricks runs each trick and finds the host untouched and out of reach.
func TestEscapeTricks(t *testing.T) {
	live := escapeCluster(t)
	host := filepath.Dir(live.marker)
	live.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: tricks}\n---\n")
	var manifest strings.Builder
	imported := map[string]bool{} // others have no pod
	before := listTree(t, host)
	for _, trick := range tricks {
		image := ""
		if len(trick.entries) > 0 || trick.cfg.WorkingDir != "" || trick.cfg.User != "" {
			image = "keelson.test/" + trick.name + ":1"
			for i := range trick.entries {
				trick.entries[i].Name = strings.Replace(trick.entries[i].Name, "HOST", host, 1)
				trick.entries[i].Linkname = strings.Replace(trick.entries[i].Linkname, "HOST", host, 1)
			}
			trick.cfg.Entrypoint = []string{"/escape"}
			trick.cfg.WorkingDir = strings.Replace(trick.cfg.WorkingDir, "/HOST", host, 1)
			if out, err := live.importImage(t, image, live.program, trick.entries, trick.cfg); err != nil {
				t.Logf("%s: image refused: %s", trick.name, out)
				continue
			}
		}
		imported[trick.name] = true
		spec := strings.ReplaceAll(strings.ReplaceAll(trick.spec, "HOST", host), "[stay]", "[]")
		manifest.WriteString(
			strings.Replace(live.pod("tricks", trick.name, spec, strings.ReplaceAll(trick.ctr, "HOST", host),
				image), "args: [stay]", "args: []", 1))
	}
	corePattern := readHost(t, "/proc/sys/kernel/core_pattern")
	live.apply(t, manifest.String())
	for _, k := range tricks {
		if !imported[k.name] {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			started, how := live.settled(t, "tricks", k.name)
			if !started {
				t.Logf("refused: %s", how)
				return
			}
			if k.refused {
				t.Errorf("the container started; want it refused")
			}
			log := live.eventually(t, `"capabilities"`, "logs", "-n", "tricks", k.name)
			profile{
				open: map[string]string{"capabilities": defaultCaps, "bounding set": defaultCaps},
				may: []string{
					"inject into the terminal",
				},
			}.check(t, "program", log)
		})
	}
	if after := listTree(t, host); after != before {
		t.Errorf("the host's directory changed:\n%s\nbefore:\n%s", after, before)
	}
	if after := readHost(t, "/proc/sys/kernel/core_pattern"); after != corePattern {
		t.Errorf("core_pattern = %q, want %q", after, corePattern)
	}
}

// settled waits until the pod's container has run, or is refused, and says which and in what words.
func (c *live) settled(t *testing.T, namespace, podName string) (started bool, how string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		out, _ := c.kubectl(nil, "get", "pod", "-n", namespace, podName, "-o",
			`jsonpath={.status.phase}|{.status.containerStatuses[0].state.waiting.reason}|{.status.containerStatuses[0].state.waiting.message}|{.status.containerStatuses[0].state.terminated.reason}|{.status.containerStatuses[0].state.terminated.message}`)
		f := strings.SplitN(out, "|", 5)
		if len(f) < 5 {
			t.Fatalf("kubectl get pod %s: %s", podName, out)
		}
		switch {
		case f[3] == "StartError" || f[3] == "ContainerCannotRun" || f[0] == "Failed" &&
			f[3] != "Error" && f[3] != "Completed":
			return false, out
		case f[0] == "Succeeded" || f[0] == "Failed":
			return true, out
		case strings.HasSuffix(f[1], "Error"):
			return false, out
		}
		if time.Now().After(end) {
			more, _ := c.kubectl(nil, "describe", "pod", "-n", namespace, podName)
			t.Fatalf("pod %s neither ran nor was refused: %s\n%s", podName, out, more)
		}
	}
}

// listTree is every file below dir with its mode, owner, size and, of links, target.
func listTree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := os.Lstat(path)
		if err != nil {
			return err
		}
		to, _ := os.Readlink(path)
		fmt.Fprintf(&out, "%s %s %d %s %v\n", path, fi.Mode(), fi.Size(), to, fi.ModTime().UnixNano())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func readHost(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
