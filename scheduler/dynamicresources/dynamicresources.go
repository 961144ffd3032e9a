// SPDX-License-Identifier: Apache-2.0

// Package dynamicresources is the plugin DynamicResources. It filters nodes by the devices for a pod's ResourceClaims
// (resource.k8s.io/v1), and in PreBind writes allocation and reservation into the claims. Kubernetes' library
// (k8s.io/dynamic-resource-allocation) allocates devices and evaluates CEL selectors. This package tracks the allocated
// devices, limits the time of a search, and explains refusals. The scheduler creates one Tracker, one Searcher, and a
// plugin for each profile. The package never publishes slices and never prepares devices on a node: drivers and
// kubelets do. PreFilter skips pods without claims.
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
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/client"
	"keelson/lib/celenv"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Name is the plugin's name.
const Name = "DynamicResources"

// The resources whose events may help a pod.
var (
	Claims     = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	Slices     = resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	Classes    = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")
	TaintRules = resourcev1.SchemeGroupVersion.WithResource("devicetaintrules")
	// Searches is not a resource of the API. Its events come from Searcher when a search has ended; the new object is
	// the pod's UID.
	Searches = resourcev1.SchemeGroupVersion.WithResource("searches")
)

// features are those that are enabled by default in Kubernetes v1.37.
var features = structured.Features{
	AdminAccess:             true,
	PrioritizedList:         true,
	PartitionableDevices:    true,
	DeviceTaints:            true,
	DeviceBindingAndStatus:  true,
	ConsumableCapacity:      true,
	FractionalCapacityRange: true,
}

// maxCompiled bounds the cache of compiled CEL selectors.
const maxCompiled = 64

// Config has the dependencies and limits of a plugin.
type Config struct {
	Tracker *Tracker
	Client  client.Interface
	// Claims creates claims for extended resources, and counts them; nil: nothing shows how many.
	Claims *client.Claims
	// Later runs a job off the scheduling loop.
	Later func(context.Context, func(context.Context))
	// Waiting is called when PreBind waits for binding conditions of a pod's devices. May be nil.
	Waiting func(pod *corev1.Pod, node string)
	// Failed is called with the error of a write outside the scheduling loop. May be nil.
	Failed func(pod *corev1.Pod, err error)
	// Filter is filterTimeout: it bounds the search for one pod on all nodes together. Binding is bindingTimeout. 0:
	// Kubernetes' defaults.
	Filter, Binding time.Duration
	// Searcher continues a search that has taken InCycle (0: 50 ms) of the scheduling cycle; nil: the cycle waits for
	// the search.
	Searcher *Searcher
	InCycle  time.Duration
	// Explain bounds the time for all explanations of one attempt, since each one searches again; 0: 20 ms.
	Explain time.Duration
}

// Plugin is the DynamicResources plugin of one profile; see New.
type Plugin struct {
	Config
	cel *cel.Cache
}

// New returns the plugin for a profile.
func New(c Config) *Plugin {
	if c.Claims == nil {
		c.Claims = client.NewClaims()
	}
	c.Filter = cmp.Or(c.Filter, configv1.DynamicResourcesFilterTimeoutDefault)
	c.InCycle = cmp.Or(c.InCycle, 50*time.Millisecond)
	c.Explain = cmp.Or(c.Explain, 20*time.Millisecond)
	c.Binding = cmp.Or(c.Binding, configv1.DynamicResourcesBindingTimeoutDefault)
	celenv.Bound() // before the compiler of selectors takes the environment
	return &Plugin{Config: c, cel: cel.NewCache(maxCompiled, cel.Features{EnableConsumableCapacity: true})}
}

// Descriptor returns what the plugin does.
func (p *Plugin) Descriptor() *framework.Plugin {
	return &framework.Plugin{
		Name:             Name,
		PreEnqueue:       p.PreEnqueue,
		PreFilter:        p.PreFilter,
		PostFilter:       p.PostFilter,
		PreScore:         p.PreScore,
		Reserve:          p.Reserve,
		Unreserve:        p.Unreserve,
		PreBind:          p.PreBind,
		PreBindPreFlight: p.PreBindPreFlight,
		Events:           p.events(),
	}
}

func refuse(reason string) *framework.Status {
	return framework.NewStatus(Name, framework.Unresolvable, reason)
}

// PreEnqueue gates a pod until the claims of its claim templates exist. A pod that names a missing claim is not gated:
// its attempt reports it.
func (p *Plugin) PreEnqueue(pod *state.PodInfo) *framework.Status {
	if len(pod.Pod.Spec.ResourceClaims) == 0 || !p.Tracker.watching() {
		return nil
	}
	if err := p.claimsOf(pod.Pod, nil); errors.Is(err, errNotGenerated) {
		return refuse(err.Error())
	}
	return nil
}

// errNotGenerated: the resourceclaim controller has not created a claim yet.
var errNotGenerated = errors.New("waiting for the resource claim controller")

// claimsOf calls visit for each claim of the pod. The error says why the pod cannot use its claims now.
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
		claim, err := p.Tracker.claim(pod.Namespace, *name)
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

// events names what may help: nodes, claims, classes and slices; a changed or deleted DeviceTaintRule; a pod
// that releases devices; and an update of the pod's status with its generated claims.
func (p *Plugin) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{Kinds: framework.NodeAdd | framework.NodeLabels | framework.NodeAllocatable | framework.UnscheduledPodUpdate},
		{
			Kinds: framework.AssignedPodDelete,
			QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool {
				return e.OldPod == nil || len(e.OldPod.Spec.ResourceClaims) > 0 ||
					e.OldPod.Status.ExtendedResourceClaimStatus != nil
			},
		},
		{Kinds: framework.Objects, Resource: Claims, QueueingHintFn: p.claimMayHelp},
		{
			Kinds:    framework.Objects,
			Resource: Searches,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				about, _ := e.NewObject.(types.UID)
				return p.Searcher.mayHelp(pod.Pod.UID, about)
			},
		},
		{Kinds: framework.Objects, Resource: Slices, QueueingHintFn: exists},
		{Kinds: framework.Objects, Resource: Classes, QueueingHintFn: exists},
		{
			Kinds:          framework.Objects,
			Resource:       TaintRules,
			QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool { return e.OldObject != nil },
		},
	}
}

func exists(_ *state.PodInfo, e *framework.Event) bool { return e.NewObject != nil }

// claimMayHelp reports whether a change of a claim frees devices, or is about a claim of the pod.
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
