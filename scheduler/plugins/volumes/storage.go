// SPDX-License-Identifier: Apache-2.0

package volumes

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
	"keelson/lib/signal"
)

// Storage gives the volume plugins claims, volumes and storage classes. It joins the informer caches with the assumed
// volume bindings of pods in their binding cycle, so that no volume is bound to two claims and no claim is provisioned
// for two nodes.
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

	writing chan struct{} // limits the number of concurrent writers to its capacity

	mu sync.Mutex
	// The assumed bindings. taken has the claim of each chosen volume, placements the node and volume of each claim, by
	// "namespace/claim". assumed has the choices by pod.
	taken      map[string]string         // volume -> claim
	placements map[string]claimPlacement // claim -> placement
	assumed    map[types.UID][]claimChoice

	listenMu  sync.Mutex
	listeners map[string][]signal.Signal // of pods in PreBind, by the keys of claims and volumes

	counts      volumeCounts
	freeVolumes freeVolumes
}

// claimPlacement is the assumed binding of a claim: to an existing volume, or to a volume that will be provisioned for
// the node.
type claimPlacement struct {
	node, volume string
	users        int // pods that assumed it
}

// claimChoice is what a pod chose for one of its claims.
type claimChoice struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume // nil: it is provisioned for the node
	// capacity is the CSIStorageCapacity from which the volume is provisioned; nil: the driver publishes none.
	capacity *storagev1.CSIStorageCapacity
}

// NewStorage returns a Storage without informers. Until Watch, the plugins ignore claims.
func NewStorage(c kubernetes.Interface) *Storage {
	s := &Storage{
		client:     c,
		taken:      map[string]string{},
		placements: map[string]claimPlacement{},
		assumed:    map[types.UID][]claimChoice{},
		listeners:  map[string][]signal.Signal{},
		writing:    make(chan struct{}, maxWriting),
	}
	s.freeVolumes.storage = s
	return s
}

