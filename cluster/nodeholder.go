// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/client"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/kubelet/node"
	"keelson/store"
)

// A kubelet renews its lease every 10 s; one that does not for renewalWait has stopped, as far as a start can see.
const (
	renewalWait = 15 * time.Second
	renewalLook = 500 * time.Millisecond
)

// nodeHolder is what a cluster knows of a node's name.
type nodeHolder struct {
	node  *corev1.Node
	lease *coordinationv1.Lease
}

// nodeClaim is a node name that a start wants to use.
type nodeClaim struct {
	name    string
	machine node.Machine
	// had reports that the data directory has had the node before.
	had bool
	// look reads the holder; nil objects are not there.
	look func(context.Context) (nodeHolder, error)
	log  *slog.Logger
}

// free returns an error if the node runs on another machine, or here from another data directory: two kubelets of one
// name end each other's pods. Where the holder may be another, its lease decides: only a kubelet that runs renews it.
// Clocks are not compared.
func (q nodeClaim) free(ctx context.Context) error {
	first, err := q.look(ctx)
	if err != nil || first.node == nil || first.lease == nil || q.had && q.sameMachine(first.node.Status.NodeInfo) {
		return err
	}
	q.log.Warn("another machine or data directory has had this node: this start waits to see whether its lease is "+
		"renewed", "node", q.name, "machine", first.node.Status.NodeInfo.MachineID, "system",
		first.node.Status.NodeInfo.SystemUUID, "wait", renewalWait)
	tick := time.NewTicker(renewalLook)
	defer tick.Stop()
	limit := time.NewTimer(renewalWait)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return nil
		case <-tick.C:
		}
		now, err := q.look(ctx)
		if err != nil {
			return err
		}
		if now.lease != nil && !now.lease.Spec.RenewTime.Equal(first.lease.Spec.RenewTime) {
			return fmt.Errorf("the node %s runs elsewhere (machine %s) and renews its lease: choose another "+
				"--node-name, or stop the other", q.name,
				cmp.Or(first.node.Status.NodeInfo.SystemUUID, first.node.Status.NodeInfo.MachineID, "unknown"))
		}
	}
}

// sameMachine reports whether nothing says that the machine is another.
func (q nodeClaim) sameMachine(of corev1.NodeSystemInfo) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(of.MachineID, q.machine.MachineID) && same(of.SystemUUID, q.machine.SystemID)
}

// claimNode is nodeClaim.free for a server's node. A server with the embedded store has it for itself while it starts:
// no kubelet can renew a lease.
func (c *Cluster) claimNode(ctx context.Context, st store.Store) error {
	if !c.cfg.realNode() || len(c.cfg.Etcd.Servers) == 0 {
		return nil
	}
	machine, err := node.Inspect(string(c.dir))
	if err != nil {
		return err
	}
	return nodeClaim{
		name:    c.cfg.NodeName,
		machine: machine,
		had:     c.hadNode,
		look:    func(ctx context.Context) (nodeHolder, error) { return storedHolder(ctx, st, c.cfg.NodeName) },
		log:     c.log,
	}.free(ctx)
}

// claimNode is nodeClaim.free for a node in a process of its own.
func (r RoleConfig) claimNode(ctx context.Context, cfg Config, dir datadir.Dir, cl *client.Client, had bool) error {
	machine, err := node.Inspect(string(dir))
	if err != nil {
		return err
	}
	return nodeClaim{
		name:    cfg.NodeName,
		machine: machine,
		had:     had,
		look:    func(ctx context.Context) (nodeHolder, error) { return remoteHolder(ctx, cl, cfg.NodeName) },
		log:     r.log(),
	}.free(ctx)
}

// storedHolder reads the holder of a name from the store.
func storedHolder(ctx context.Context, st store.Store, name string) (nodeHolder, error) {
	n, err := storedObject[corev1.Node](ctx, st, "minions/"+name, corev1.SchemeGroupVersion.WithKind("Node"))
	if err != nil {
		return nodeHolder{}, err
	}
	lease, err := storedObject[coordinationv1.Lease](ctx, st, "leases/"+corev1.NamespaceNodeLease+"/"+name,
		coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	return nodeHolder{n, lease}, err
}

// storedObject reads the object at a key below objects.Root; nil: there is none, or none that can be read.
func storedObject[T any, P interface {
	*T
	kind.Object
}](ctx context.Context, st store.Store, key string, gvk schema.GroupVersionKind) (*T, error) {
	kv, _, err := st.Get(ctx, objects.Root+key, 0)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	obj, err := objects.Protobuf(gvk, func() kind.Object { return P(new(T)) }, nil).Decode(kv.Value)
	if err != nil {
		return nil, nil //nolint:nilerr // the server lists what it cannot read
	}
	out, _ := obj.(P)
	return out, nil
}

// remoteHolder reads the holder of a name from the API server; none if that does not answer, since a node starts
// without one.
func remoteHolder(ctx context.Context, cl *client.Client, name string) (nodeHolder, error) {
	brief, cancel := context.WithTimeout(ctx, nodehost.OwnRangeWait)
	defer cancel()
	n, err := cl.CoreV1().Nodes().Get(brief, name, metav1.GetOptions{})
	if err != nil {
		return nodeHolder{}, ctx.Err()
	}
	lease, err := cl.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(brief, name, metav1.GetOptions{})
	if err != nil {
		return nodeHolder{}, ctx.Err()
	}
	return nodeHolder{n, lease}, nil
}
