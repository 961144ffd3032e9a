// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"keelson/cluster/datadir"
)

func binary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../bin/keelson")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: these tests run the real binary, `make` builds it", err)
	}
	return path
}

func TestScripts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: real containers")
	}
	bin := binary(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "scripts",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(18 * time.Minute),
		Setup: func(env *testscript.Env) error {
			data := filepath.Join(env.WorkDir, "data")
			env.Setenv("KEELSON_DATA_DIR", data)
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("PATH", filepath.Dir(bin)+":"+filepath.Join(filepath.Dir(bin), "tools")+":"+os.Getenv("PATH"))
			env.Setenv("EXAMPLES", filepath.Join(filepath.Dir(filepath.Dir(bin)), "examples"))
			public, err := os.MkdirTemp("", "keelson-e2e-") //nolint:usetesting // where another user may go
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(public) })
			if err := os.Chmod(public, 0o777); err != nil { // that is what it is for
				return err
			}
			env.Setenv("PUBLIC", public)
			env.Setenv("KEELSON", bin)
			before := kernelState()
			env.Defer(func() {
				// A script that failed half way leaves a running cluster: end it, then look.
				dirs, _ := filepath.Glob(filepath.Join(env.WorkDir, "*", "keelson.pid")) // the pattern is good
				for _, pid := range dirs {
					out, err := exec.CommandContext(context.Background(), bin, "down", "--data-dir", filepath.Dir(pid)).
						CombinedOutput()
					if err != nil {
						t.Errorf("keelson down: %v\n%s", err, out)
					}
				}
				if diff := leaked(before, kernelState(), data); diff != "" {
					t.Errorf("left behind after `keelson down`:\n%s", diff)
				}
				if t.Failed() {
					log, _ := os.ReadFile(filepath.Join(data, "keelson.log"))
					t.Logf("keelson.log:\n%s", log[max(0, len(log)-20000):])
				}
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"eventually":        eventually,
			"alike":             alike,
			"killcluster":       killCluster,
			"killcontainer":     killContainer,
			"freeport":          freePort,
			"registry":          startRegistry,
			"pushimage":         pushImage,
			"saveimage":         saveImage,
			"inpodimage":        programImage("./inpod"),
			"driverimage":       programImage("../kubelet/csi/drivertest"),
			"dradriverimage":    programImage("../kubelet/dra/drivertest"),
			"devicepluginimage": programImage("../kubelet/deviceplugin/plugintest"),
			"monitorimage":      programImage("../kubelet/podresources/monitortest"),
			"terminal":          terminal,
			"extender":          startExtender,
			"extension":         startExtension,
			"signer":            startSigner,
			"bundles":           makeBundles,
			"sametrust":         compareTrust,
			"certificate":       showCertificate,
			"forwarded":         forwarded,
			"wsopen":            wsopen,
			"killrounds":        killRounds,
			"containerd":        startContainerd,
			"cniplugins":        configurePlugins,
			"machine":           newMachine,
			"loopdevice":        loopDevice,
		},
	})
}

func lookPath(ts *testscript.TestScript, name string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if p := filepath.Join(dir, name); isFile(p) {
			return p
		}
	}
	ts.Fatalf("%s is not in PATH", name)
	return ""
}

func isFile(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular()
}

func environ(ts *testscript.TestScript) []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "KEELSON_DATA_DIR", "KUBECONFIG", "WORK", "TMPDIR"} {
		env = append(env, k+"="+ts.Getenv(k))
	}
	return env
}

// killCluster kills the instance of the script's data directory with SIGKILL.
func killCluster(ts *testscript.TestScript, _ bool, _ []string) {
	b, err := os.ReadFile(filepath.Join(ts.Getenv("KEELSON_DATA_DIR"), "keelson.pid"))
	ts.Check(err)
	var pid int
	_, err = fmt.Sscan(string(b), &pid)
	ts.Check(err)
	p, err := os.FindProcess(pid)
	ts.Check(err)
	ts.Check(p.Kill())
	for end := time.Now().Add(patience); time.Now().Before(end); { // not our child: it is gone when the kernel says so
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || zombie(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("instance %d did not die", pid)
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(b, []byte(") Z "))
}

// state is what a cluster could leave in the kernel.
type state struct{ mounts, links, cgroups, processes []string }

func kernelState() state {
	var s state
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 4 {
				s.mounts = append(s.mounts, f[4])
			}
		}
	}
	s.links = names("/sys/class/net")
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "keelson") {
			s.cgroups = append(s.cgroups, path)
		}
		return nil
	})
	for _, pid := range names("/proc") {
		cmd, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err == nil && len(cmd) > 0 {
			s.processes = append(s.processes, pid+" "+string(bytes.ReplaceAll(cmd, []byte{0}, []byte{' '})))
		}
	}
	return s
}

func names(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// leaked lists what is in after and not in before; of mounts and processes only what belongs to the data directory.
func leaked(before, after state, data string) string {
	var out strings.Builder
	id := datadir.Dir(data).ID() // scripts run side by side
	for _, part := range []struct {
		name          string
		before, after []string
		mine          func(string) bool
	}{
		{"mount", before.mounts, after.mounts, func(s string) bool { return strings.HasPrefix(s, data) }},
		{"link", before.links, after.links, func(s string) bool { return strings.Contains(s, id) }},
		{"cgroup", before.cgroups, after.cgroups, func(s string) bool { return strings.Contains(s, id) }},
		{"process", before.processes, after.processes, func(s string) bool { return strings.Contains(s, data) }},
	} {
		for _, x := range part.after {
			if part.mine(x) && !slices.Contains(part.before, x) {
				fmt.Fprintf(&out, "%s %s\n", part.name, x)
			}
		}
	}
	return out.String()
}
