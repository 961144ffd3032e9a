// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"keelson/api/meta"
	"keelson/api/resources"
	"keelson/scheduler/state"
)

// placeholderName is the name of the claim for extended resources until it is created. It is not a valid name.
const placeholderName = "<extended-resources>"

// staleClaim: an earlier attempt, which did not bind the pod, has left its claim.
var staleClaim = refuse("cannot schedule extended resource claim")

// extended has a pod's extended resources that DeviceClasses serve (KEP-5004). On a node with a device plugin for the
// resource, NodeResourcesFit checks it. On other nodes, devices are allocated to a claim that PreBind creates.
type extended struct {
	pod     *corev1.Pod
	classes map[corev1.ResourceName]string
	stale   *resourcev1.ResourceClaim // claim of an earlier attempt

	mu     sync.Mutex
	claims map[string]*extendedClaim // by the resources that they contain
}

// extendedClaim is the claim for nodes that lack the same resources, and the requests of it that each container uses.
type extendedClaim struct {
	claim    *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
}

// DeviceClass returns the DeviceClass that serves an extended resource; "": none.
func (k *Tracker) DeviceClass(name corev1.ResourceName) string {
	if k == nil || !k.watching() || !strings.Contains(string(name), "/") {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.extendedClasses == nil || k.extendedAt != k.devicesVersion {
		classes, err := k.classes.List(labels.Everything())
		if err != nil {
			return "" // a lister returns no such error
		}
		slices.SortFunc(classes, func(a, b *resourcev1.DeviceClass) int { // the newest class wins
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
		})
		k.extendedClasses = map[corev1.ResourceName]string{}
		k.extendedAt = k.devicesVersion
		for _, c := range classes {
			k.extendedClasses[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+c.Name)] = c.Name
			if explicit := c.Spec.ExtendedResourceName; explicit != nil &&
				k.extendedClasses[corev1.ResourceName(*explicit)] == "" {
				k.extendedClasses[corev1.ResourceName(*explicit)] = c.Name
			}
		}
	}
	return k.extendedClasses[name]
}

// extendedOf returns a pod's extended resources that DeviceClasses serve; nil: none.
func (p *Plugin) extendedOf(pod *state.PodInfo) *extended {
	var e *extended
	for name, n := range pod.Request.Scalar {
		class := ""
		if n > 0 &&
			(resources.IsExtended(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)) {
			class = p.Tracker.DeviceClass(name)
		}
		if class == "" {
			continue
		}
		if e == nil {
			e = &extended{pod: pod.Pod, classes: map[corev1.ResourceName]string{}, claims: map[string]*extendedClaim{}}
		}
		e.classes[name] = class
	}
	if e == nil {
		return nil
	}
	claims, err := p.Tracker.claims.ResourceClaims(pod.Pod.Namespace).List(labels.Everything())
	if err != nil {
		return e // a lister returns no such error
	}
	for _, c := range claims {
		if isExtendedOf(c, pod.Pod) {
			e.stale = c
		}
	}
	return e
}

// isExtendedOf reports whether a claim was created for a pod's extended resources.
func isExtendedOf(c *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && metav1.IsControlledBy(c, pod)
}

// claimFor returns the claim that the pod needs on a node; nil: none.
func (e *extended) claimFor(n *corev1.Node) *extendedClaim {
	if e == nil {
		return nil
	}
	var names []corev1.ResourceName
	for _, name := range slices.Sorted(maps.Keys(e.classes)) {
		if q, ok := n.Status.Allocatable[name]; !ok || q.IsZero() {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	key := fmt.Sprint(names)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claims[key] == nil {
		c := &extendedClaim{claim: &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: e.pod.Namespace,
			Name:      placeholderName,
			UID:       "extended-resources-of-" + e.pod.UID,
		}}}
		for _, name := range names {
			c.addRequests(e.pod, name, e.classes[name])
		}
		slices.SortFunc(c.claim.Spec.Devices.Requests, func(a, b resourcev1.DeviceRequest) int {
			return strings.Compare(a.Name, b.Name)
		})
		e.claims[key] = c
	}
	return e.claims[key]
}

// addRequests adds the requests of the pod's containers for a resource. Init containers that end share the devices of
// containers that start later, and each other's. If these are too few, one additional request covers the largest
// shortage.
func (c *extendedClaim) addRequests(pod *corev1.Pod, name corev1.ResourceName, class string) {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	ends := func(i int) bool {
		always := all[i].RestartPolicy != nil && *all[i].RestartPolicy == corev1.ContainerRestartPolicyAlways
		return i < len(pod.Spec.InitContainers) && !always
	}
	give := func(i int, request string) {
		c.mappings = append(c.mappings, corev1.ContainerExtendedResourceRequest{
			ContainerName: all[i].Name,
			ResourceName:  string(name),
			RequestName:   request,
		})
	}
	own := make([]*resourcev1.DeviceRequest, len(all))
	for i := range all {
		if !ends(i) {
			if own[i] = requestFor(i, &all[i], name, class, 0); own[i] != nil {
				give(i, own[i].Name)
			}
		}
	}
	var most *resourcev1.DeviceRequest
	var short []int // init containers that need the additional request
	for i := range all {
		wants := amountOf(&all[i], name)
		if !ends(i) || wants == 0 {
			continue
		}
		var have int64
		for _, r := range own[i:] {
			if r != nil && have < wants {
				have += r.Exactly.Count
				give(i, r.Name)
			}
		}
		if have >= wants {
			continue
		}
		short = append(short, i)
		if r := requestFor(i, &all[i], name, class, have); most == nil || r.Exactly.Count > most.Exactly.Count {
			most = r
		}
	}
	for _, i := range short {
		give(i, most.Name)
	}
	for _, r := range append(own, most) {
		if r != nil {
			c.claim.Spec.Devices.Requests = append(c.claim.Spec.Devices.Requests, *r)
		}
	}
}

