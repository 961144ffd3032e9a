// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultPath is $PATH when neither image nor container sets one.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// openFiles is the soft RLIMIT_NOFILE of containers, where the machine allows it.
const openFiles = 1 << 20

func newProcess(in Input, sec *runtimeapi.LinuxContainerSecurityContext, u user) (*specs.Process, error) {
	args, err := argsOf(in)
	if err != nil {
		return nil, err
	}
	cwd := in.Container.GetWorkingDir()
	if cwd == "" {
		cwd = in.Image.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	if !strings.HasPrefix(cwd, "/") {
		return nil, invalid("working directory %q is not absolute", cwd)
	}
	score := max(int(in.Container.GetLinux().GetResources().GetOomScoreAdj()), in.Host.OOMScoreFloor)
	process := &specs.Process{
		Terminal:        in.Container.GetTty(),
		Args:            args,
		Env:             envOf(in),
		Cwd:             cwd,
		User:            specs.User{UID: u.uid, GID: u.gid, AdditionalGids: u.groups},
		Capabilities:    capabilitiesOf(in.Host, sec),
		NoNewPrivileges: sec.GetNoNewPrivs(),
		OOMScoreAdj:     &score,
		Rlimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Hard: in.Host.OpenFiles, Soft: min(openFiles, in.Host.OpenFiles)},
		},
	}
	return process, nil
}

// argsOf returns the command line. A command replaces the image's Entrypoint and Cmd; args alone replace its Cmd.
func argsOf(in Input) ([]string, error) {
	entry := in.Container.GetCommand()
	rest := in.Container.GetArgs()
	if len(entry) == 0 {
		entry = in.Image.Entrypoint
		for len(entry) > 0 && entry[0] == "" { // some builders write [""] for none
			entry = entry[1:]
		}
		if len(rest) == 0 {
			rest = in.Image.Cmd
		}
	}
	args := slices.Concat(entry, rest)
	if len(args) == 0 || args[0] == "" {
		return nil, invalid("no command specified: neither the container nor its image names a program")
	}
	return args, nil
}

// envOf returns the environment. The container's variables replace the image's, which replace the defaults.
func envOf(in Input) []string {
	env := []string{defaultPath}
	if in.Container.GetTty() {
		env = append(env, "TERM=xterm")
	}
	if in.Hostname != "" {
		env = append(env, "HOSTNAME="+in.Hostname)
	}
	index := map[string]int{}
	for i, kv := range env {
		index[keyOf(kv)] = i
	}
	put := func(kv string) {
		if i, ok := index[keyOf(kv)]; ok {
			env[i] = kv
			return
		}
		index[keyOf(kv)] = len(env)
		env = append(env, kv)
	}
	for _, kv := range in.Image.Env {
		if strings.Contains(kv, "=") {
			put(kv)
		}
	}
	for _, e := range in.Container.GetEnvs() {
		put(e.GetKey() + "=" + string(e.GetValue()))
	}
	return env
}

func keyOf(kv string) string {
	k, _, _ := strings.Cut(kv, "=")
	return k
}

// defaultCapabilities are the capabilities of a container whose security context names none.
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP",
	"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// capabilitiesOf applies the adds and drops of the security context to the defaults; "ALL" is applied first, so that
// single names refine it. Capabilities that this machine does not have are left out.
func capabilitiesOf(host hostFacts, sec *runtimeapi.LinuxContainerSecurityContext) *specs.LinuxCapabilities {
	set := map[string]bool{}
	add := func(names []string, have bool) {
		for _, n := range names {
			set[n] = have
		}
	}
	add(defaultCapabilities, true)
	var ambient []string
	if sec.GetPrivileged() {
		add(host.Capabilities, true)
	} else {
		capability := sec.GetCapabilities()
		adds := normalize(capability.GetAddCapabilities())
		drops := normalize(capability.GetDropCapabilities())
		if slices.Contains(adds, "CAP_ALL") {
			add(host.Capabilities, true)
		}
		if slices.Contains(drops, "CAP_ALL") {
			clear(set)
		}
		add(adds, true)
		add(drops, false)
		ambient = normalize(capability.GetAddAmbientCapabilities())
		add(ambient, true)
	}
	var out, amb []string
	for _, n := range host.Capabilities {
		if set[n] {
			out = append(out, n)
		}
		if slices.Contains(ambient, n) {
			amb = append(amb, n)
		}
	}
	return &specs.LinuxCapabilities{
		Bounding:    out,
		Effective:   out,
		Permitted:   out,
		Inheritable: amb,
		Ambient:     amb,
	}
}

func normalize(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		n = strings.ToUpper(n)
		if !strings.HasPrefix(n, "CAP_") {
			n = "CAP_" + n
		}
		out = append(out, n)
	}
	return out
}
