// SPDX-License-Identifier: Apache-2.0

// Package persistentvolume binds PersistentVolumeClaims and PersistentVolumes, requests volumes from external
// provisioners, and releases volumes of deleted claims. The table of controllers starts it. plan.go decides from the
// caches. A binding is four writes (the volume's claimRef, its phase, the claim's volumeName, its phase); after a crash
// between them the next pass continues. It never creates volumes itself.
package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	podkind "keelson/api/core/pod"
	"keelson/api/storage"
	"keelson/controllers/framework"
	"keelson/controllers/internal/claims"
)

// key is a claim or, without a namespace, a volume.
type key struct{ namespace, name string }

// Controller binds claims and volumes.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[key]
	byName  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	byOwner cache.Indexer // indexes volumes
	pods    cache.Indexer
	nodes   corelisters.NodeLister
	// This controller's last writes, until the caches show them.
	assumedClaims  *assumeCache[*corev1.PersistentVolumeClaim]
	assumedVolumes *assumeCache[*corev1.PersistentVolume]

	mu sync.Mutex
	// reserved are volumes that a pass is binding, with the claim's UID.
	reserved map[string]types.UID
	// lastEvent is the last event of a claim, to avoid duplicates.
	lastEvent map[types.UID]claimEvent
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	volumes := core.PersistentVolumes()
	claimInf := core.PersistentVolumeClaims()
	classes := storageinformers.New(env.Shared.Scoped()).StorageClasses()
	pods := core.Pods().Informer()
	controller := &Controller{
		env:            env,
		byName:         claimInf.Lister(),
		volumes:        volumes.Lister(),
		byOwner:        volumes.Informer().GetIndexer(),
		classes:        classes.Lister(),
		pods:           pods.GetIndexer(),
		nodes:          core.Nodes().Lister(),
		assumedClaims:  newAssumeCache[*corev1.PersistentVolumeClaim](claimInf.Informer().GetIndexer().GetByKey),
		assumedVolumes: newAssumeCache[*corev1.PersistentVolume](volumes.Informer().GetIndexer().GetByKey),
		reserved:       map[string]types.UID{},
		lastEvent:      map[types.UID]claimEvent{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(volumes.Informer(), byOwner, indexByOwner),
		framework.EnsureIndex(pods, claims.ByClaim, claims.IndexByClaim),
		framework.On(controller.loop, claimInf.Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
			Add:    controller.claimChanged,
			Update: func(_, cur *corev1.PersistentVolumeClaim) { controller.claimChanged(cur) },
			Delete: controller.claimDeleted,
		}),
		framework.On(controller.loop, volumes.Informer(), framework.Handlers[*corev1.PersistentVolume]{
			Add:    func(v *corev1.PersistentVolume) { controller.volumeChanged(nil, v) },
			Update: controller.volumeChanged,
			Delete: controller.volumeDeleted,
		}),
		framework.On(controller.loop, classes.Informer(), framework.Handlers[*storagev1.StorageClass]{
			Add:    controller.classChanged,
			Update: func(_, cur *storagev1.StorageClass) { controller.classChanged(cur) },
		}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Add: controller.podScheduled,
			Update: func(old, cur *corev1.Pod) {
				if old.Spec.NodeName != cur.Spec.NodeName {
					controller.podScheduled(cur)
				}
			},
		}),
		// synced before the first pass
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{}),
	)
	if err != nil {
		return nil, fmt.Errorf("persistent volumes: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func claimKey(o *corev1.PersistentVolumeClaim) key { return key{o.Namespace, o.Name} }

func refKey(r *corev1.ObjectReference) key { return key{r.Namespace, r.Name} }

func (c *Controller) claimChanged(claim *corev1.PersistentVolumeClaim) {
	c.assumedClaims.observed(claim.Namespace+"/"+claim.Name, claim)
	c.loop.Add(claimKey(claim))
	if claim.Spec.VolumeName != "" {
		c.loop.Add(key{"", claim.Spec.VolumeName})
	}
}

func (c *Controller) claimDeleted(claim *corev1.PersistentVolumeClaim) {
	c.assumedClaims.remove(claim.Namespace + "/" + claim.Name)
	c.mu.Lock()
	delete(c.lastEvent, claim.UID)
	c.mu.Unlock()
	if claim.Spec.VolumeName != "" {
		c.loop.Add(key{"", claim.Spec.VolumeName})
	}
	// A volume reserved for the claim, or just provisioned for it.
	for _, v := range c.listVolumes() {
		if r := v.Spec.ClaimRef; r != nil && r.UID == claim.UID {
			c.loop.Add(key{"", v.Name})
		}
	}
}

func (c *Controller) volumeChanged(old, pv *corev1.PersistentVolume) {
	c.assumedVolumes.observed(pv.Name, pv)
	c.loop.Add(key{"", pv.Name})
	if r := pv.Spec.ClaimRef; r != nil {
		c.loop.Add(refKey(r))
		return
	}
	if old == nil || old.Status.Phase != pv.Status.Phase || old.Generation != pv.Generation ||
		old.ResourceVersion != pv.ResourceVersion && pv.Status.Phase == corev1.VolumeAvailable {
		name := volume.GetPersistentVolumeClass(pv)
		class, err := c.classes.Get(name)
		late := err == nil && isDelayedBinding(class) // the scheduler chooses volumes for its claims
		c.requeueUnbound(func(claim *corev1.PersistentVolumeClaim) bool {
			return claim.Spec.VolumeName == pv.Name ||
				!late && claim.Spec.VolumeName == "" && volume.GetPersistentVolumeClaimClass(claim) == name
		})
	}
}

// podScheduled requeues the claims of a scheduled pod, in case one was replaced meanwhile and is unbound.
func (c *Controller) podScheduled(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	for _, name := range podkind.Claims(p) {
		if claim, err := c.byName.PersistentVolumeClaims(p.Namespace).Get(name); err == nil &&
			claim.Spec.VolumeName == "" {
			c.loop.Add(claimKey(claim))
		}
	}
}

func (c *Controller) volumeDeleted(v *corev1.PersistentVolume) {
	c.assumedVolumes.remove(v.Name)
	if r := v.Spec.ClaimRef; r != nil {
		c.loop.Add(refKey(r))
	}
}

// classChanged requeues the claims that wait for the class, or for a default class.
func (c *Controller) classChanged(class *storagev1.StorageClass) {
	isDefault := storage.IsDefaultClass(class)
	c.requeueUnbound(func(claim *corev1.PersistentVolumeClaim) bool {
		if !volume.PersistentVolumeClaimHasClass(claim) {
			return isDefault
		}
		return volume.GetPersistentVolumeClaimClass(claim) == class.Name
	})
}

// requeueUnbound requeues the unbound claims that may be bound now.
func (c *Controller) requeueUnbound(filter func(*corev1.PersistentVolumeClaim) bool) {
	list, err := c.byName.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, claim := range list {
		if _, done := claim.Annotations[volume.AnnBindCompleted]; !done && filter(claim) {
			c.loop.Add(claimKey(claim))
		}
	}
}

func (c *Controller) sync(ctx context.Context, k key) error {
	if k.namespace == "" {
		return c.syncVolume(ctx, k.name)
	}
	return c.syncClaim(ctx, k)
}

// claim is the newest known version; nil: it does not exist.
func (c *Controller) claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim, err := c.byName.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.assumedClaims.latest(namespace+"/"+name, claim), nil
}

// volume is the newest known version; nil: it does not exist.
func (c *Controller) volume(name string) (*corev1.PersistentVolume, error) {
	v, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.assumedVolumes.latest(name, v), nil
}

func (c *Controller) listVolumes() []*corev1.PersistentVolume {
	list, err := c.volumes.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache returns no error
	}
	for i, v := range list { // the slice is a copy
		list[i] = c.assumedVolumes.latest(v.Name, v)
	}
	return list
}

