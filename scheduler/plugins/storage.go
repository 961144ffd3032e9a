// SPDX-License-Identifier: Apache-2.0

package plugins

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"keelson/client"
)

// Storage is what the plugins know of claims, volumes and storage classes: what the caches have, and beside it what bindings that
// are under way are about to write, so that no volume goes to two claims and no claim to two nodes.
type Storage struct {
	client     kubernetes.Interface
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	nodes      storagelisters.CSINodeLister
	capacities storagelisters.CSIStorageCapacityLister
	// attachments are VolumeAttachments, indexed by node.
	attachments cache.Indexer

	writing chan struct{} // as many bindings as it has room write at once

	mu sync.Mutex
	// taken are the volumes that claims are about to get, and nodes the nodes where claims are to get one, both by "namespace/claim".
	taken  map[string]string // volume -> claim
	placed map[string]place  // claim -> place
	plans  map[types.UID][]choice

	waitMu sync.Mutex
	waits  map[string][]chan struct{} // of bindings, for claims and volumes by their keys

	counts volumeCounts
	stock  stock
}

// place is where a claim is about to get its volume: one that exists, or else one to be made for the node.
type place struct {
	node, volume string
	pods         int // that chose it
}

// choice is what a pod chose for one of its claims.
type choice struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume // nil: it is made for the node
	// capacity is of what the volume is made; nil: nobody says.
	capacity *storagev1.CSIStorageCapacity
}

// NewStorage returns what knows nothing before Watch.
func NewStorage(c kubernetes.Interface) *Storage {
	s := &Storage{
		client: c, taken: map[string]string{}, placed: map[string]place{}, plans: map[types.UID][]choice{},
		waits: map[string][]chan struct{}{}, writing: make(chan struct{}, maxWriting),
	}
	s.stock.storage = s
	return s
}

// Watch takes the informers it needs from f, which the caller starts. It must be called before the first pod is scheduled.
func (s *Storage) Watch(f informers.SharedInformerFactory) ([]cache.SharedIndexInformer, error) {
	claims, volumes := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().PersistentVolumes()
	g := f.Storage().V1()
	attachments := g.VolumeAttachments().Informer()
	if err := attachments.AddIndexers(cache.Indexers{attachmentsByNode: nodeOfAttachment}); err != nil {
		return nil, fmt.Errorf("index VolumeAttachments: %w", err)
	}
	s.claims, s.volumes, s.classes = claims.Lister(), volumes.Lister(), g.StorageClasses().Lister()
	s.drivers, s.nodes, s.capacities = g.CSIDrivers().Lister(), g.CSINodes().Lister(), g.CSIStorageCapacities().Lister()
	s.attachments = attachments.GetIndexer()
	return []cache.SharedIndexInformer{
		claims.Informer(), volumes.Informer(), g.StorageClasses().Informer(), g.CSIDrivers().Informer(), g.CSINodes().Informer(),
		g.CSIStorageCapacities().Informer(), attachments,
	}, nil
}

const attachmentsByNode = "attachments by node"

func nodeOfAttachment(o any) ([]string, error) {
	a, ok := o.(*storagev1.VolumeAttachment)
	if !ok {
		return nil, nil
	}
	return []string{a.Spec.NodeName}, nil
}

// known tells whether there is anything to go by: tests and benchmarks of scheduling alone have no storage.
func (s *Storage) known() bool { return s != nil && s.claims != nil }

// Changed takes note of an object that came, changed or went, and wakes bindings that wait for claims.
func (s *Storage) Changed(o any) {
	s.counts.hear(o)
	s.stock.hear(o)
	s.waitMu.Lock()
	defer s.waitMu.Unlock()
	if claim, ok := client.Delivered[*corev1.PersistentVolumeClaim](o); ok {
		wake(s.waits[claimKey(claim)])
	} else if v, ok := client.Delivered[*corev1.PersistentVolume](o); ok {
		wake(s.waits[v.Name])
	}
}

// maxWriting bounds how many bindings write claims and volumes at once.
const maxWriting = 64

