// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Totals counts the devices of a DeviceClass on nodes, as they were at one moment. Its methods may be called from any
// goroutine.
type Totals struct {
	byNode map[string]amount
	others []selected // of devices for several nodes
}

// amount is a number of devices, and how many of them are allocated.
type amount struct{ all, allocated int64 }

// selected are the devices for the nodes of a selector; nil: for all nodes.
type selected struct {
	nodes *nodeaffinity.NodeSelector
	amount
}

// Totals counts the devices that serve an extended resource; nil: no DeviceClass serves it, or it cannot be evaluated.
func (k *Tracker) Totals(ctx context.Context, compiled *cel.Cache, resource corev1.ResourceName) *Totals {
	name := k.DeviceClass(resource)
	if name == "" {
		return nil
	}
	class, err := k.classes.Get(name)
	if err != nil {
		return nil // it has just been deleted
	}
	all, err := k.slices.List(labels.Everything())
	if err != nil {
		return nil // a lister returns no such error
	}
	allocated := k.view().taken
	totals := &Totals{byNode: map[string]amount{}}
	for _, slice := range all {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if !matches(ctx, compiled, class, slice.Spec.Driver, device) {
				continue
			}
			one := amount{all: 1}
			id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name)
			if structured.IsDeviceAllocated(id, &allocated) {
				one.allocated = 1
			}
			totals.add(slice, device, one)
		}
	}
	return totals
}

// add counts a device where it can be used: its slice says so, or the device itself.
func (t *Totals) add(slice *resourcev1.ResourceSlice, device *resourcev1.Device, one amount) {
	node, everywhere, selector := slice.Spec.NodeName, slice.Spec.AllNodes, slice.Spec.NodeSelector
	if own := slice.Spec.PerDeviceNodeSelection; own != nil && *own {
		node, everywhere, selector = device.NodeName, device.AllNodes, device.NodeSelector
	}
	switch {
	case node != nil && *node != "":
		has := t.byNode[*node]
		t.byNode[*node] = amount{has.all + one.all, has.allocated + one.allocated}
	case everywhere != nil && *everywhere:
		t.others = append(t.others, selected{nil, one})
	case selector != nil:
		if nodes, err := nodeaffinity.NewNodeSelector(selector); err == nil { // it was validated
			t.others = append(t.others, selected{nodes, one})
		}
	}
}

// On returns how many devices a node has, and how many of them are allocated.
func (t *Totals) On(node *corev1.Node) (all, allocated int64) {
	sum := t.byNode[node.Name]
	for _, s := range t.others {
		if s.nodes == nil || s.nodes.Match(node) {
			sum.all += s.all
			sum.allocated += s.allocated
		}
	}
	return sum.all, sum.allocated
}

// matches reports whether a device meets all selectors of a class.
func matches(
	ctx context.Context, compiled *cel.Cache, class *resourcev1.DeviceClass, driver string, device *resourcev1.Device,
) bool {
	for _, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		program := compiled.GetOrCompile(selector.CEL.Expression)
		if program.Error != nil {
			return false
		}
		ok, _, err := program.DeviceMatches(ctx, cel.Device{
			Driver:                   driver,
			AllowMultipleAllocations: device.AllowMultipleAllocations,
			Attributes:               device.Attributes,
			Capacity:                 device.Capacity,
		})
		if err != nil || !ok {
			return false
		}
	}
	return true
}

// Count returns a function that counts the devices of an extended resource on nodes; it returns nil where no
// DeviceClass serves the resource.
func (k *Tracker) Count() func(corev1.ResourceName) func(*corev1.Node) (all, allocated int64) {
	compiled := cel.NewCache(maxCompiled, cel.Features{EnableConsumableCapacity: true})
	return func(resource corev1.ResourceName) func(*corev1.Node) (all, allocated int64) {
		if totals := k.Totals(context.Background(), compiled, resource); totals != nil {
			return totals.On
		}
		return nil
	}
}
