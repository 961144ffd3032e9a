// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"

	"keelson/scheduler/state"
)

// Tracker tracks claims, slices and classes for all profiles. It joins the informer caches with the allocations that
// binding cycles have written or will write, so that no device is allocated twice. The scheduler reports a change of a
// claim to the Tracker before the queue: so a pod that the event moves sees the freed devices.
type Tracker struct {
	claims  resourcelisters.ResourceClaimLister
	slices  resourcelisters.ResourceSliceLister
	classes resourcelisters.DeviceClassLister
	rules   resourcelisters.DeviceTaintRuleLister // nil: the API server does not serve them

	mu             sync.Mutex
	states         map[types.UID]*claimState // by claim
	devices        map[structured.DeviceID]int
	shares         map[structured.SharedDeviceID]int
	capacities     structured.ConsumedCapacityCollection
	allocated      *structured.AllocatedState // computed from the three fields above; nil: outdated
	freed          int64                      // counts deallocated devices
	devicesVersion int64                      // counts changes of slices, classes and rules
	taintedSlices  versionedSlices            // the slices with the taints of DeviceTaintRules
	// DeviceClass by extended resource, valid for devicesVersion extendedAt
	extendedClasses map[corev1.ResourceName]string
	extendedAt      int64
	changed         chan struct{} // closed at the next change of a claim
}

// claimState is the state of one claim.
type claimState struct {
	cached   *resourcev1.ResourceClaim    // from the last informer event
	written  *resourcev1.ResourceClaim    // from an API answer, newer than cached
	inFlight *resourcev1.AllocationResult // assumed by Reserve, not written yet
	pods     int                          // that have assumed inFlight
	group    state.GroupKey               // the pod group that pods are of; the zero key: none
	counted  *resourcev1.AllocationResult // the allocation that devices, shares and capacities include
}

func (h *claimState) newest() *resourcev1.ResourceClaim {
	if h.written != nil {
		return h.written
	}
	return h.cached
}

// NewTracker returns a Tracker without informers; see Watch.
func NewTracker() *Tracker {
	return &Tracker{
		states:     map[types.UID]*claimState{},
		devices:    map[structured.DeviceID]int{},
		shares:     map[structured.SharedDeviceID]int{},
		capacities: structured.NewConsumedCapacityCollection(),
		changed:    make(chan struct{}),
	}
}

// Watch gets its informers from f; the caller starts f. serves reports whether the API server has a resource. Watch
// must be called before the first pod is scheduled. The caller must call ClaimChanged for events of claims, and
// DevicesChanged for events of the others.
func (k *Tracker) Watch(f informers.SharedInformerFactory, serves func(resource string) bool) (
	claims cache.SharedIndexInformer, others map[schema.GroupVersionResource]cache.SharedIndexInformer,
) {
	cs := f.Resource().V1()
	k.claims = cs.ResourceClaims().Lister()
	k.slices = cs.ResourceSlices().Lister()
	k.classes = cs.DeviceClasses().Lister()
	others = map[schema.GroupVersionResource]cache.SharedIndexInformer{
		Slices:  cs.ResourceSlices().Informer(),
		Classes: cs.DeviceClasses().Informer(),
	}
	if serves(TaintRules.Resource) {
		k.rules = cs.DeviceTaintRules().Lister()
		others[TaintRules] = cs.DeviceTaintRules().Informer()
	}
	return cs.ResourceClaims().Informer(), others
}

// watching reports whether Watch was called. It is not if the API server does not serve resource claims.
func (k *Tracker) watching() bool { return k.claims != nil }

// ClaimChanged handles an informer event of a claim; now is nil for a deletion.
func (k *Tracker) ClaimChanged(old, now *resourcev1.ResourceClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old != nil && (now == nil || now.UID != old.UID) {
		if h := k.states[old.UID]; h != nil {
			h.cached = nil
			h.written = nil
			k.countLocked(old.UID, h)
		}
	}
	if now != nil {
		h := k.stateLocked(now.UID)
		h.cached = now
		if h.written != nil && !newer(h.written, now) {
			h.written = nil
		}
		k.countLocked(now.UID, h)
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// nextChange returns a channel that is closed at the next change of a claim.
func (k *Tracker) nextChange() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// RecordWritten stores the claim from the answer to a write, since the cache is behind. The assumed allocation is
// written.
func (k *Tracker) RecordWritten(c *resourcev1.ResourceClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.stateLocked(c.UID)
	h.inFlight = nil
	h.pods = 0
	// else it was deleted, or the cache has a newer version
	if h.newest() != nil && !newer(h.newest(), c) || h.newest() == nil && k.cached(c) {
		h.written = c
	}
	k.countLocked(c.UID, h)
}

// cached reports whether the cache has a claim. The cache changes before ClaimChanged is called.
func (k *Tracker) cached(c *resourcev1.ResourceClaim) bool {
	now, err := k.claims.ResourceClaims(c.Namespace).Get(c.Name)
	return err == nil && now.UID == c.UID
}

// assume records the allocation that PreBind of a pod will write into a claim. Pods of one group assume the same one.
func (k *Tracker) assume(c *resourcev1.ResourceClaim, a *resourcev1.AllocationResult, group state.GroupKey) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.stateLocked(c.UID)
	if h.inFlight != nil && (h.inFlight != a || h.group != group) {
		return fmt.Errorf("resource claim %s/%s is in the process of being allocated", c.Namespace, c.Name)
	}
	h.inFlight = a
	h.pods++
	h.group = group
	k.countLocked(c.UID, h)
	return nil
}

// forget undoes assume. The allocation is forgotten with the last pod that has assumed it.
func (k *Tracker) forget(claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.states[claim]
	if h == nil || h.inFlight == nil {
		return // it is written
	}
	if h.pods--; h.pods == 0 {
		h.inFlight = nil
		k.countLocked(claim, h)
	}
}

// pendingIn returns the allocation of a claim that pods of a group have assumed; nil: none, or the pods are of no
// group.
func (k *Tracker) pendingIn(group state.GroupKey, claim types.UID) *resourcev1.AllocationResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.states[claim]; h != nil && h.group == group && group != (state.GroupKey{}) {
		return h.inFlight
	}
	return nil
}

