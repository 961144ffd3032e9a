// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"keelson/api/networking/wireguard"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/network/mesh"
	"keelson/podroutes"
)

// podRoutesRole maintains the routes to pods of other machines.
const podRoutesRole = "pod routes"

// networkIdentity identifies the cluster to other machines.
func (s *site) networkIdentity() string {
	if kept, err := os.ReadFile(s.dir.Sub(credentials.NetworkFile)); err == nil && s.dir != "" {
		return strings.TrimSpace(string(kept))
	}
	return credentials.NetworkIdentityOf(s.signers.RootCA.PEM())
}

// tunnelAnnotations are the annotations of the node about its end of the tunnel. An empty value removes one.
func (s *site) tunnelAnnotations() (map[string]string, error) {
	out := map[string]string{
		podroutes.AnnotationVTEP:  "",
		wireguard.AnnotationKey:   "",
		wireguard.AnnotationPort:  "",
		wireguard.AnnotationStart: "",
	}
	mode := s.cfg.PodRoutes.Mode
	switch {
	case s.cfg.RuntimeEndpoint != "" || s.cfg.CNI.Enabled() || mode == mesh.None:
	case mode == mesh.WireGuard:
		key, err := nodehost.WireGuardKey(s.dir)
		if err != nil {
			return nil, err
		}
		out[wireguard.AnnotationKey] = key.PublicKey().String()
		out[wireguard.AnnotationStart] = rand.Text()
		out[wireguard.AnnotationPort] = strconv.Itoa(cmp.Or(s.cfg.PodRoutes.Port, mode.DefaultPort()))
	default:
		out[podroutes.AnnotationVTEP] = mesh.VTEP(s.networkIdentity(), s.cfg.NodeName).String()
	}
	return out, nil
}

// clusterRanges are the pod CIDRs of the cluster as far as this node knows them.
func (s *site) clusterRanges() []netip.Prefix {
	if known := s.cfg.Controllers.PodRanges.Cluster; len(known) > 0 {
		return known
	}
	if s.server != nil || slices.ContainsFunc(s.cfg.PodCIDRs, nodehost.DefaultClusterCIDR.Overlaps) {
		return []netip.Prefix{nodehost.DefaultClusterCIDR}
	}
	return nil
}

func (s *site) podRoutes() (run.Func, error) {
	rt, err := s.openRuntime()
	if err != nil || rt.Pods == nil {
		return nil, err // the network is not Keelson's
	}
	if s.cfg.CNI.Enabled() { // plugins are responsible; remove the routes of an earlier run
		return nil, purgePodRoutes(context.Background(), s.dir)
	}
	var key mesh.Key
	if s.cfg.PodRoutes.Mode == mesh.WireGuard {
		if key, err = nodehost.WireGuardKey(s.dir); err != nil {
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
		Pods:       rt.Pods,
		Log:        s.logOf(eventlog.Network),
	}).Run, nil
}

func purgePodRoutes(ctx context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return podroutes.Purge(ctx, dir.ID())
}
