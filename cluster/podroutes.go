// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"keelson/lib/deeds"
	"keelson/lib/run"
	"keelson/network/mesh"
	"keelson/podroutes"
)

// podRoutesRole keeps the ways to the pods of other machines.
const podRoutesRole = "pod routes"

// PodRouteOptions say how other machines' pods are reached.
type PodRouteOptions struct {
	// Mode says for whom there is a tunnel; empty: for machines that are no neighbours.
	Mode mesh.Mode
	// Port is the tunnel's; 0: the usual one. It is the same on all machines.
	Port int
}

func (o *PodRouteOptions) flags(fl *pflag.FlagSet) {
	o.Mode = mesh.Auto
	fl.Var((*tunnelMode)(&o.Mode), "tunnel", "reach the pods of other machines by a VXLAN tunnel: `WHEN` is auto (those that are no neighbours), vxlan (all) or none")
	fl.IntVar(&o.Port, "tunnel-port", mesh.DefaultPort, "the UDP port of the tunnel, the same on all machines")
}

type tunnelMode mesh.Mode

// String is the flag's value.
func (m *tunnelMode) String() string { return string(*m) }

// Set reads the flag's value.
func (m *tunnelMode) Set(text string) error {
	if text == "wireguard" {
		return fmt.Errorf("there is no WireGuard yet: the tunnel is VXLAN, which encrypts nothing; give one of %v", mesh.Modes)
	}
	if !slices.Contains(mesh.Modes, mesh.Mode(text)) {
		return fmt.Errorf("%q is none of %v", text, mesh.Modes)
	}
	*m = tunnelMode(text)
	return nil
}

// Type is how the usage text names it.
func (*tunnelMode) Type() string { return "string" }

// networkIdentity is the same on all machines of a cluster, and another for each cluster: it follows from the cluster's authority.
func (s *site) networkIdentity() string {
	sum := sha256.Sum256(s.signers.rootCA)
	return hex.EncodeToString(sum[:16])
}

// tunnelAnnotation is what the node says about its end of the tunnel.
func (s *site) tunnelAnnotation() map[string]string {
	if s.cfg.RuntimeEndpoint != "" || s.cfg.CNI.on() || s.cfg.PodRoutes.Mode == mesh.None {
		return nil
	}
	return map[string]string{podroutes.AnnotationVTEP: mesh.VTEP(s.networkIdentity(), s.cfg.NodeName).String()}
}

func (s *site) podRoutes() (run.Func, error) {
	rt, err := s.openRuntime()
	if err != nil || rt.pods == nil {
		return nil, err // the network is not ours
	}
	if s.cfg.CNI.on() { // the plugins' affair; what an earlier run had goes
		return nil, purgePodRoutes(context.Background(), s.dir)
	}
	return podroutes.New(podroutes.Config{
		Client: s.client(roleNamed(podRoutesRole).roleIdentity), NodeName: s.cfg.NodeName, ID: s.dir.ID(), Network: s.networkIdentity(),
		PodCIDRs: s.cfg.PodCIDRs, Mode: s.cfg.PodRoutes.Mode, Port: s.cfg.PodRoutes.Port, Pods: rt.pods, Log: s.logOf(deeds.Network),
	}).Run, nil
}

func purgePodRoutes(ctx context.Context, dir DataDir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return podroutes.Purge(ctx, dir.ID())
}
