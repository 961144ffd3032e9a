// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
)

// writeFiles writes the pod's /etc/hosts, resolv.conf and hostname, for containers to which the kubelet mounts none.
func writeFiles(sb *pods.Sandbox) error {
	rec := sb.Record()
	hosts, err := readIfThere("/etc/hosts")
	if err != nil {
		return err
	}
	resolv := resolvConf(rec.Config.V.GetDnsConfig())
	if rec.Config.V.GetDnsConfig() == nil {
		if resolv, err = readIfThere("/etc/resolv.conf"); err != nil {
			return err
		}
	}
	for name, body := range map[string]string{
		"hosts":       hosts,
		"resolv.conf": resolv,
		"hostname":    rec.Hostname + "\n",
	} {
		// Any user in a container may read them.
		if err := os.WriteFile(filepath.Join(sb.Dir, name), []byte(body), 0o644); err != nil { // see above
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