// Watch gets its informers from f; the caller starts f. It must be called before the first pod is scheduled.
func (s *Storage) Watch(f informers.SharedInformerFactory) ([]cache.SharedIndexInformer, error) {
	claims := f.Core().V1().PersistentVolumeClaims()
	volumes := f.Core().V1().PersistentVolumes()
	cs := f.Storage().V1()
	attachments := cs.VolumeAttachments().Informer()
	if err := attachments.AddIndexers(cache.Indexers{attachmentsByNode: nodeOfAttachment}); err != nil {
		return nil, fmt.Errorf("index VolumeAttachments: %w", err)
	}
	s.claims = claims.Lister()
	s.volumes = volumes.Lister()
	s.classes = cs.StorageClasses().Lister()
	s.drivers = cs.CSIDrivers().Lister()
	s.nodes = cs.CSINodes().Lister()
	s.capacities = cs.CSIStorageCapacities().Lister()
	s.attachments = attachments.GetIndexer()
	return []cache.SharedIndexInformer{
		claims.Informer(), volumes.Informer(), cs.StorageClasses().Informer(), cs.CSIDrivers().Informer(),
		cs.CSINodes().Informer(),
		cs.CSIStorageCapacities().Informer(), attachments,
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

// watching reports whether Watch was called. Tests and benchmarks without storage do not call it.
func (s *Storage) watching() bool { return s != nil && s.claims != nil }

// Changed handles an informer event (added, updated or deleted object): it updates the counts and wakes PreBind of pods
// that wait for it.
func (s *Storage) Changed(o any) {
	s.counts.onChange(o)
	s.freeVolumes.onChange(o)
	s.listenMu.Lock()
	defer s.listenMu.Unlock()
	if claim, ok := client.Delivered[*corev1.PersistentVolumeClaim](o); ok {
		notify(s.listeners[claimKey(claim)])
	} else if v, ok := client.Delivered[*corev1.PersistentVolume](o); ok {
		notify(s.listeners[v.Name])
	}
}

// maxWriting bounds how many bindings write claims and volumes at once.
const maxWriting = 64

func notify(waits []signal.Signal) {
	for _, w := range waits {
		w.Notify()
	}
}

// listen returns a signal of changes of one of the claims or volumes, until end is called.
func (s *Storage) listen(choices []claimChoice) (changed signal.Signal, end func()) {
	w := signal.New()
	var keys []string
	for _, c := range choices {
		keys = append(keys, claimKey(c.claim))
		if c.volume != nil {
			keys = append(keys, c.volume.Name)
		}
	}
	s.listenMu.Lock()
	defer s.listenMu.Unlock()
	for _, k := range keys {
		s.listeners[k] = append(s.listeners[k], w)
	}
	return w, func() {
		s.listenMu.Lock()
		defer s.listenMu.Unlock()
		for _, k := range keys {
			if s.listeners[k] = slices.DeleteFunc(s.listeners[k], func(o signal.Signal) bool { return o == w }); len(
				s.listeners[k]) == 0 {
				delete(s.listeners, k)
			}
		}
	}
}

func claimKey(c *corev1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }

// claim returns nil if there is no claim of that name.
func (s *Storage) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	c, err := s.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil // a lister returns only NotFound
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

// takenBy returns the claim with an assumed binding to a volume; empty: none.
func (s *Storage) takenBy(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken[name]
}

// unclaimed returns the volumes without an assumed binding to another claim.
func (s *Storage) unclaimed(claim *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	all := s.allVolumes()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := all[:0] // List returns a new slice
	for _, v := range all {
		if by, ok := s.taken[v.Name]; !ok || by == claimKey(claim) {
			out = append(out, v)
		}
	}
	return out
}

// placementOf returns the assumed binding of a claim.
func (s *Storage) placementOf(claim *corev1.PersistentVolumeClaim) (claimPlacement, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.placements[claimKey(claim)]
	return p, ok
}

// assume records the bindings that a pod's PreBind will write.
func (s *Storage) assume(pod types.UID, node string, choices []claimChoice) {
	var touched []string
	defer func() { s.freeVolumes.volumesChanged(touched) }() // after mu is released
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range choices {
		k := claimKey(c.claim)
		claimPlacement := s.placements[k]
		claimPlacement.node = node
		claimPlacement.users = claimPlacement.users + 1
		if c.volume != nil {
			if claimPlacement.volume != "" && s.taken[claimPlacement.volume] == k {
				delete(s.taken, claimPlacement.volume)
				touched = append(touched, claimPlacement.volume)
			}
			claimPlacement.volume = c.volume.Name
			s.taken[c.volume.Name] = k
			touched = append(touched, c.volume.Name)
		}
		s.placements[k] = claimPlacement
	}
	s.assumed[pod] = choices
}

// forget undoes assume, when the caches have the written objects, or nothing was written.
func (s *Storage) forget(pod types.UID) {
	var touched []string
	defer func() { s.freeVolumes.volumesChanged(touched) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.assumed[pod] {
		k := claimKey(c.claim)
		p := s.placements[k]
		if p.users--; p.users > 0 {
			s.placements[k] = p
			continue
		}
		delete(s.placements, k)
		if p.volume != "" { // perhaps chosen by another pod that uses the claim
			delete(s.taken, p.volume)
			touched = append(touched, p.volume)
		}
	}
	delete(s.assumed, pod)
}

func (s *Storage) assumedChoices(pod types.UID) []claimChoice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.assumed[pod]
}

// write sets spec.claimRef of the chosen volumes, and the selected-node annotation of claims to be provisioned.
func (s *Storage) write(ctx context.Context, node string, choices []claimChoice) error {
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
			if _, err := s.client.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next,
				metav1.UpdateOptions{}); err != nil {
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

// waitUntilBound waits until the claims are bound. It returns an error if they cannot be bound, or at the time until.
func (s *Storage) waitUntilBound(ctx context.Context, node string, choices []claimChoice, until time.Time) error {
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
		case <-changed.C():
		case <-ctx.Done():
			return fmt.Errorf("binding volumes: %w", ctx.Err())
		}
	}
}

// bound reports whether a claim is bound. If the cache does not show the selected-node annotation, it reads the claim
// from the API server, since the cache may be older than the write.
func (s *Storage) bound(ctx context.Context, node string, c claimChoice) (bool, error) {
	claim := s.claim(c.claim.Namespace, c.claim.Name)
	if claim == nil || claim.UID != c.claim.UID {
		return false, fmt.Errorf("binding volumes: claim %s is gone", claimKey(c.claim))
	}
	if _, done := claim.Annotations[volume.AnnBindCompleted]; done && claim.Spec.VolumeName != "" {
		if c.volume != nil {
			// Until the cache has the claimRef of the volume, the volume would look free to other pods.
			if v := s.volume(c.volume.Name); v != nil && v.Spec.ClaimRef == nil && claim.Spec.VolumeName == v.Name {
				return false, nil
			}
		}
		return claim.Status.Phase == corev1.ClaimBound, nil // the kubelet checks the phase
	}
	if c.volume != nil || claim.Annotations[volume.AnnSelectedNode] == node ||
		// the cache is older than the write
		claim.ResourceVersion != "" && claim.ResourceVersion == c.claim.ResourceVersion {
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
		return false, fmt.Errorf("binding volumes: %w: selectedNode annotation reset for PVC %q",
			errProvisioningFailed, claim.Name)
	}
	return false, nil
}

var errProvisioningFailed = errors.New("provisioning failed")
