// SPDX-License-Identifier: Apache-2.0

package membership

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
	"keelson/kubelet/node"
	"keelson/store"
)

// A kubelet renews its lease every 10 s; one that does not for renewalWait has stopped, as far as a start can see.
const (
	renewalWait = 15 * time.Second
	renewalLook = 500 * time.Millisecond
	lookLimit   = 3 * time.Second // for an answer of the API server
)

// NodeHolder is what a cluster knows of a node's name.
type NodeHolder struct {
	Node  *corev1.Node
	Lease *coordinationv1.Lease
}

// NodeClaim is a node name that a start wants to use.
type NodeClaim struct {
	Name    string
	Machine node.Machine
	// Had reports that the data directory has had the node before.
	Had bool
	// Look reads the holder; nil objects are not there.
	Look func(context.Context) (NodeHolder, error)
	Log  *slog.Logger
}

// Free returns an error if the node runs on another machine, or here from another data directory: two kubelets of one
// name end each other's pods. Where the holder may be another, its lease decides: only a kubelet that runs renews it.
// Clocks are not compared.
func (q NodeClaim) Free(ctx context.Context) error {
	first, err := q.Look(ctx)
	if err != nil || first.Node == nil || first.Lease == nil || q.Had && q.sameMachine(first.Node.Status.NodeInfo) {
		return err
	}
	q.Log.Warn("another machine or data directory has had this node: this start waits to see whether its lease is "+
		"renewed", "node", q.Name, "machine", first.Node.Status.NodeInfo.MachineID, "system",
		first.Node.Status.NodeInfo.SystemUUID, "wait", renewalWait)
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
		now, err := q.Look(ctx)
		if err != nil {
			return err
		}
		if now.Lease != nil && !now.Lease.Spec.RenewTime.Equal(first.Lease.Spec.RenewTime) {
			return fmt.Errorf("the node %s runs elsewhere (machine %s) and renews its lease: choose another "+
				"--node-name, or stop the other", q.Name,
				cmp.Or(first.Node.Status.NodeInfo.SystemUUID, first.Node.Status.NodeInfo.MachineID, "unknown"))
		}
	}
}

// sameMachine reports whether nothing says that the machine is another.
func (q NodeClaim) sameMachine(of corev1.NodeSystemInfo) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(of.MachineID, q.Machine.MachineID) && same(of.SystemUUID, q.Machine.SystemID)
}

// StoredHolder reads the holder of a name from the store.
func StoredHolder(ctx context.Context, st store.Store, name string) (NodeHolder, error) {
	n, err := storedObject[corev1.Node](ctx, st, "minions/"+name, corev1.SchemeGroupVersion.WithKind("Node"))
	if err != nil {
		return NodeHolder{}, err
	}
	lease, err := storedObject[coordinationv1.Lease](ctx, st, "leases/"+corev1.NamespaceNodeLease+"/"+name,
		coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	return NodeHolder{n, lease}, err
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

// RemoteHolder reads the holder of a name from the API server; none if that does not answer, since a node starts
// without one.
func RemoteHolder(ctx context.Context, cl *client.Client, name string) (NodeHolder, error) {
	brief, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	n, err := cl.CoreV1().Nodes().Get(brief, name, metav1.GetOptions{})
	if err != nil {
		return NodeHolder{}, ctx.Err()
	}
	lease, err := cl.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(brief, name, metav1.GetOptions{})
	if err != nil {
		return NodeHolder{}, ctx.Err()
	}
	return NodeHolder{n, lease}, nil
}
