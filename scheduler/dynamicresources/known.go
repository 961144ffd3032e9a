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
)

// Known is what all profiles know of claims, slices and classes: what the caches have, and beside it what bindings that are under way
// have written or are about to write, so that no device goes to two claims. The scheduler tells it of changes of claims before it tells
// the queue: a pod that is woken finds the devices that woke it.
type Known struct {
	claims  resourcelisters.ResourceClaimLister
	slices  resourcelisters.ResourceSliceLister
	classes resourcelisters.DeviceClassLister
	rules   resourcelisters.DeviceTaintRuleLister // nil: the server has none

	mu         sync.Mutex
	held       map[types.UID]*holding // by claim
	devices    map[structured.DeviceID]int
	shares     map[structured.SharedDeviceID]int
	capacities structured.ConsumedCapacityCollection
	state      *structured.AllocatedState     // made of the three above; nil: they have changed
	freed      int64                          // counts devices that were given back
	offers     int64                          // counts changes of slices, classes and rules
	tainted    offered                        // the slices with what rules add
	serving    map[corev1.ResourceName]string // classes by the extended resources that they served at servingAt, a count of offers
	servingAt  int64
	change     chan struct{} // closed at the next change of a claim
}

// holding is what is known of one claim.
type holding struct {
	seen    *resourcev1.ResourceClaim    // as the cache delivered it last
	written *resourcev1.ResourceClaim    // newer than seen
	planned *resourcev1.AllocationResult // about to be written
	counted *resourcev1.AllocationResult // whose devices are counted
}

func (h *holding) newest() *resourcev1.ResourceClaim {
	if h.written != nil {
		return h.written
	}
	return h.seen
}

// NewKnown returns what knows nothing before Watch.
func NewKnown() *Known {
	return &Known{
		held: map[types.UID]*holding{}, devices: map[structured.DeviceID]int{}, shares: map[structured.SharedDeviceID]int{},
		capacities: structured.NewConsumedCapacityCollection(), change: make(chan struct{}),
	}
}

// Watch takes the informers it needs from f, which the caller starts; serves tells whether the server has a resource. It must be called
// before the first pod is scheduled. What happens to claims the caller tells by Claim, and by Offered that another of the resources has changed.
func (k *Known) Watch(f informers.SharedInformerFactory, serves func(resource string) bool) (
	claims cache.SharedIndexInformer, others map[schema.GroupVersionResource]cache.SharedIndexInformer,
) {
	g := f.Resource().V1()
	k.claims, k.slices, k.classes = g.ResourceClaims().Lister(), g.ResourceSlices().Lister(), g.DeviceClasses().Lister()
	others = map[schema.GroupVersionResource]cache.SharedIndexInformer{Slices: g.ResourceSlices().Informer(), Classes: g.DeviceClasses().Informer()}
	if serves(Rules.Resource) {
		k.rules, others[Rules] = g.DeviceTaintRules().Lister(), g.DeviceTaintRules().Informer()
	}
	return g.ResourceClaims().Informer(), others
}

// watching tells whether there is anything to go by: a server may not have the kinds.
func (k *Known) watching() bool { return k.claims != nil }

// Claim tells what became of a claim; now is nil: it is gone.
func (k *Known) Claim(old, now *resourcev1.ResourceClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old != nil && (now == nil || now.UID != old.UID) {
		if h := k.held[old.UID]; h != nil {
			h.seen, h.written = nil, nil
			k.countLocked(old.UID, h)
		}
	}
	if now != nil {
		h := k.heldLocked(now.UID)
		h.seen = now
		if h.written != nil && !newer(h.written, now) {
			h.written = nil
		}
		k.countLocked(now.UID, h)
	}
	close(k.change)
	k.change = make(chan struct{})
}

// next is closed at the next change of a claim.
func (k *Known) next() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.change
}

// wrote notes a claim as the server answered it, which the cache will have later. What was planned for it is done.
func (k *Known) wrote(c *resourcev1.ResourceClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.heldLocked(c.UID)
	h.planned = nil
	if h.newest() != nil && !newer(h.newest(), c) || h.newest() == nil && k.cached(c) { // else it is gone, or what came after it has been delivered
		h.written = c
	}
	k.countLocked(c.UID, h)
}

// cached tells whether the cache has a claim: it may have it before Claim tells of it, and has it no more before Claim tells that.
func (k *Known) cached(c *resourcev1.ResourceClaim) bool {
	now, err := k.claims.ResourceClaims(c.Namespace).Get(c.Name)
	return err == nil && now.UID == c.UID
}

// plan notes what a binding is about to write into a claim.
func (k *Known) plan(c *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.heldLocked(c.UID)
	if h.planned != nil {
		return fmt.Errorf("resource claim %s/%s is in the process of being allocated", c.Namespace, c.Name)
	}
	h.planned = a
	k.countLocked(c.UID, h)
	return nil
}

// forget undoes plan.
func (k *Known) forget(claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[claim]; h != nil {
		h.planned = nil
		k.countLocked(claim, h)
	}
}

// isPlanned tells whether a binding is about to write a claim's allocation.
func (k *Known) isPlanned(claim types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[claim]
	return h != nil && h.planned != nil
}

// claim is the newest that is known of it.
func (k *Known) claim(namespace, name string) (*resourcev1.ResourceClaim, error) {
	c, err := k.claims.ResourceClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[c.UID]; h != nil && h.written != nil && !newer(c, h.written) {
		return h.written, nil
	}
	return c, nil
}

// newer compares two versions of one claim. What is no number is older than any.
func newer(a, b *resourcev1.ResourceClaim) bool {
	n, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && n > 0
}

// List makes Known a structured.DeviceClassLister.
func (k *Known) List() ([]*resourcev1.DeviceClass, error) { return k.classes.List(labels.Everything()) }

// Get makes Known a structured.DeviceClassLister.
func (k *Known) Get(name string) (*resourcev1.DeviceClass, error) { return k.classes.Get(name) }

func (k *Known) heldLocked(claim types.UID) *holding {
	h := k.held[claim]
	if h == nil {
		h = &holding{}
		k.held[claim] = h
	}
	return h
}

// countLocked counts the devices that a claim has now, and no more those that it had.
func (k *Known) countLocked(claim types.UID, h *holding) {
	now, newest := h.planned, h.newest()
	if now == nil && newest != nil {
		now = newest.Status.Allocation
	}
	if newest == nil && h.planned == nil {
		delete(k.held, claim)
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

// addLocked counts an allocation's devices once more, or less. Those that were given for administration are in nobody's way.
func (k *Known) addLocked(a *resourcev1.AllocationResult, n int) {
	if a == nil {
		return
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		k.state = nil
		if n < 0 {
			k.freed++
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			count(k.devices, id, n)
			continue
		}
		count(k.shares, structured.MakeSharedDeviceID(id, r.ShareID), n)
		if r.ConsumedCapacity == nil {
			continue
		}
		if used := structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity); n > 0 {
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

// Offered tells that a slice, a class or a rule has changed.
func (k *Known) Offered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.offers++
}

// view is what no other claim can have now. It is shared: nobody modifies it.
func (k *Known) view() view {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == nil {
		k.state = &structured.AllocatedState{
			AllocatedDevices: sets.KeySet(k.devices), AllocatedSharedDeviceIDs: sets.KeySet(k.shares), AggregatedCapacity: k.capacities.Clone(),
		}
	}
	return view{*k.state, k.freed, k.offers}
}
