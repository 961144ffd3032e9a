// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// portLeakTime is how long a recorded port must be without a Service before it is released: longer than the time
	// between the two writes of a request, which may be another server's.
	portLeakTime = 90 * time.Second
	// releaseTimeout limits a release.
	releaseTimeout = 10 * time.Second
)

// observedRange is the last observed RangeAllocation of node ports.
type observedRange struct {
	resourceVersion string // "": there is none
	bits            portBitmap
	invalid         bool                // it cannot be decoded, or has another range
	unusedSince     map[int32]time.Time // ports without a Service, and since when
}

func (a *Allocator) schedulePortRepairLocked(in time.Duration) {
	if a.registry != nil {
		a.loop.AddAfter(workItem{task: repairRange}, in)
	}
}

// Start reconciles the RangeAllocation of node ports with the Services, before the first allocation. It is called when
// all Services have been passed.
func (a *Allocator) Start(ctx context.Context) error {
	if a.registry == nil {
		return nil
	}
	var missing []int32
	err := a.registry.GuaranteedUpdate(ctx, func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		missing = nil
		fresh := portBitmap{base: a.ports.First}
		if now != nil {
			if b, err := decodeRangeAllocation(now); err == nil { // else only the Services count
				for _, port := range b.ports() {
					if a.ports.Contains(port) {
						fresh.set(port, 1)
					}
				}
			}
		}
		for port := range a.nodePorts {
			if a.ports.Contains(port) && !fresh.has(port) {
				fresh.set(port, 1)
				missing = append(missing, port)
			}
		}
		if now != nil && now.Range == a.ports.String() && len(missing) == 0 {
			return now, nil
		}
		if now == nil {
			missing = nil // only one server has used the store so far
		}
		return a.encodeBitmap(now, &fresh), nil
	})
	if err != nil {
		return fmt.Errorf("update the RangeAllocation of node ports: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, port := range missing {
		a.reportUnallocatedLocked(port)
	}
	return nil
}

// reportUnallocatedLocked reports a port of a Service that was not in the record.
func (a *Allocator) reportUnallocatedLocked(port int32) {
	for _, h := range a.nodePorts[port] {
		a.problems.add(Problem{
			Service: h.service,
			UID:     h.uid,
			Reason:  "PortNotAllocated",
			Action:  portAction,
			Message: fmt.Sprintf("Port %d is not allocated; repairing", port),
		})
	}
	a.loop.Add(workItem{task: reportProblems})
}

// repairPorts updates the record from the Services as far as that is certain. It returns when to check again; zero:
// after the next change.
func (a *Allocator) repairPorts(ctx context.Context) (requeueAfter time.Duration, err error) {
	a.mu.Lock()
	leaked, missing, requeueAfter := a.inconsistentPortsLocked(time.Now())
	seen := a.observed.resourceVersion
	a.mu.Unlock()
	if len(leaked)+len(missing) == 0 {
		return requeueAfter, nil
	}
	stale := false
	err = a.registry.GuaranteedUpdate(ctx, func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error) {
		stale = (now == nil) != (seen == "") || now != nil && now.ResourceVersion != seen
		if stale { // the port may have been released and allocated again: our state is of an older version
			return now, nil
		}
		b := portBitmap{base: a.ports.First}
		if now != nil {
			var err error
			if b, err = a.decodeBitmap(now); err != nil {
				return nil, err
			}
		}
		for _, port := range leaked {
			if !a.portAllocated(port) {
				b.set(port, 0)
			}
		}
		for _, port := range missing {
			b.set(port, 1)
		}
		return a.encodeBitmap(now, &b), nil
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("repair the RangeAllocation of node ports: %w", err)
	case stale:
		return settleTime, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, port := range missing {
		a.reportUnallocatedLocked(port)
	}
	return requeueAfter, nil
}

// inconsistentPortsLocked lists recorded ports without a Service for portLeakTime, and ports of Services that are not
// recorded.
func (a *Allocator) inconsistentPortsLocked(now time.Time) (leaked, missing []int32, requeueAfter time.Duration) {
	observedRange := &a.observed
	if observedRange.invalid {
		return nil, nil, 0
	}
	for _, port := range slices.Sorted(maps.Keys(observedRange.unusedSince)) {
		if left := portLeakTime - now.Sub(observedRange.unusedSince[port]); left <= 0 {
			leaked = append(leaked, port)
		} else if requeueAfter == 0 || left < requeueAfter {
			requeueAfter = left
		}
	}
	for _, port := range slices.Sorted(maps.Keys(a.nodePorts)) {
		stored := slices.ContainsFunc(a.nodePorts[port], func(h holder) bool { return h.stored })
		if stored && a.ports.Contains(port) && !observedRange.bits.has(port) {
			missing = append(missing, port)
		}
	}
	return leaked, missing, requeueAfter
}
