// SPDX-License-Identifier: Apache-2.0

// Package attachdetach attaches CSI volumes to the nodes whose pods need them, and detaches them when no pod does. The
// table of controllers starts it. It creates and deletes VolumeAttachments, which the driver's attacher handles, and
// writes status.volumesAttached of nodes. It never calls a driver.
//
// Invariants:
//  1. An attachment is deleted only after the node's volumesAttached no longer lists the volume and the node, read from
//     the API server, does not list it in volumesInUse; or by force: the node has been not ready for six minutes, or
//     has the out-of-service taint.
//  2. A volume whose access modes allow one node is attached to a second only when no attachment to another exists,
//     whatever its state.
//  3. Attachments with other names, and nodes without the annotation for controller-managed attachment, are never
//     changed.
package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
	"keelson/controllers/internal/claims"
)

// Config configures the detachment.
type Config struct {
	// NoForceDetach keeps volumes attached to nodes that are not ready and use them, until such a node has the
	// out-of-service taint.
	NoForceDetach bool
}

// Controller syncs node by node.
type Controller struct {
	env         *framework.Env
	cfg         Config
	loop        *framework.Loop[string]
	nodes       corelisters.NodeLister
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	drivers     storagelisters.CSIDriverLister
	pods        cache.Indexer
	attachments cache.Indexer
	metrics     *Metrics

	mu sync.Mutex
	// creating are created attachments that the cache does not show yet, by PersistentVolume and node.
	creating map[reservation]time.Time
	// deleting are deleted attachments that the cache still shows.
	deleting map[string]types.UID
	// unneededSince has the times since when attachments are not needed.
	unneededSince map[string]time.Time
	// lastInUse has the last volumesInUse of deleted nodes.
	lastInUse map[string][]corev1.UniqueVolumeName
	// reported are the pods of a node with an event that another node has their volume.
	reported map[string]map[multiAttach]bool
	// counts are the numbers of wanted and attached volumes per node, by driver.
	counts map[string]volumeCounts
}

type reservation struct{ pv, node string }

type multiAttach struct {
	pod types.UID
	pv  string
}

// The indexes of VolumeAttachments.
const (
	byNode   = "keelson.attachment.node"
	byVolume = "keelson.attachment.volume"
)

// New builds the controller.
func New(env *framework.Env, cfg Config, metrics *Metrics) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	storage := storageinformers.New(env.Shared.Scoped())
	pods := core.Pods().Informer()
	attachments := storage.VolumeAttachments().Informer()
	controller := &Controller{
		env:           env,
		cfg:           cfg,
		metrics:       metrics,
		nodes:         core.Nodes().Lister(),
		claims:        core.PersistentVolumeClaims().Lister(),
		volumes:       core.PersistentVolumes().Lister(),
		drivers:       storage.CSIDrivers().Lister(),
		pods:          pods.GetIndexer(),
		attachments:   attachments.GetIndexer(),
		creating:      map[reservation]time.Time{},
		deleting:      map[string]types.UID{},
		unneededSince: map[string]time.Time{},
		lastInUse:     map[string][]corev1.UniqueVolumeName{},
		reported:      map[string]map[multiAttach]bool{},
		counts:        map[string]volumeCounts{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(pods, framework.ByNode, framework.IndexByNode),
		framework.EnsureIndex(pods, claims.ByClaim, claims.IndexByClaim),
		framework.EnsureIndex(attachments, byNode, indexBy(func(a *storagev1.VolumeAttachment) string {
			return a.Spec.NodeName
		})),
		framework.EnsureIndex(attachments, byVolume, indexBy(volumeOf)),
		framework.On(controller.loop, pods, framework.Each(controller.podChanged)),
		framework.On(controller.loop,
			core.PersistentVolumeClaims().Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
				Add:    controller.claimChanged,
				Update: func(_, o *corev1.PersistentVolumeClaim) { controller.claimChanged(o) },
			}),
		framework.On(controller.loop, core.PersistentVolumes().Informer(), framework.Each(controller.volumeChanged)),
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{
			Add:    controller.nodeAdded,
			Update: controller.nodeChanged,
			Delete: controller.nodeDeleted,
		}),
		framework.On(controller.loop, attachments, framework.Handlers[*storagev1.VolumeAttachment]{
			Add:    controller.attachmentChanged,
			Update: controller.attachmentUpdated,
			Delete: controller.attachmentDeleted,
		}),
		framework.On(controller.loop, storage.CSIDrivers().Informer(), framework.Handlers[*storagev1.CSIDriver]{
			Add:    controller.driverChanged,
			Delete: controller.driverChanged,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("attach and detach: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	defer c.metrics.during(c)()
	return c.loop.Run(ctx, ready)
}

func indexBy(f func(*storagev1.VolumeAttachment) string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			return []string{f(a)}, nil
		}
		return nil, nil
	}
}

