// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"keelson/api/networking/wireguard"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/network/mesh"
	"keelson/pki"
	"keelson/podroutes"
)

// podRoutesRole maintains the routes to pods of other machines.
const podRoutesRole = "pod routes"

// PodRouteOptions say how pods of other machines are reached.
type PodRouteOptions struct {
	// Mode says which machines are reached by a tunnel; empty: those in another layer-2 network.
	Mode mesh.Mode
	// Port is the tunnel's UDP port; 0: the default. For VXLAN it must be the same on all machines.
	Port int
	// KeepAlive is WireGuard's persistent keepalive interval; 0: off.
	KeepAlive time.Duration
}

func (o *PodRouteOptions) flags(fl *pflag.FlagSet) {
	o.Mode = mesh.Auto
	fl.Var((*tunnelMode)(&o.Mode), "tunnel", "`MODE` of the tunnel to pods of other nodes: auto (VXLAN where nodes "+
		"do not share a network), vxlan (always), wireguard (always, encrypted; nodes without it are not reached) or "+
		"none")
	fl.IntVar(&o.Port, "tunnel-port", 0,
		"UDP port of the tunnel, for VXLAN the same on all nodes (default 8472, of WireGuard 51820)")
	fl.DurationVar(&o.KeepAlive, "tunnel-keepalive", 0,
		"persistent keepalive interval of --tunnel=wireguard: 25s if this node is behind NAT (default off)")
}

// validate checks what flag parsing cannot.
func (o PodRouteOptions) validate(c Config) error {
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("--tunnel-port %d is no port: 1 to 65535", o.Port)
	}
	if o.KeepAlive != 0 && (o.Mode != mesh.WireGuard || o.KeepAlive != o.KeepAlive.Truncate(time.Second) ||
		o.KeepAlive < time.Second || o.KeepAlive > 65535*time.Second) {
		return fmt.Errorf("--tunnel-keepalive %s: it is of --tunnel=wireguard, and of whole seconds, 1s to 65535s",
			o.KeepAlive)
	}
	if o.Mode == mesh.WireGuard && (c.CNI.on() || c.RuntimeEndpoint != "") {
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

// networkIdentity identifies the cluster to other machines.
func (s *site) networkIdentity() string {
	if kept, err := os.ReadFile(s.dir.Sub(credentials.NetworkFile)); err == nil && s.dir != "" {
		return strings.TrimSpace(string(kept))
	}
	return credentials.NetworkIdentityOf(s.signers.RootCA.PEM())
}

// tunnelAnnotations are the annotations of the node about its end of the tunnel. An empty value removes one.
func (s *site) tunnelAnnotations() (map[string]string, error) {
	out := map[string]string{podroutes.AnnotationVTEP: "", wireguard.AnnotationKey: "", wireguard.AnnotationPort: ""}
	mode := s.cfg.PodRoutes.Mode
	switch {
	case s.cfg.RuntimeEndpoint != "" || s.cfg.CNI.on() || mode == mesh.None:
	case mode == mesh.WireGuard:
		key, err := wireGuardKey(s.dir)
		if err != nil {
			return nil, err
		}
		out[wireguard.AnnotationKey] = key.PublicKey().String()
		out[wireguard.AnnotationPort] = strconv.Itoa(cmp.Or(s.cfg.PodRoutes.Port, mode.DefaultPort()))
	default:
		out[podroutes.AnnotationVTEP] = mesh.VTEP(s.networkIdentity(), s.cfg.NodeName).String()
	}
	return out, nil
}

// wireGuardKey returns the node's private key. It is created once and never leaves the directory.
func wireGuardKey(dir datadir.Dir) (mesh.Key, error) {
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

// clusterRanges are the pod CIDRs of the cluster as far as this node knows them.
func (s *site) clusterRanges() []netip.Prefix {
	if known := s.cfg.Controllers.PodRanges.Cluster; len(known) > 0 {
		return known
	}
	if s.server != nil || slices.ContainsFunc(s.cfg.PodCIDRs, defaultClusterCIDR.Overlaps) {
		return []netip.Prefix{defaultClusterCIDR}
	}
	return nil
}

func (s *site) podRoutes() (run.Func, error) {
	rt, err := s.openRuntime()
	if err != nil || rt.pods == nil {
		return nil, err // the network is not Keelson's
	}
	if s.cfg.CNI.on() { // plugins are responsible; remove the routes of an earlier run
		return nil, purgePodRoutes(context.Background(), s.dir)
	}
	var key mesh.Key
	if s.cfg.PodRoutes.Mode == mesh.WireGuard {
		if key, err = wireGuardKey(s.dir); err != nil {
			return nil, err
		}
	}
	return podroutes.New(podroutes.Config{
		Client:     s.client(roleNamed(podRoutesRole).roleIdentity),
		NodeName:   s.cfg.NodeName,
		ID:         s.dir.ID(),
		Network:    s.networkIdentity(),
		PodCIDRs:   s.cfg.PodCIDRs,
		Mode:       s.cfg.PodRoutes.Mode,
		Port:       s.cfg.PodRoutes.Port,
		Cluster:    s.clusterRanges(),
		Encryption: mesh.Encryption{Private: key, KeepAlive: s.cfg.PodRoutes.KeepAlive},
		Pods:       rt.pods,
		Log:        s.logOf(eventlog.Network),
	}).Run, nil
}

func purgePodRoutes(ctx context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return podroutes.Purge(ctx, dir.ID())
}