func (c *Controller) syncClaim(ctx context.Context, k key) error {
	claim, err := c.claim(k.namespace, k.name)
	if err != nil || claim == nil {
		return err
	}
	view := claimView{
		claim: claim,
		match: func(late bool) (*corev1.PersistentVolume, error) {
			return c.match(claim, late)
		},
	}
	if name := claim.Spec.VolumeName; name != "" {
		if view.namedVolume, err = c.volume(name); err != nil {
			return err
		}
	} else if err := c.readClasses(&view); err != nil {
		return err
	}
	plan, err := planClaim(view)
	if err != nil {
		return err
	}
	defer c.release(claim)
	return c.applyClaim(ctx, claim, plan)
}

func (c *Controller) readClasses(v *claimView) error {
	if !volume.PersistentVolumeClaimHasClass(v.claim) {
		all, err := c.classes.List(labels.Everything())
		v.defaultClass = storage.DefaultClass(all)
		return err
	}
	name := volume.GetPersistentVolumeClaimClass(v.claim)
	if name == "" {
		return nil
	}
	class, err := c.classes.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil {
		v.class = class
	}
	if !isDelayedBinding(v.class) {
		return nil
	}
	return c.readPods(v)
}

// readPods reads the pods that use the claim: those without a node, and the node of a scheduled one.
func (c *Controller) readPods(v *claimView) error {
	pods, err := claims.Pods(c.pods, v.claim.Namespace, v.claim.Name)
	if err != nil {
		return err
	}
	for _, p := range pods {
		switch {
		case !podkind.Active(p):
		case p.Spec.NodeName == "":
			v.unscheduledPods = append(v.unscheduledPods, p.Name)
		default:
			if _, err := c.nodes.Get(p.Spec.NodeName); err == nil &&
				(v.scheduledNode == "" || p.Spec.NodeName < v.scheduledNode) {
				v.scheduledNode = p.Spec.NodeName
			}
		}
	}
	slices.Sort(v.unscheduledPods)
	return nil
}

