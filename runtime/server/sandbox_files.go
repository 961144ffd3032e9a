// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/oci"
)

// writeFiles writes the pod's /etc/hosts, resolv.conf and hostname, for containers to which the kubelet mounts none.
func (s *Server) writeFiles(sb *sandbox) error {
	hosts, err := readIfThere("/etc/hosts")
	if err != nil {
		return err
	}
	resolv := resolvConf(sb.rec.Config.v.GetDnsConfig())
	if sb.rec.Config.v.GetDnsConfig() == nil {
		if resolv, err = readIfThere("/etc/resolv.conf"); err != nil {
			return err
		}
	}
	for name, body := range map[string]string{
		"hosts":       hosts,
		"resolv.conf": resolv,
		"hostname":    sb.rec.Hostname + "\n",
	} {
		// Any user in a container may read them.
		if err := os.WriteFile(filepath.Join(sb.dir, name), []byte(body), 0o644); err != nil { // see above
			return fmt.Errorf("write the pod's %s: %w", name, err)
		}
	}
	return nil
}

func readIfThere(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(raw), err
}

func resolvConf(d *runtimeapi.DNSConfig) string {
	var b strings.Builder
	if len(d.GetSearches()) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.GetSearches(), " "))
	}
	for _, n := range d.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", n)
	}
	if len(d.GetOptions()) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.GetOptions(), " "))
	}
	return b.String()
}

// files returns the files of writeFiles, and the pod's shared memory.
func (sb *sandbox) files() oci.PodFiles {
	f := oci.PodFiles{
		Hosts:      filepath.Join(sb.dir, "hosts"),
		ResolvConf: filepath.Join(sb.dir, "resolv.conf"),
		Hostname:   filepath.Join(sb.dir, "hostname"),
		Shm:        sb.shm(),
	}
	r := sb.record()
	if r.options().GetIpc() == runtimeapi.NamespaceMode_NODE {
		f.Shm = "/dev/shm"
	}
	return f
}

// namespaces returns the namespaces that the pod's containers join.
func (sb *sandbox) namespaces() oci.Namespaces {
	var n oci.Namespaces
	r := sb.record()
	if r.hasUserNamespace() {
		n.User = sb.ns(string(linux.UserNamespace))
	}
	for _, k := range r.ownNamespaces() {
		switch k {
		case linux.NetworkNamespace:
			n.Network = sb.ns(string(k))
		case linux.IPCNamespace:
			n.IPC = sb.ns(string(k))
		case linux.UTSNamespace:
			n.UTS = sb.ns(string(k))
		}
	}
	return n
}
