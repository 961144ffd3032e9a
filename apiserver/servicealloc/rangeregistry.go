// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// RangeRegistry stores the allocated node ports for servers that share a store: a RangeAllocation in the format and at
// the key of Kubernetes' API server, which may be one of these servers.
type RangeRegistry interface {
	// GuaranteedUpdate applies f to the stored value (nil: none) and retries after conflicts; f may be called several
	// times. If f returns its argument, nothing is written. The argument is shared.
	GuaranteedUpdate(ctx context.Context, f func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error)) error
}

// maxPorts is above the number of ports; a record of a larger range is rejected.
const maxPorts = 1 << 16

// errNoRangeAllocation is returned between the deletion of the record and its repair.
var errNoRangeAllocation = errors.New("the RangeAllocation of node ports was deleted; it is recreated within seconds")

// portBitmap is the bitmap of a record.
type portBitmap struct {
	base int32
	bits big.Int
}

func (b *portBitmap) has(port int32) bool {
	return port >= b.base && b.bits.Bit(int(port-b.base)) == 1
}

func (b *portBitmap) set(port int32, to uint) {
	if port >= b.base {
		b.bits.SetBit(&b.bits, int(port-b.base), to)
	}
}

// ports lists the set ports in order.
func (b *portBitmap) ports() []int32 {
	var out []int32
	for i := range b.bits.BitLen() {
		if b.bits.Bit(i) == 1 {
			out = append(out, b.base+int32(i)) // below maxPorts
		}
	}
	return out
}

// decodeRangeAllocation decodes a record; its range is the stored one.
func decodeRangeAllocation(r *corev1.RangeAllocation) (b portBitmap, err error) {
	var first, last int32
	if n, err := fmt.Sscanf(r.Range, "%d-%d", &first, &last); err != nil || n != 2 || first < 0 || last < first ||
		last >= maxPorts {
		return b, fmt.Errorf("the RangeAllocation of node ports has the range %q", r.Range)
	}
	if len(r.Data) > maxPorts/8 {
		return b, fmt.Errorf("the RangeAllocation of node ports has %d bytes for the range %s", len(r.Data), r.Range)
	}
	b.base = first
	b.bits.SetBytes(r.Data)
	return b, nil
}

// encodeBitmap is now with the ports of b in this server's range.
func (a *Allocator) encodeBitmap(now *corev1.RangeAllocation, b *portBitmap) *corev1.RangeAllocation {
	out := &corev1.RangeAllocation{}
	if now != nil {
		out = now.DeepCopy()
	}
	out.Range = a.ports.String()
	out.Data = b.bits.Bytes()
	return out
}

// decodeBitmap decodes the stored record for a change.
func (a *Allocator) decodeBitmap(now *corev1.RangeAllocation) (b portBitmap, err error) {
	if now == nil {
		return b, errNoRangeAllocation
	}
	if now.Range != a.ports.String() {
		return b, fmt.Errorf("the provided range does not match the current range: node ports are %s here and %s in "+
			"the store; "+
			"start all servers with the same --service-node-port-range", a.ports, now.Range)
	}
	return decodeRangeAllocation(now)
}

// allocatePortsInRegistry allocates node ports in the record, in one change.
func (t *allocation) allocatePortsInRegistry(ctx context.Context, service, old *corev1.Service) error {
	allocator := t.a
	requested := slices.Clone(service.Spec.Ports)
	health := service.Spec.HealthCheckNodePort
	var refused error
	err := allocator.registry.GuaranteedUpdate(ctx, func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error) {
		service.Spec.Ports = slices.Clone(requested)
		service.Spec.HealthCheckNodePort = health
		t.ports = nil
		refused = nil
		portBitmap, err := allocator.decodeBitmap(now)
		if err != nil {
			return nil, portAllocationError(err)
		}
		t.portInUse = func(port int32) bool { return portBitmap.has(port) || allocator.portAllocated(port) }
		if refused = t.choosePorts(service, old); refused != nil || len(t.ports) == 0 {
			return now, nil //nolint:nilerr // nothing to write; the caller returns the error
		}
		for _, port := range t.ports {
			portBitmap.set(port, 1)
		}
		return allocator.encodeBitmap(now, &portBitmap), nil
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		t.ports = nil // if they were written despite the error, repair releases them
		if _, ok := err.(apierrors.APIStatus); !ok {
			err = portAllocationError(err)
		}
		return err
	}
	allocator.mu.Lock()
	defer allocator.mu.Unlock()
	t.addPortsLocked()
	return nil
}

// releasePorts releases ports for all servers. After a failure repair finds them: no Service has them.
func (a *Allocator) releasePorts(ctx context.Context, ports []int32) {
	if a.registry == nil || len(ports) == 0 {
		return
	}
	_ = a.registry.GuaranteedUpdate(ctx, func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error) {
		portBitmap, err := a.decodeBitmap(now)
		if err != nil {
			return nil, err
		}
		changed := false
		for _, port := range ports {
			if portBitmap.has(port) && !a.portAllocated(port) { // two Services may have had it
				portBitmap.set(port, 0)
				changed = true
			}
		}
		if !changed {
			return now, nil
		}
		return a.encodeBitmap(now, &portBitmap), nil
	})
}

func (a *Allocator) portAllocated(port int32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.nodePorts[port]) > 0
}

// addPortLocked records that a Service has a port.
func (a *Allocator) addPortLocked(port int32, h holder) {
	held := a.nodePorts[port]
	if i := slices.IndexFunc(held, func(x holder) bool { return x.uid == h.uid }); i >= 0 {
		held[i].stored = held[i].stored || h.stored
		return
	}
	a.nodePorts[port] = append(held, h)
	delete(a.observed.unusedSince, port)
}

func (a *Allocator) markPortStoredLocked(port int32, uid types.UID) {
	for i := range a.nodePorts[port] {
		if a.nodePorts[port][i].uid == uid {
			a.nodePorts[port][i].stored = true
		}
	}
}

func (a *Allocator) removePortLocked(port int32, uid types.UID) {
	held := slices.DeleteFunc(a.nodePorts[port], func(h holder) bool { return h.uid == uid })
	if len(held) > 0 {
		a.nodePorts[port] = held
		return
	}
	delete(a.nodePorts, port)
	if a.observed.bits.has(port) {
		a.observed.unusedSince[port] = time.Now()
		a.schedulePortRepairLocked(portLeakTime)
	}
}

// SetRangeAllocation passes the stored record. It is called for every version.
func (a *Allocator) SetRangeAllocation(obj runtime.Object) {
	r, ok := obj.(*corev1.RangeAllocation)
	if !ok {
		return
	}
	b, err := decodeRangeAllocation(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.observed.bits
	a.observed.resourceVersion = r.ResourceVersion
	a.observed.bits = b
	a.observed.invalid = err != nil || r.Range != a.ports.String()
	now := time.Now()
	loose := map[int32]time.Time{}
	for _, port := range b.ports() {
		if len(a.nodePorts[port]) > 0 {
			continue
		}
		since, known := a.observed.unusedSince[port]
		if !known || !was.has(port) {
			since = now
		}
		loose[port] = since
	}
	a.observed.unusedSince = loose
	a.schedulePortRepairLocked(settleTime)
}

// RemoveRangeAllocation is called when the record was deleted.
func (a *Allocator) RemoveRangeAllocation(runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.observed = observedRange{unusedSince: map[int32]time.Time{}}
	a.loop.Forget(workItem{task: repairRange}) // the record does not exist any more
	a.schedulePortRepairLocked(settleTime)
}
