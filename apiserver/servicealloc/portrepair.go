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
	// portLeakTime is how long a recorded port must be without a Service before it is released: longer than the time between the two writes
	// of a request, which may be another server's.
	portLeakTime = 90 * time.Second
	// releaseTime limits a release.
	releaseTime = 10 * time.Second
)

// recorded is the last observed record of node ports.
type recorded struct {
	version string // "": there is none
	bits    portBits
	broken  bool                // it cannot be decoded, or has another range
	loose   map[int32]time.Time // ports without a Service, and since when
}

func (a *Allocator) lookAtPortsLocked(in time.Duration) {
	if a.record != nil {
		a.loop.AddAfter(work{what: repairRecord}, in)
	}
}

// Start reconciles the record of node ports with the Services, before the first allocation. It is called when all Services have been
// passed.
func (a *Allocator) Start(ctx context.Context) error {
	if a.record == nil {
		return nil
	}
	var missing []int32
	err := a.record.Change(ctx, func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		missing = nil
		fresh := portBits{base: a.ports.First}
		if now != nil {
			if b, err := readRecord(now); err == nil { // else only the Services count
				for _, port := range b.all() {
					if a.ports.holds(port) {
						fresh.set(port, 1)
					}
				}
			}
		}
		for port := range a.taken {
			if a.ports.holds(port) && !fresh.has(port) {
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
		return a.written(now, &fresh), nil
	})
	if err != nil {
		return fmt.Errorf("bring the record of node ports up to date: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, port := range missing {
		a.unrecordedLocked(port)
	}
	return nil
}

// unrecordedLocked reports a port of a Service that was not in the record.
func (a *Allocator) unrecordedLocked(port int32) {
	for _, h := range a.taken[port] {
		a.problems.add(Problem{
			Service: h.service, UID: h.uid, Reason: "PortNotAllocated", Action: portAction, Message: fmt.Sprintf("Port %d is not allocated; repairing", port),
		})
	}
	a.loop.Add(work{what: reportProblems})
}

// repairPorts updates the record from the Services as far as that is certain. It returns when to check again; zero: after the next change.
func (a *Allocator) repairPorts(ctx context.Context) (again time.Duration, err error) {
	a.mu.Lock()
	leaked, missing, again := a.wrongPortsLocked(time.Now())
	seen := a.recorded.version
	a.mu.Unlock()
	if len(leaked)+len(missing) == 0 {
		return again, nil
	}
	late := false
	err = a.record.Change(ctx, func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error) {
		late = (now == nil) != (seen == "") || now != nil && now.ResourceVersion != seen
		if late { // the port may have been released and allocated again: our state is of an older version
			return now, nil
		}
		b := portBits{base: a.ports.First}
		if now != nil {
			var err error
			if b, err = a.current(now); err != nil {
				return nil, err
			}
		}
		for _, port := range leaked {
			if !a.holdsPort(port) {
				b.set(port, 0)
			}
		}
		for _, port := range missing {
			b.set(port, 1)
		}
		return a.written(now, &b), nil
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("repair the record of node ports: %w", err)
	case late:
		return settleTime, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, port := range missing {
		a.unrecordedLocked(port)
	}
	return again, nil
}

// wrongPortsLocked lists recorded ports without a Service for portLeakTime, and ports of Services that are not recorded.
func (a *Allocator) wrongPortsLocked(now time.Time) (leaked, missing []int32, again time.Duration) {
	r := &a.recorded
	if r.broken {
		return nil, nil, 0
	}
	for _, port := range slices.Sorted(maps.Keys(r.loose)) {
		if left := portLeakTime - now.Sub(r.loose[port]); left <= 0 {
			leaked = append(leaked, port)
		} else if again == 0 || left < again {
			again = left
		}
	}
	for _, port := range slices.Sorted(maps.Keys(a.taken)) {
		stored := slices.ContainsFunc(a.taken[port], func(h holder) bool { return h.stored })
		if stored && a.ports.holds(port) && !r.bits.has(port) {
			missing = append(missing, port)
		}
	}
	return leaked, missing, again
}