func wake(waits []chan struct{}) {
	for _, w := range waits {
		select {
		case w <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// listen returns what is sent to when one of the claims or volumes changes, until end is called.
func (s *Storage) listen(choices []choice) (changed <-chan struct{}, end func()) {
	w := make(chan struct{}, 1)
	var keys []string
	for _, c := range choices {
		keys = append(keys, claimKey(c.claim))
		if c.volume != nil {
			keys = append(keys, c.volume.Name)
		}
	}
	s.waitMu.Lock()
	defer s.waitMu.Unlock()
	for _, k := range keys {
		s.waits[k] = append(s.waits[k], w)
	}
	return w, func() {
		s.waitMu.Lock()
		defer s.waitMu.Unlock()
		for _, k := range keys {
			if s.waits[k] = slices.DeleteFunc(s.waits[k], func(o chan struct{}) bool { return o == w }); len(s.waits[k]) == 0 {
				delete(s.waits, k)
			}
		}
	}
}

func claimKey(c *corev1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }

// claim returns nil if there is none of that name.
func (s *Storage) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	c, err := s.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil // a lister over a cache knows no other error
	}
	return c
}

func (s *Storage) volume(name string) *corev1.PersistentVolume {
	v, err := s.volumes.Get(name)
	if err != nil {
		return nil
	}
	return v
}

func (s *Storage) class(c *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	class, err := s.classes.Get(volume.GetPersistentVolumeClaimClass(c))
	if err != nil {
		return nil
	}
	return class
}

func (s *Storage) allVolumes() []*corev1.PersistentVolume {
	all, err := s.volumes.List(labels.Everything())
	if err != nil {
		return nil
	}
	return all
}

// takenBy is the claim to which a binding under way is about to give a volume; empty: there is none.
func (s *Storage) takenBy(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken[name]
}

// unclaimed are the volumes that no binding under way is about to give to another claim.
func (s *Storage) unclaimed(claim *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	all := s.allVolumes()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := all[:0] // the slice is ours
	for _, v := range all {
		if by, ok := s.taken[v.Name]; !ok || by == claimKey(claim) {
			out = append(out, v)
		}
	}
	return out
}

// where is what a binding under way has chosen for a claim.
func (s *Storage) where(claim *corev1.PersistentVolumeClaim) (place, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.placed[claimKey(claim)]
	return p, ok
}

// assume notes what a pod's binding is about to write.
func (s *Storage) assume(pod types.UID, node string, choices []choice) {
	var touched []string
	defer func() { s.stock.touched(touched) }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range choices {
		k := claimKey(c.claim)
		p := s.placed[k]
		p.node, p.pods = node, p.pods+1
		if c.volume != nil {
			if p.volume != "" && s.taken[p.volume] == k {
				delete(s.taken, p.volume)
				touched = append(touched, p.volume)
			}
			p.volume = c.volume.Name
			s.taken[c.volume.Name] = k
			touched = append(touched, c.volume.Name)
		}
		s.placed[k] = p
	}
	s.plans[pod] = choices
}

// forget undoes assume: by then the caches have what was written, or nothing was.
func (s *Storage) forget(pod types.UID) {
	var touched []string
	defer func() { s.stock.touched(touched) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.plans[pod] {
		k := claimKey(c.claim)
		p := s.placed[k]
		if p.pods--; p.pods > 0 {
			s.placed[k] = p
			continue
		}
		delete(s.placed, k)
		if p.volume != "" { // it may be what another pod chose for the claim
			delete(s.taken, p.volume)
			touched = append(touched, p.volume)
		}
	}
	delete(s.plans, pod)
}

func (s *Storage) plan(pod types.UID) []choice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plans[pod]
}

// write gives the chosen volumes to their claims, and asks for the others to be made for the node.
func (s *Storage) write(ctx context.Context, node string, choices []choice) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, c := range choices {
		if c.volume == nil {
			if c.claim.Annotations[volume.AnnSelectedNode] == node {
				continue
			}
			next := c.claim.DeepCopy()
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnSelectedNode, node)
			if _, err := s.client.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("select node %s for claim %s: %w", node, claimKey(next), err)
			}
			continue
		}
		next, changed, err := volume.GetBindVolumeToClaim(c.volume, c.claim)
		if err != nil {
			return err
		}
		if !changed {
			continue
		}
		if _, err := s.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind volume %s to claim %s: %w", next.Name, claimKey(c.claim), err)
		}
	}
	return nil
}

// bindLimit is how long a pod's binding waits for its volumes, as in Kubernetes.
const bindLimit = 10 * time.Minute

// await blocks until the claims are bound, or cannot be.
func (s *Storage) await(ctx context.Context, node string, choices []choice, until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	changed, end := s.listen(choices)
	defer end()
	for {
		done := true
		for _, c := range choices {
			ok, err := s.bound(ctx, node, c)
			if err != nil {
				return err
			}
			done = done && ok
		}
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("binding volumes: %w", ctx.Err())
		}
	}
}

// bound tells whether a claim has its volume. What was written may not be in the cache yet: a missing note is asked for at the server.
func (s *Storage) bound(ctx context.Context, node string, c choice) (bool, error) {
	claim := s.claim(c.claim.Namespace, c.claim.Name)
	if claim == nil || claim.UID != c.claim.UID {
		return false, fmt.Errorf("binding volumes: claim %s is gone", claimKey(c.claim))
	}
	if _, done := claim.Annotations[volume.AnnBindCompleted]; done && claim.Spec.VolumeName != "" {
		if c.volume != nil {
			// Until the cache knows whose the volume is, it must not look free.
			if v := s.volume(c.volume.Name); v != nil && v.Spec.ClaimRef == nil && claim.Spec.VolumeName == v.Name {
				return false, nil
			}
		}
		return claim.Status.Phase == corev1.ClaimBound, nil // the kubelet goes by the phase
	}
	if c.volume != nil || claim.Annotations[volume.AnnSelectedNode] == node ||
		claim.ResourceVersion != "" && claim.ResourceVersion == c.claim.ResourceVersion { // what was written comes yet
		return false, nil
	}
	fresh, err := s.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, fmt.Errorf("binding volumes: claim %s is gone", claimKey(claim))
	}
	if err != nil {
		return false, err
	}
	if fresh.Spec.VolumeName == "" && fresh.Annotations[volume.AnnSelectedNode] != node {
		return false, fmt.Errorf("binding volumes: %w: selectedNode annotation reset for PVC %q", errUnselected, claim.Name)
	}
	return false, nil
}

var errUnselected = errors.New("provisioning failed")
