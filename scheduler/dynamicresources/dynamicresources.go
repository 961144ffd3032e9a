// SPDX-License-Identifier: Apache-2.0

// Package dynamicresources is the scheduler's plugin of that name: it sends a pod with ResourceClaims (resource.k8s.io/v1) where its
// claims' devices are or can be, and before the pod is bound writes the allocation and the pod's reservation into the claims. The
// search for devices, the CEL selectors and their cost limits are Kubernetes' own library; this package keeps count of what is taken,
// bounds the search in time, and says what is missing. The scheduler makes one Known and a plugin for each profile. A pod without claims
// costs nothing here.
package dynamicresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Name is the plugin's.
const Name = "DynamicResources"

// What the plugin hears of.
var (
	Claims  = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	Slices  = resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	Classes = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")
	Rules   = resourcev1.SchemeGroupVersion.WithResource("devicetaintrules")
	// Searches are no resource of the API: an event of it, with the pod's UID as the new object, tells that Lane has found out what it can.
	Searches = resourcev1.SchemeGroupVersion.WithResource("searches")
)

// features are what Kubernetes v1.37 has switched on.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
	ConsumableCapacity: true, FractionalCapacityRange: true,
}

// compiled is how many compiled selectors are kept.
const compiled = 64

// Config is what a plugin works with.
type Config struct {
	Known  *Known
	Client kubernetes.Interface
	// Later runs a job off the scheduling loop.
	Later func(context.Context, func(context.Context))
	// Waiting is told of a pod whose devices have to be made ready on a node before it is bound; nil is fine.
	Waiting func(pod *corev1.Pod, node string)
	// Failed is told of a job of Later's that went wrong; nil is fine.
	Failed func(pod *corev1.Pod, err error)
	// Filter bounds the search for one pod's devices on all nodes together, and Binding the wait for devices; 0: as long as Kubernetes.
	Filter, Binding time.Duration
	// Lane is where a search goes on that has taken InLoop (0: 50 ms) of the scheduling loop; nil: the loop waits for it.
	Lane   *Lane
	InLoop time.Duration
	// Explain bounds what the explanations of one attempt take, each of which searches again; 0: 20 ms, as other pods wait meanwhile.
	Explain time.Duration
}

// Plugin is made by New.
type Plugin struct {
	Config
	cel *cel.Cache
}

// New makes a profile's plugin.
func New(c Config) *Plugin {
	c.Filter = cmp.Or(c.Filter, configv1.DynamicResourcesFilterTimeoutDefault)
	c.InLoop = cmp.Or(c.InLoop, 50*time.Millisecond)
	c.Explain = cmp.Or(c.Explain, 20*time.Millisecond)
	c.Binding = cmp.Or(c.Binding, configv1.DynamicResourcesBindingTimeoutDefault)
	return &Plugin{Config: c, cel: cel.NewCache(compiled, cel.Features{EnableConsumableCapacity: true})}
}

// Name is the plugin's.
func (*Plugin) Name() string { return Name }

func refuse(reason string) *framework.Status {
	return framework.Refuse(Name, framework.Unresolvable, reason)
}

// PreEnqueue keeps a pod back until the claims that are generated for it are there. One that names a claim which nobody has made is tried,
// and told so.
func (p *Plugin) PreEnqueue(pod *state.PodInfo) *framework.Status {
	if len(pod.Pod.Spec.ResourceClaims) == 0 || !p.Known.watching() {
		return nil
	}
	if err := p.claimsOf(pod.Pod, nil); errors.Is(err, errNotGenerated) {
		return refuse(err.Error())
	}
	return nil
}

// errNotGenerated is of a claim that the controller has not made yet.
var errNotGenerated = errors.New("waiting for the resource claim controller")

// claimsOf visits the pod's claims, or says why the pod cannot have them now.
func (p *Plugin) claimsOf(pod *corev1.Pod, visit func(*resourcev1.ResourceClaim)) error {
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		name, generated, err := resourceclaim.Name(pod, of)
		switch {
		case errors.Is(err, resourceclaim.ErrClaimNotFound):
			return fmt.Errorf("%w to make the claim %q", errNotGenerated, of.Name)
		case err != nil:
			return err
		case name == nil: // none is needed
			continue
		}
		claim, err := p.Known.claim(pod.Namespace, *name)
		if err != nil {
			if generated {
				return fmt.Errorf("%w: claim %q is %w", errNotGenerated, of.Name, err)
			}
			return err
		}
		if claim.DeletionTimestamp != nil {
			return fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
		}
		if generated {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return err
			}
		}
		if visit != nil {
			visit(claim)
		}
	}
	return nil
}

// EventsToRegister names what may help: nodes, claims, classes and slices; that a rule taints no more devices; that what another pod had planned to take is given back; and
// that the pod's status names the claims that were generated for it.
func (p *Plugin) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{On: framework.NodeAdd | framework.NodeLabels | framework.NodeAllocatable | framework.Self},
		{On: framework.PodDelete, Worth: func(_ *state.PodInfo, e *framework.Event) bool {
			return e.OldPod == nil || len(e.OldPod.Spec.ResourceClaims) > 0 || e.OldPod.Status.ExtendedResourceClaimStatus != nil
		}},
		{On: framework.Objects, Resource: Claims, Worth: p.claimMayHelp},
		{On: framework.Objects, Resource: Searches, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
			about, _ := e.NewObject.(types.UID)
			return p.Lane.mayHelp(pod.Pod.UID, about)
		}},
		{On: framework.Objects, Resource: Slices, Worth: notGone},
		{On: framework.Objects, Resource: Classes, Worth: notGone},
		{On: framework.Objects, Resource: Rules, Worth: func(_ *state.PodInfo, e *framework.Event) bool { return e.OldObject != nil }},
	}
}

func notGone(_ *state.PodInfo, e *framework.Event) bool { return e.NewObject != nil }

// claimMayHelp tells whether a claim's change frees devices, or is about one of the pod's own.
func (p *Plugin) claimMayHelp(pod *state.PodInfo, e *framework.Event) bool {
	old, _ := e.OldObject.(*resourcev1.ResourceClaim)
	now, _ := e.NewObject.(*resourcev1.ResourceClaim)
	if old != nil && old.Status.Allocation != nil && (now == nil || now.Status.Allocation == nil) {
		return true
	}
	if now == nil && old != nil && isExtendedOf(old, pod.Pod) {
		return true
	}
	if now == nil || old != nil && old.UID == now.UID && equality.Semantic.DeepEqual(&old.Status, &now.Status) {
		return false
	}
	mine := false
	err := p.claimsOf(pod.Pod, func(c *resourcev1.ResourceClaim) { mine = mine || c.UID == now.UID })
	return err == nil && mine
}