// Assumed returns the allocation that Reserve has assumed for a claim and that is not written yet; nil: there is none.
func (k *Tracker) Assumed(claim types.UID) *resourcev1.AllocationResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.states[claim]; h != nil {
		return h.inFlight
	}
	return nil
}

// isInFlight reports whether an assumed allocation of a claim is not written yet.
func (k *Tracker) isInFlight(claim types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.states[claim]
	return h != nil && h.inFlight != nil
}

// claim returns the newest version of a claim.
func (k *Tracker) claim(namespace, name string) (*resourcev1.ResourceClaim, error) {
	c, err := k.claims.ResourceClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.states[c.UID]; h != nil && h.written != nil && !newer(c, h.written) {
		return h.written, nil
	}
	return c, nil
}

// newer reports whether a has a higher resourceVersion than b. A resourceVersion that is not a number is older than
// any.
func newer(a, b *resourcev1.ResourceClaim) bool {
	n, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && n > 0
}

// List implements structured.DeviceClassLister.
func (k *Tracker) List() ([]*resourcev1.DeviceClass, error) {
	return k.classes.List(labels.Everything())
}

// Get implements structured.DeviceClassLister.
func (k *Tracker) Get(name string) (*resourcev1.DeviceClass, error) { return k.classes.Get(name) }

func (k *Tracker) stateLocked(claim types.UID) *claimState {
	h := k.states[claim]
	if h == nil {
		h = &claimState{}
		k.states[claim] = h
	}
	return h
}

// countLocked updates the counts of devices to the claim's current allocation.
func (k *Tracker) countLocked(claim types.UID, h *claimState) {
	now := h.inFlight
	newest := h.newest()
	if now == nil && newest != nil {
		now = newest.Status.Allocation
	}
	if newest == nil && h.inFlight == nil {
		delete(k.states, claim)
	}
	if now == h.counted {
		return
	}
	if now != nil && h.counted != nil && equality.Semantic.DeepEqual(now.Devices.Results, h.counted.Devices.Results) {
		h.counted = now
		return
	}
	k.addLocked(h.counted, -1)
	k.addLocked(now, 1)
	h.counted = now
}

// addLocked adds n (1 or -1) to the counts of an allocation's devices. Devices with admin access do not count.
func (k *Tracker) addLocked(a *resourcev1.AllocationResult, n int) {
	if a == nil {
		return
	}
	for i := range a.Devices.Results {
		result := &a.Devices.Results[i]
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		k.allocated = nil
		if n < 0 {
			k.freed++
		}
		id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if result.ShareID == nil {
			count(k.devices, id, n)
			continue
		}
		count(k.shares, structured.MakeSharedDeviceID(id, result.ShareID), n)
		if result.ConsumedCapacity == nil {
			continue
		}
		if used := structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity); n > 0 {
			k.capacities.Insert(used)
		} else {
			k.capacities.Remove(used)
		}
	}
}

func count[K comparable](m map[K]int, key K, n int) {
	if m[key] += n; m[key] <= 0 {
		delete(m, key)
	}
}

// DevicesChanged handles an informer event of a slice, a class or a DeviceTaintRule.
func (k *Tracker) DevicesChanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.devicesVersion++
}

// view returns the devices that are allocated or assumed now. It is shared and must not be modified.
func (k *Tracker) view() view {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.allocated == nil {
		k.allocated = &structured.AllocatedState{
			AllocatedDevices:         sets.KeySet(k.devices),
			AllocatedSharedDeviceIDs: sets.KeySet(k.shares),
			AggregatedCapacity:       k.capacities.Clone(),
		}
	}
	return view{*k.allocated, k.freed, k.devicesVersion}
}
