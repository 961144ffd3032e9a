// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/event"
)

func (c *Controller) sync(ctx context.Context, name string) error {
	begin := time.Now()
	nodeView, err := c.buildView(name)
	if err != nil {
		return err
	}
	p := decide(nodeView)
	c.storeResult(nodeView, p)
	// First update volumesAttached: the node does not mount a volume that is not listed.
	if err := c.writeVolumesAttached(ctx, nodeView, p.report); err != nil {
		return err
	}
	did := &event.Reconcile{EventSeen: c.loop.QueuedAt(name), Wants: len(nodeView.wants), Has: len(nodeView.have)}
	err = errors.Join(c.detach(ctx, nodeView, p.detach, did), c.attach(ctx, name, p.attach, did))
	if p.requeueAfter > 0 {
		c.loop.AddAfter(name, p.requeueAfter)
	}
	if len(did.Creates)+len(did.Deletes) > 0 && nodeView.node != nil {
		c.env.Reconciled(event.Subject{Resource: "nodes", Name: name, UID: string(nodeView.node.UID)}, begin, did, err)
	}
	return err
}

// storeResult stores what the next pass needs, and records an event once for each pod whose volume is attached to
// another node.
func (c *Controller) storeResult(v nodeView, steps plan) {
	c.mu.Lock()
	for _, a := range v.have {
		_, known := c.unneededSince[a.object.Name]
		switch idle := slices.Contains(steps.unneeded, a.object.Name); {
		case !idle:
			delete(c.unneededSince, a.object.Name)
		case !known:
			c.unneededSince[a.object.Name] = v.now
		}
	}
	reported := map[multiAttach]bool{}
	var unreported []wantedVolume
	for _, w := range steps.refused {
		fresh := wantedVolume{volume: w.volume}
		for _, pod := range w.pods {
			r := multiAttach{pod.UID, w.volume.pv}
			reported[r] = true
			if !c.reported[v.name][r] {
				fresh.pods = append(fresh.pods, pod)
			}
		}
		if len(fresh.pods) > 0 {
			unreported = append(unreported, fresh)
		}
	}
	if len(reported) > 0 {
		c.reported[v.name] = reported
	} else {
		delete(c.reported, v.name)
	}
	if k := countVolumes(v); len(k) > 0 {
		c.counts[v.name] = k
	} else {
		delete(c.counts, v.name)
	}
	c.mu.Unlock()
	for _, w := range unreported {
		c.recordMultiAttach(w, v.attachedElsewhere[w.volume.pv])
	}
}

// recordMultiAttach records which node has the volume.
func (c *Controller) recordMultiAttach(w wantedVolume, nodes []string) {
	var users []*corev1.Pod
	for _, n := range nodes {
		users = append(users, c.users(n, w.volume.pv)...)
	}
	for _, p := range w.pods {
		c.env.Events.Eventf(p, corev1.EventTypeWarning, "FailedAttachVolume", "Multi-Attach error for volume %q %s",
			w.volume.pv, userNames(p.Namespace, users))
	}
}

// userNames names the pods that use a volume, without names from other namespaces.
func userNames(namespace string, users []*corev1.Pod) string {
	var near []string
	far := 0
	for _, p := range users {
		if p.Namespace == namespace {
			near = append(near, p.Name)
		} else {
			far++
		}
	}
	switch slices.Sort(near); {
	case len(users) == 0:
		return "Volume is already exclusively attached to one node and can't be attached to another"
	case far == 0:
		return "Volume is already used by pod(s) " + strings.Join(near, ", ")
	case len(near) == 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", far)
	}
	return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces",
		strings.Join(near, ", "), far)
}

// writeVolumesAttached writes the node's volumesAttached.
func (c *Controller) writeVolumesAttached(ctx context.Context, v nodeView, want []corev1.AttachedVolume) error {
	if v.node == nil || !isManaged(v.node) || slices.Equal(v.node.Status.VolumesAttached, want) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": want}})
	if err != nil {
		return fmt.Errorf("encode volumes of node %s: %w", v.name, err)
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, v.name, types.MergePatchType, patch, metav1.PatchOptions{},
		"status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("report volumes of node %s: %w", v.name, err)
	}
	return nil
}

