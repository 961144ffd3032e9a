// SPDX-License-Identifier: Apache-2.0

// Package localvolume provisions local volumes: directories on nodes that kubelets manage (docs/decisions/0076). The
// table of controllers starts it. It creates the StorageClass "standard" when a node supports local volumes, creates a
// PersistentVolume for each claim of such a class with a selected node, expands volumes, and deletes those of deleted
// claims. It never touches the directories.
package localvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/api/core/localvolume"
	"keelson/api/storage"
	"keelson/controllers/framework"
	"keelson/event"
)

// ClassName is the name of the created StorageClass.
const ClassName = "standard"

type keyKind int

const (
	claimKey keyKind = iota
	volumeKey
	classKey
)

// key is the key of a pass; that of the class has no name.
type key struct {
	kind            keyKind
	namespace, name string
}

// Controller provisions local volumes.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[key]
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister

	mu sync.Mutex
	// classCreated: the class was created or existed in this process, so that a later deletion is respected.
	classCreated bool
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	claims := core.PersistentVolumeClaims()
	volumes := core.PersistentVolumes()
	nodes := core.Nodes()
	classes := storageinformers.New(env.Shared.Scoped()).StorageClasses()
	controller := &Controller{
		env:     env,
		claims:  claims.Lister(),
		volumes: volumes.Lister(),
		nodes:   nodes.Lister(),
		classes: classes.Lister(),
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, claims.Informer(), framework.Each(controller.claimChanged)),
		framework.On(controller.loop, volumes.Informer(), framework.Handlers[*corev1.PersistentVolume]{
			Add:    controller.volumeChanged,
			Update: func(_, v *corev1.PersistentVolume) { controller.volumeChanged(v) },
		}),
		framework.On(controller.loop, classes.Informer(), framework.Handlers[*storagev1.StorageClass]{
			Add: func(sc *storagev1.StorageClass) {
				controller.requeueUnbound(func(o *corev1.PersistentVolumeClaim) bool {
					return volume.GetPersistentVolumeClaimClass(o) == sc.Name
				})
			},
		}),
		framework.On(controller.loop, nodes.Informer(), framework.Handlers[*corev1.Node]{
			Add: controller.nodeAdded,
			Update: func(old, n *corev1.Node) {
				if old.Labels[localvolume.NodeHas] != n.Labels[localvolume.NodeHas] {
					controller.nodeAdded(n)
				}
			},
			Delete: controller.nodeDeleted,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("local volumes: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) claimChanged(o *corev1.PersistentVolumeClaim) {
	if needsProvisioning(o) || o.Spec.VolumeName != "" {
		c.loop.Add(key{claimKey, o.Namespace, o.Name})
	}
}

func (c *Controller) volumeChanged(v *corev1.PersistentVolume) {
	if localvolume.Is(v) && (v.Status.Phase == corev1.VolumeReleased || v.DeletionTimestamp != nil) {
		c.loop.Add(key{volumeKey, "", v.Name})
	}
}

// nodeAdded creates the class, and requeues claims that wait for the node.
func (c *Controller) nodeAdded(n *corev1.Node) {
	if n.Labels[localvolume.NodeHas] != "true" {
		return
	}
	c.loop.Add(key{kind: classKey})
	c.requeueUnbound(func(o *corev1.PersistentVolumeClaim) bool {
		return o.Annotations[volume.AnnSelectedNode] == n.Name
	})
}

// requeueUnbound requeues the claims without a volume that may get one now.
func (c *Controller) requeueUnbound(filter func(*corev1.PersistentVolumeClaim) bool) {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, o := range all {
		if needsProvisioning(o) && filter(o) {
			c.loop.Add(key{claimKey, o.Namespace, o.Name})
		}
	}
}

// nodeDeleted requeues the volumes on a deleted node.
func (c *Controller) nodeDeleted(n *corev1.Node) {
	all, err := c.volumes.List(labels.Set{localvolume.NodeLabel: n.Name}.AsSelector())
	if err != nil {
		return
	}
	for _, v := range all {
		c.volumeChanged(v)
	}
}

func (c *Controller) sync(ctx context.Context, k key) error {
	switch k.kind {
	case classKey:
		return c.createClass(ctx)
	case volumeKey:
		v, err := c.volumes.Get(k.name)
		if err != nil || !localvolume.Is(v) {
			return ignoreNotFound(err)
		}
		return c.reclaim(ctx, v)
	}
	o, err := c.claims.PersistentVolumeClaims(k.namespace).Get(k.name)
	if err != nil {
		return ignoreNotFound(err)
	}
	if needsProvisioning(o) {
		return c.provision(ctx, k, o)
	}
	return c.resize(ctx, o)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// createClass creates the class once in the life of this process, and never changes an existing one.
func (c *Controller) createClass(ctx context.Context) error {
	c.mu.Lock()
	made := c.classCreated
	c.mu.Unlock()
	if made {
		return nil
	}
	all, err := c.classes.List(labels.Everything())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(s *storagev1.StorageClass) bool {
		return s.Name == ClassName || s.Provisioner == localvolume.Provisioner
	}) {
		_, err = c.env.Client.StorageV1().StorageClasses().Create(ctx,
			classFor(ClassName, storage.DefaultClass(all) == nil), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make storage class %s: %w", ClassName, err)
		}
	}
	c.mu.Lock()
	c.classCreated = true
	c.mu.Unlock()
	return nil
}

// provision creates a volume for a claim with a selected node. Its name contains the claim's UID, so that there cannot
// be two.
func (c *Controller) provision(ctx context.Context, k key, claim *corev1.PersistentVolumeClaim) error {
	begin := time.Now()
	name := volume.GetPersistentVolumeClaimClass(claim)
	fail := func(format string, args ...any) error {
		c.env.Events.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed",
			"failed to provision volume with StorageClass %q: %s", name, fmt.Sprintf(format, args...))
		return nil
	}
	sc, err := c.classes.Get(name)
	if err != nil || sc.Provisioner != localvolume.Provisioner {
		return ignoreNotFound(err)
	}
	nodeName := claim.Annotations[volume.AnnSelectedNode]
	if nodeName == "" {
		return fail("no node was selected: the class needs volumeBindingMode WaitForFirstConsumer")
	}
	if _, err := c.volumes.Get("pvc-" + string(claim.UID)); err == nil {
		return nil
	}
	node, err := c.nodes.Get(nodeName)
	if apierrors.IsNotFound(err) {
		return c.removeSelectedNode(ctx, claim)
	}
	if err != nil {
		return err
	}
	pv, err := volumeFor(claim, sc, node)
	if err != nil {
		return fail("%v", err)
	}
	c.env.Events.Eventf(claim, corev1.EventTypeNormal, "Provisioning",
		"External provisioner is provisioning volume for claim \"%s/%s\"", claim.Namespace, claim.Name)
	_, err = c.env.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{
		Resource:  "persistentvolumeclaims",
		Namespace: claim.Namespace,
		Name:      claim.Name,
		UID:       string(claim.UID),
	}, begin,
		&event.Reconcile{EventSeen: c.loop.QueuedAt(k), Creates: []string{pv.Name}}, err)
	if err != nil {
		_ = fail("%v", err)
		return fmt.Errorf("make volume for claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.env.Events.Eventf(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s",
		pv.Name)
	return nil
}

// removeSelectedNode removes the selected node, which was deleted, so that the scheduler chooses another one.
func (c *Controller) removeSelectedNode(ctx context.Context, o *corev1.PersistentVolumeClaim) error {
	next := o.DeepCopy()
	delete(next.Annotations, volume.AnnSelectedNode)
	_, err := c.env.Client.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// resize sets the requested size of a claim and its volume at once, because the size of a directory is not limited.
func (c *Controller) resize(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return ignoreNotFound(err)
	}
	if !localvolume.Is(pv) || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil
	}
	grown, next := expansion(claim, pv)
	if grown != nil {
		c.env.Events.Eventf(claim, corev1.EventTypeNormal, "Resizing", "External resizer is resizing volume %s",
			pv.Name)
		if node, err := c.nodes.Get(pv.Labels[localvolume.NodeLabel]); err == nil {
			size := grown.Spec.Capacity[corev1.ResourceStorage]
			if err := localvolume.Fits(size.Value(), node); err != nil {
				c.env.Events.Eventf(claim, corev1.EventTypeWarning, "VolumeResizeFailed",
					"resize volume %q by resizer %q failed: %v", pv.Name, localvolume.Provisioner, err)
				return nil
			}
		}
		if _, err := c.env.Client.CoreV1().PersistentVolumes().Update(ctx, grown, metav1.UpdateOptions{}); err != nil {
			return ignoreNotFound(err)
		}
	}
	if next == nil {
		return nil
	}
	if _, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, next,
		metav1.UpdateOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	c.env.Events.Event(claim, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	return nil
}

// reclaim deletes a volume without a claim; if its node was deleted, it removes the finalizer, because the data is
// lost.
func (c *Controller) reclaim(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.DeletionTimestamp == nil {
		return c.remove(ctx, pv)
	}
	if !slices.Contains(pv.Finalizers, localvolume.Finalizer) || pv.Status.Phase == corev1.VolumeBound {
		return nil
	}
	node := pv.Labels[localvolume.NodeLabel]
	if _, err := c.nodes.Get(node); err == nil {
		return nil // the kubelet will remove it
	}
	if _, err := c.env.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil ||
		!apierrors.IsNotFound(err) {
		return err
	}
	next := pv.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == localvolume.Finalizer })
	_, err := c.env.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

func (c *Controller) remove(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Status.Phase != corev1.VolumeReleased ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || pv.Spec.ClaimRef == nil {
		return nil
	}
	// This deletes data, so the claim is read from the API server and not from the cache.
	ref := pv.Spec.ClaimRef
	o, err := c.env.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	if err == nil && o.UID == ref.UID && (o.Spec.VolumeName == "" || o.Spec.VolumeName == pv.Name) {
		return nil
	}
	begin := time.Now()
	uid := pv.UID
	version := pv.ResourceVersion
	err = c.env.Client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{
		// the reclaim policy may just have been changed to Retain
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
	})
	c.env.Reconciled(event.Subject{Resource: "persistentvolumes", Name: pv.Name, UID: string(pv.UID)}, begin,
		&event.Reconcile{Deletes: []string{pv.Name}}, err)
	return ignoreNotFound(err)
}