// match finds the smallest volume that fits the claim, and reserves it for this pass.
func (c *Controller) match(claim *corev1.PersistentVolumeClaim, delayedBinding bool) (*corev1.PersistentVolume, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := c.candidates(claim, delayedBinding)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(v *corev1.PersistentVolume) bool {
		by, taken := c.reserved[v.Name]
		return taken && by != claim.UID || !volume.CheckAccessModes(claim, v)
	})
	// deterministic in every pass
	slices.SortFunc(list, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	found, err := volume.FindMatchingVolume(claim, list, nil, nil, delayedBinding, true)
	if err != nil || found == nil {
		return nil, err
	}
	c.reserved[found.Name] = claim.UID
	return found, nil
}

// candidates are the volumes with a claimRef to the claim and, unless delayedBinding, the unclaimed ones of its class.
func (c *Controller) candidates(
	claim *corev1.PersistentVolumeClaim, delayedBinding bool,
) ([]*corev1.PersistentVolume, error) {
	may := []string{claim.Namespace + "/" + claim.Name}
	if !delayedBinding {
		may = append(may, unboundPrefix+volume.GetPersistentVolumeClaimClass(claim))
	}
	var out []*corev1.PersistentVolume
	for _, name := range c.assumedVolumes.keys() { // the index has an older version of them
		v, err := c.volume(name)
		if err != nil {
			return nil, err
		}
		if v != nil {
			out = append(out, v)
		}
	}
	known := len(out)
	for _, key := range may {
		objs, err := c.byOwner.ByIndex(byOwner, key)
		if err != nil {
			return nil, err
		}
		for _, o := range objs {
			v, ok := o.(*corev1.PersistentVolume)
			if ok && !slices.ContainsFunc(out[:known], func(n *corev1.PersistentVolume) bool {
				return n.Name == v.Name
			}) {
				out = append(out, c.assumedVolumes.latest(v.Name, v))
			}
		}
	}
	return out, nil
}

// byOwner indexes volumes by the "namespace/claim" of their claimRef or, without one, by unboundPrefix and their class.
const (
	byOwner       = "keelson.owner"
	unboundPrefix = "free "
)

func indexByOwner(o any) ([]string, error) {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return nil, nil
	}
	if r := v.Spec.ClaimRef; r != nil {
		return []string{r.Namespace + "/" + r.Name}, nil
	}
	return []string{unboundPrefix + volume.GetPersistentVolumeClass(v)}, nil
}

// release ends the reservation of match.
func (c *Controller) release(claim *corev1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, by := range c.reserved {
		if by == claim.UID {
			delete(c.reserved, name)
		}
	}
}

func (c *Controller) syncVolume(ctx context.Context, name string) error {
	pv, err := c.volume(name)
	if err != nil || pv == nil {
		return err
	}
	var claim *corev1.PersistentVolumeClaim
	if r := pv.Spec.ClaimRef; r != nil {
		if claim, err = c.claim(r.Namespace, r.Name); err != nil {
			return err
		}
		if r.UID != "" && (claim == nil || claim.UID != r.UID) {
			// Before data is deleted: the cache of claims may be older or newer than the volume.
			if claim, err = c.readClaim(ctx, r); err != nil {
				return err
			}
		}
	}
	return c.applyVolume(ctx, pv, planVolume(pv, claim))
}
