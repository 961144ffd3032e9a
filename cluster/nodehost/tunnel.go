// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"keelson/cluster/datadir"
	"keelson/lib/option"
	"keelson/network/mesh"
	"keelson/pki"
)

// PodRouteOptions say how pods of other machines are reached.
type PodRouteOptions struct {
	// Mode says which machines are reached by a tunnel; empty: those in another layer-2 network.
	Mode mesh.Mode
	// Port is the tunnel's UDP port; 0: the default. For VXLAN it must be the same on all machines.
	Port int
	// KeepAlive is WireGuard's persistent keepalive interval; 0: off.
	KeepAlive time.Duration
}

// Rows are the options of the tunnel.
func (o *PodRouteOptions) Rows() []option.Row {
	o.Mode = mesh.Auto
	return []option.Row{
		option.Set((*tunnelMode)(&o.Mode), "tunnel",
			"`MODE` of the tunnel to pods of other nodes: auto (VXLAN where nodes "+
				"do not share a network), vxlan (always), wireguard (always, encrypted; nodes without it are not "+
				"reached) or "+
				"none"),
		option.New(&o.Port, "tunnel-port", 0,
			"UDP port of the tunnel, for VXLAN the same on all nodes (default 8472, of WireGuard 51820)"),
		option.New(&o.KeepAlive, "tunnel-keepalive", 0,
			"persistent keepalive interval of --tunnel=wireguard: 25s if this node is behind NAT (default off)"),
	}
}

// Validate checks what flag parsing cannot. foreign reports that pods have no addresses of the built-in network.
func (o PodRouteOptions) Validate(foreign bool) error {
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("--tunnel-port %d is no port: 1 to 65535", o.Port)
	}
	if o.KeepAlive != 0 && (o.Mode != mesh.WireGuard || o.KeepAlive != o.KeepAlive.Truncate(time.Second) ||
		o.KeepAlive < time.Second || o.KeepAlive > 65535*time.Second) {
		return fmt.Errorf("--tunnel-keepalive %s: it is of --tunnel=wireguard, and of whole seconds, 1s to 65535s",
			o.KeepAlive)
	}
	if o.Mode == mesh.WireGuard && foreign {
		return errors.New("--tunnel=wireguard is of the built-in pod network: where CNI plugins or another container " +
			"runtime attach pods, they would have to encrypt")
	}
	return nil
}

type tunnelMode mesh.Mode

// String formats the flag's value.
func (m *tunnelMode) String() string { return string(*m) }

// Set parses the flag's value.
func (m *tunnelMode) Set(text string) error {
	if !slices.Contains(mesh.Modes, mesh.Mode(text)) {
		return fmt.Errorf("%q is none of %v", text, mesh.Modes)
	}
	*m = tunnelMode(text)
	return nil
}

// Type names the value in the usage text.
func (*tunnelMode) Type() string { return "string" }

// WireGuardKey returns the node's private key. It is created once and never leaves the directory.
func WireGuardKey(dir datadir.Dir) (mesh.Key, error) {
	path := dir.Sub(datadir.WireGuardKeyFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = newWireGuardKey(path)
	}
	if err != nil {
		return mesh.Key{}, fmt.Errorf("the node's WireGuard key: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(b)))
	if err != nil || key == (mesh.Key{}) {
		return mesh.Key{}, fmt.Errorf("%s has no WireGuard key as `wg genkey` makes them: delete it, and the node "+
			"makes itself a new one", path)
	}
	return key, nil
}

// newWireGuardKey stores a new key. If another process has stored one meanwhile, that one is returned.
func newWireGuardKey(path string) ([]byte, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	fresh := path + ".new"
	if err := pki.WriteFile(fresh, []byte(key.String()+"\n"), 0o600); err != nil {
		return nil, err
	}
	if err := os.Link(fresh, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.ReadFile(path)
}