func (c *Controller) detach(ctx context.Context, v nodeView, all []detach, did *event.Reconcile) error {
	if len(all) == 0 {
		return nil
	}
	node, err := c.env.Client.CoreV1().Nodes().Get(ctx, v.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node = nil
		err = nil
	}
	if err != nil {
		return fmt.Errorf("ask what node %s uses: %w", v.name, err)
	}
	var errs []error
	for _, d := range all {
		// The cache may be older than the node. The node's current status decides; its update triggers the next pass.
		if d.forceReason == "" && node != nil && (d.volume.usedOn(node.Status.VolumesInUse) ||
			attached(node, d.volume)) {
			continue
		}
		uid := d.object.UID
		err := c.env.Client.StorageV1().VolumeAttachments().Delete(ctx, d.object.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid},
		})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("detach volume %s from node %s: %w", d.volume.pv, v.name, err))
			continue
		}
		c.deletionWritten(d.object)
		if d.forceReason != "" {
			c.metrics.forced.WithLabelValues(d.forceReason).Inc()
			c.env.Log.Warn("volume detached by force", "volume", d.volume.pv, "node", v.name, "why", d.forceReason)
		}
		did.Deletes = append(did.Deletes, d.object.Name)
	}
	return errors.Join(errs...)
}

// deletionWritten remembers a deletion until the cache shows it.
func (c *Controller) deletionWritten(a *storagev1.VolumeAttachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok, err := c.attachments.GetByKey(a.Name); ok && err == nil {
		c.deleting[a.Name] = a.UID
	}
}

func attached(n *corev1.Node, d csiVolume) bool {
	return d.handle != "" && slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
		return a.Name == d.unique()
	})
}

func (c *Controller) attach(ctx context.Context, node string, all []wantedVolume, did *event.Reconcile) error {
	var errs []error
	for _, w := range all {
		if !c.reserve(w.volume, node) {
			c.loop.Add(node) // another node was faster: the next pass records that
			continue
		}
		attachment := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: w.volume.attachment(node)},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: w.volume.driver,
				NodeName: node,
				Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &w.volume.pv},
			},
		}
		_, err := c.env.Client.StorageV1().VolumeAttachments().Create(ctx, attachment, metav1.CreateOptions{})
		if err != nil {
			c.unreserve(w.volume, node, attachment.Name, apierrors.IsAlreadyExists(err))
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			for _, p := range w.pods {
				c.env.Events.Eventf(p, corev1.EventTypeWarning, "FailedAttachVolume",
					"AttachVolume.Attach failed for volume %q : %v", w.volume.pv, err)
			}
			errs = append(errs, fmt.Errorf("attach volume %s to node %s: %w", w.volume.pv, node, err))
			continue
		}
		did.Creates = append(did.Creates, attachment.Name)
	}
	return errors.Join(errs...)
}

// reserve reserves an exclusive volume for a node, so that two concurrent passes cannot attach it twice.
func (c *Controller) reserve(d csiVolume, node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if nodes, _ := c.attachedElsewhereLocked(d.pv, node, now); d.exclusive && len(nodes) > 0 {
		return false
	}
	c.creating[reservation{d.pv, node}] = now
	return true
}

// unreserve releases the reservation, unless there is an attachment that the cache does not show yet. It wakes waiting
// nodes.
func (c *Controller) unreserve(d csiVolume, node, name string, exists bool) {
	if _, known, err := c.attachments.GetByKey(name); exists && !known && err == nil {
		return
	}
	c.mu.Lock()
	delete(c.creating, reservation{d.pv, node})
	c.mu.Unlock()
	if v, err := c.volumes.Get(d.pv); err == nil && !exists {
		c.volumeChanged(v)
	}
}

// recordResult records the result of an attachment as events of the pods.
func (c *Controller) recordResult(old, attachment *storagev1.VolumeAttachment) {
	csiVolume, ok := c.managedVolume(attachment)
	if !ok {
		return
	}
	failure := func(a *storagev1.VolumeAttachment) storagev1.VolumeError {
		if e := a.Status.AttachError; e != nil {
			return *e
		}
		return storagev1.VolumeError{}
	}
	was := failure(old)
	is := failure(attachment)
	switch {
	case attachment.Status.Attached && !old.Status.Attached:
		for _, p := range c.users(attachment.Spec.NodeName, csiVolume.pv) {
			c.env.Events.Eventf(p, corev1.EventTypeNormal, "SuccessfulAttachVolume",
				"AttachVolume.Attach succeeded for volume %q", csiVolume.pv)
		}
	case !attachment.Status.Attached && is.Message != "" && (is.Message != was.Message || !is.Time.Equal(&was.Time)):
		for _, p := range c.users(attachment.Spec.NodeName, csiVolume.pv) {
			c.env.Events.Eventf(p, corev1.EventTypeWarning, "FailedAttachVolume",
				"AttachVolume.Attach failed for volume %q : %s", csiVolume.pv, is.Message)
		}
	}
}
