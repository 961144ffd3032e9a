// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// nodeIDs is the annotation with the node's id for each driver, as JSON.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// Run creates the node's CSINode, writes the drivers again after the Node object was deleted, asks drivers again how
// many volumes the node takes, and unstages unused volumes, until ctx is done. The node must be registered.
func (m *Mounter) Run(ctx context.Context) {
	var counting sync.WaitGroup
	defer counting.Wait()
	counting.Go(func() { m.counts.run(ctx) })
	m.kick.Notify()
	wait := time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.kick.C():
		}
		err := m.published.write(ctx)
		m.unstageUnused(ctx)
		if err == nil {
			wait = time.Second
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			m.cfg.Log.Info("the node's CSI drivers are not published", "err", err)
		} else {
			m.cfg.Log.Warn("publish the node's CSI drivers", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, 2*time.Minute)
		m.kick.Notify()
	}
}

// publisher writes the drivers into the node's objects.
type publisher struct {
	objects nodeObjects
	drivers *drivers
	turn    chan struct{}             // has an element while the objects are written
	shown   atomic.Pointer[types.UID] // of the Node object that lists the drivers; nil: none does
}

func newPublisher(api kubernetes.Interface, node string, drivers *drivers) *publisher {
	return &publisher{
		objects: nodeObjects{api: api, name: node},
		drivers: drivers,
		turn:    make(chan struct{}, 1),
	}
}

// isIn reports whether the drivers are written into this Node object, which may be another one than before.
func (p *publisher) isIn(n *corev1.Node) bool {
	shown := p.shown.Load()
	return shown != nil && *shown == n.UID
}

// write writes all registered drivers into the node's objects. Drivers listed there that are not registered stay: they
// may register soon.
func (p *publisher) write(ctx context.Context) error { return p.writeWithout(ctx, "") }

// withdraw removes a driver from the node's objects. Its topology labels stay: other drivers may use them, and volumes'
// node affinity.
func (p *publisher) withdraw(ctx context.Context, name string) error {
	return p.writeWithout(ctx, name)
}

// writeWithout writes the node's objects, without the driver called gone unless it is registered again.
func (p *publisher) writeWithout(ctx context.Context, gone string) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	all := p.drivers.all()
	if all[gone] != nil {
		gone = ""
	}
	objects := p.objects
	node, err := objects.api.CoreV1().Nodes().Get(ctx, objects.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the node: %w", err)
	}
	if err := objects.writeNode(ctx, node, all, gone); err != nil {
		return fmt.Errorf("write the drivers' data into the Node object: %w", err)
	}
	p.shown.Store(&node.UID)
	for range 5 {
		err = objects.writeCSINode(ctx, node, all, gone)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write the CSINode: %w", err)
	}
	return nil
}

// nodeObjects are the Node and the CSINode of this node.
type nodeObjects struct {
	api  kubernetes.Interface
	name string
}

// writeNode writes topology labels and node ids.
func (o nodeObjects) writeNode(ctx context.Context, n *corev1.Node, all map[string]*driver, gone string) error {
	labels, ids, err := describe(n, all, gone)
	if err != nil {
		return err
	}
	meta := map[string]any{}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	if ids != n.Annotations[nodeIDs] {
		meta["annotations"] = map[string]any{nodeIDs: ids}
		if ids == "" {
			meta["annotations"] = map[string]any{nodeIDs: nil}
		}
	}
	if len(meta) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	_, err = o.api.CoreV1().Nodes().Patch(ctx, o.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// describe returns the topology labels that the node lacks, and all node ids.
func describe(n *corev1.Node, all map[string]*driver, gone string) (labels map[string]string, ids string, err error) {
	labels = map[string]string{}
	known := map[string]string{}
	if old := n.Annotations[nodeIDs]; old != "" && json.Unmarshal([]byte(old), &known) != nil {
		known = map[string]string{} // only the kubelet writes it
	}
	delete(known, gone)
	for name, d := range all {
		known[name] = d.id
		for k, v := range d.segments {
			have, there := n.Labels[k]
			switch {
			case !there:
				labels[k] = v
			case have != v:
				return nil, "", fmt.Errorf("detected topology value collision: driver reported %q:%q but existing "+
					"label is %q:%q", k, v, k, have)
			}
		}
	}
	if len(known) == 0 {
		return labels, "", nil
	}
	b, err := json.Marshal(known)
	return labels, string(b), err
}

// writeCSINode creates or updates the node's CSINode.
func (o nodeObjects) writeCSINode(ctx context.Context, node *corev1.Node, all map[string]*driver, gone string) error {
	api := o.api.StorageV1().CSINodes()
	have, err := api.Get(ctx, o.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, o.newCSINode(node, merge(nil, all, gone)), metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(have.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Node"
	}); i >= 0 && have.OwnerReferences[i].UID != node.UID {
		uid := have.UID // owned by a deleted Node object: the garbage collector will delete it
		if err := api.Delete(ctx, have.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil &&
			!apierrors.IsNotFound(err) {
			return err
		}
		return apierrors.NewConflict(storagev1.Resource("csinodes"), have.Name,
			errors.New("it belonged to an earlier node"))
	}

	// One update adds and removes entries.
	next := have.DeepCopy()
	next.Spec.Drivers = merge(have.Spec.Drivers, all, gone)
	if equality.Semantic.DeepEqual(have.Spec, next.Spec) {
		return nil
	}
	_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) {
		return err
	}

	// A driver's entry is immutable: it can only be removed and added again.
	next.Spec.Drivers = slices.DeleteFunc(have.DeepCopy().Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		return all[d.Name] != nil
	})
	if len(next.Spec.Drivers) == len(have.Spec.Drivers) {
		return err
	}
	if _, err := api.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return apierrors.NewConflict(storagev1.Resource("csinodes"), have.Name, errors.New("a driver has changed"))
}

// newCSINode is the CSINode of a node that has none yet.
func (o nodeObjects) newCSINode(node *corev1.Node, drivers []storagev1.CSINodeDriver) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       node.Name,
				UID:        node.UID,
			}},
		},
		Spec: storagev1.CSINodeSpec{Drivers: drivers},
	}
}

// merge puts the drivers into a CSINode's list, in their order there.
func merge(have []storagev1.CSINodeDriver, all map[string]*driver, gone string) []storagev1.CSINodeDriver {
	out := []storagev1.CSINodeDriver{}
	seen := map[string]bool{}
	for i := range have {
		name := have[i].Name
		seen[name] = true
		switch d := all[name]; {
		case d != nil:
			out = append(out, d.entry())
		case name != gone:
			out = append(out, have[i])
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(all), strings.Compare) {
		if !seen[name] {
			out = append(out, all[name].entry())
		}
	}
	return out
}

func (d *driver) entry() storagev1.CSINodeDriver {
	e := storagev1.CSINodeDriver{Name: d.name, NodeID: d.id, TopologyKeys: slices.Sorted(maps.Keys(d.segments))}
	if most := d.max.Load(); most > 0 {
		e.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(most))} // takeMax has looked at it
	}
	return e
}