func amountOf(c *corev1.Container, name corev1.ResourceName) int64 {
	q := c.Resources.Requests[name]
	n, ok := q.AsInt64()
	if !ok {
		return 0
	}
	return n
}

// requestFor returns a container's request; nil: it requests none. Its name has the index of the container and of the
// resource.
func requestFor(
	i int, c *corev1.Container, name corev1.ResourceName, class string, have int64,
) *resourcev1.DeviceRequest {
	n := amountOf(c, name)
	if n <= 0 {
		return nil
	}
	at, _ := slices.BinarySearch(slices.Sorted(maps.Keys(c.Resources.Requests)), name)
	return &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, at),
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class,
			AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
			Count:           n - have,
		},
	}
}

// wants returns the claims that need devices on a node. The claim for extended resources is the last.
func (s *podClaims) wants(n *corev1.Node) []*resourcev1.ResourceClaim {
	return s.extended.appendTo(s.unallocated, n)
}

func (e *extended) appendTo(claims []*resourcev1.ResourceClaim, n *corev1.Node) []*resourcev1.ResourceClaim {
	if c := e.claimFor(n); c != nil {
		return append(slices.Clip(claims), c.claim)
	}
	return claims
}

// extendedPlan is the claim for extended resources on the chosen node, with its allocation.
type extendedPlan struct {
	podClaim
	extendedClaim
	created *podClaim // by PreBind
}

// createExtendedClaim creates the claim, writes its name into the pod's status, and waits until the cache has it. Until
// then the assumed allocation of Reserve keeps the devices.
func (p *Plugin) createExtendedClaim(ctx context.Context, of *extendedPlan, pod *corev1.Pod) error {
	api := p.Client.ResourceV1().ResourceClaims(pod.Namespace)
	made, err := p.Claims.Create(ctx, api, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: meta.ChildName(pod.Name, "-extended-resources-"),
			Namespace:    pod.Namespace,
			Annotations:  map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Pod",
				Name:       pod.Name,
				UID:        pod.UID,
				Controller: new(true),
			}},
			Finalizers: []string{resourcev1.Finalizer},
		},
		Spec: *of.extendedClaim.claim.Spec.DeepCopy(),
	})
	if err != nil {
		return fmt.Errorf("create claim for extended resources: %w", err)
	}
	of.created = &podClaim{claim: made, plan: of.plan}
	if err := p.write(ctx, of.created, pod); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: made.Name,
			RequestMappings:   of.mappings,
		}},
	})
	if err != nil {
		return err
	}
	if _, err := p.Client.PodWrites(pod.Namespace).PatchStatus(ctx, pod.Name, patch); err != nil {
		return fmt.Errorf("name claim %s in the pod's status: %w", made.Name, err)
	}
	if err := p.Tracker.waitForAllocation(ctx, made.UID); err != nil {
		return err
	}
	p.Tracker.forget(of.podClaim.claim.UID)
	return nil
}

// cacheTimeout bounds the wait for a new claim in the cache.
const cacheTimeout = 2 * time.Minute

// waitForAllocation waits until the cache has the allocation of a claim.
func (k *Tracker) waitForAllocation(ctx context.Context, claim types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	for {
		k.mu.Lock()
		h := k.states[claim]
		change := k.changed
		there := h != nil && h.newest() != nil && h.newest().Status.Allocation != nil
		k.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the new claim in the cache: %w", ctx.Err())
		}
	}
}

// undoExtended forgets the devices of a claim for extended resources, and deletes the claim if it was created.
func (p *Plugin) undoExtended(ctx context.Context, of *extendedPlan) error {
	p.Tracker.forget(of.podClaim.claim.UID)
	if of.created == nil {
		return nil
	}
	p.Tracker.forget(of.created.claim.UID)
	return p.deleteClaim(ctx, of.created.claim)
}

// deleteClaim removes the finalizer of a claim and deletes it.
func (p *Plugin) deleteClaim(ctx context.Context, resourceClaim *resourcev1.ResourceClaim) error {
	api := p.Client.ResourceV1().ResourceClaims(resourceClaim.Namespace)
	again := false
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		now := resourceClaim
		if again {
			if now, err = api.Get(ctx, resourceClaim.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		again = true
		i := slices.Index(now.Finalizers, resourcev1.Finalizer)
		if now.UID != resourceClaim.UID || i < 0 {
			return nil
		}
		now = now.DeepCopy()
		now.Finalizers = slices.Delete(now.Finalizers, i, i+1)
		_, err = api.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = api.Delete(ctx, resourceClaim.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &resourceClaim.UID},
		})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