// volumeOf is the PersistentVolume of an attachment, or empty.
func volumeOf(a *storagev1.VolumeAttachment) string {
	if n := a.Spec.Source.PersistentVolumeName; n != nil {
		return *n
	}
	return ""
}

func (c *Controller) podChanged(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	names := podkind.Claims(pod)
	if len(names) == 0 {
		return
	}
	if len(c.attachmentsByIndex(byNode, pod.Spec.NodeName)) > 0 || slices.ContainsFunc(names, func(name string) bool {
		_, ok := c.diskOf(pod.Namespace, name)
		return ok
	}) {
		c.loop.Add(pod.Spec.NodeName)
	}
}

// claimChanged requeues the nodes of the pods that use the claim.
func (c *Controller) claimChanged(o *corev1.PersistentVolumeClaim) {
	if _, ok := c.diskOf(o.Namespace, o.Name); ok {
		c.requeueUsers(o.Namespace, o.Name)
	}
}

func (c *Controller) volumeChanged(v *corev1.PersistentVolume) {
	if v.Spec.CSI != nil && v.Spec.ClaimRef != nil {
		c.requeueUsers(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	for _, a := range c.attachmentsByIndex(byVolume, v.Name) {
		c.loop.Add(a.Spec.NodeName)
	}
}

func (c *Controller) requeueUsers(namespace, claim string) {
	users, err := claims.Pods(c.pods, namespace, claim)
	if err != nil {
		return // an indexed cache returns no error
	}
	for _, p := range users {
		if p.Spec.NodeName != "" {
			c.loop.Add(p.Spec.NodeName)
		}
	}
}

func (c *Controller) nodeAdded(n *corev1.Node) {
	c.mu.Lock()
	delete(c.lastInUse, n.Name)
	c.mu.Unlock()
	c.loop.Add(n.Name)
}

func (c *Controller) nodeChanged(old, n *corev1.Node) {
	if isManaged(old) != isManaged(n) || isReady(old) != isReady(n) || outOfService(old) != outOfService(n) ||
		!slices.Equal(old.Status.VolumesInUse, n.Status.VolumesInUse) || !slices.Equal(old.Status.VolumesAttached,
		n.Status.VolumesAttached) {
		c.loop.Add(n.Name)
	}
}

func (c *Controller) nodeDeleted(n *corev1.Node) {
	if len(c.attachmentsByIndex(byNode, n.Name)) > 0 {
		c.mu.Lock()
		c.lastInUse[n.Name] = n.Status.VolumesInUse
		c.mu.Unlock()
	}
	c.loop.Add(n.Name)
}

func (c *Controller) driverChanged(d *storagev1.CSIDriver) {
	for _, v := range c.attachableVolumes() {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == d.Name {
			c.volumeChanged(v)
		}
	}
}

func (c *Controller) attachmentChanged(a *storagev1.VolumeAttachment) {
	c.mu.Lock()
	delete(c.creating, reservation{volumeOf(a), a.Spec.NodeName})
	c.mu.Unlock()
	c.loop.Add(a.Spec.NodeName)
}

func (c *Controller) attachmentUpdated(old, a *storagev1.VolumeAttachment) {
	if a.DeletionTimestamp != nil {
		c.mu.Lock()
		delete(c.deleting, a.Name)
		c.mu.Unlock()
	}
	c.recordResult(old, a)
	c.attachmentChanged(a)
}

// attachmentDeleted wakes the nodes that wait for the volume.
func (c *Controller) attachmentDeleted(a *storagev1.VolumeAttachment) {
	c.mu.Lock()
	delete(c.deleting, a.Name)
	delete(c.unneededSince, a.Name)
	if len(c.attachmentsByIndex(byNode, a.Spec.NodeName)) == 0 {
		delete(c.lastInUse, a.Spec.NodeName)
	}
	c.mu.Unlock()
	c.attachmentChanged(a)
	if v, err := c.volumes.Get(volumeOf(a)); err == nil {
		c.volumeChanged(v)
	}
}
