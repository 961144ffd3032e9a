// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"strconv"

	"keelson/api/networking/wireguard"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/network/mesh"
	"keelson/podroutes"
)

// tunnelAnnotations are the annotations of the node about its end of the tunnel. An empty value removes one.
func (n *Node) tunnelAnnotations() (map[string]string, error) {
	out := map[string]string{
		podroutes.AnnotationVTEP:  "",
		wireguard.AnnotationKey:   "",
		wireguard.AnnotationPort:  "",
		wireguard.AnnotationStart: "",
	}
	mode := n.PodRoutes.Mode
	switch {
	case n.Endpoint != "" || n.CNI.Enabled() || mode == mesh.None:
	case mode == mesh.WireGuard:
		key, err := nodehost.WireGuardKey(n.Dir)
		if err != nil {
			return nil, err
		}
		out[wireguard.AnnotationKey] = key.PublicKey().String()
		out[wireguard.AnnotationStart] = rand.Text()
		out[wireguard.AnnotationPort] = strconv.Itoa(cmp.Or(n.PodRoutes.Port, mode.DefaultPort()))
	default:
		out[podroutes.AnnotationVTEP] = mesh.VTEP(n.NetworkIdentity(), n.NodeName).String()
	}
	return out, nil
}

// Routes returns the part that maintains the routes to pods of other machines; nil: the network is not Keelson's.
func (n *Node) Routes() (run.Func, error) {
	if n.runtime.Pods == nil {
		return nil, nil
	}
	if n.CNI.Enabled() { // plugins are responsible; remove the routes of an earlier run
		return nil, PurgeRoutes(context.Background(), n.Dir)
	}
	var key mesh.Key
	var err error
	if n.PodRoutes.Mode == mesh.WireGuard {
		if key, err = nodehost.WireGuardKey(n.Dir); err != nil {
			return nil, err
		}
	}
	return podroutes.New(podroutes.Config{
		Client:     n.Client(RoutesName),
		NodeName:   n.NodeName,
		ID:         n.Dir.ID(),
		Network:    n.NetworkIdentity(),
		PodCIDRs:   n.PodCIDRs,
		Mode:       n.PodRoutes.Mode,
		Port:       n.PodRoutes.Port,
		Cluster:    n.ClusterCIDRs,
		Encryption: mesh.Encryption{Private: key, KeepAlive: n.PodRoutes.KeepAlive},
		Pods:       n.runtime.Pods,
		Log:        n.logOf(eventlog.Network),
	}).Run, nil
}

// PurgeRoutes removes the routes and the tunnel.
func PurgeRoutes(ctx context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return podroutes.Purge(ctx, dir.ID())
}
