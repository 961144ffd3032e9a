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

	"keelson/api/resources"
	"keelson/scheduler/state"
)

// unnamed is the name of a pod's claim for its extended resources until it is written. It is no valid name.
const unnamed = "<extended-resources>"

// staleClaim is of a claim that an earlier attempt wrote, whose pod was not bound.
var staleClaim = refuse("cannot schedule extended resource claim")

// extended is what a pod asks for by names of extended resources that DeviceClasses serve (KEP-5004). Where a node's kubelet offers such a
// resource itself, by a device plugin, it is counted as any other; elsewhere devices are allocated to a claim that PreBind makes.
type extended struct {
	pod     *corev1.Pod
	classes map[corev1.ResourceName]string
	stale   *resourcev1.ResourceClaim // of an earlier attempt

	mu   sync.Mutex
	made map[string]*extendedClaim // by the resources that are asked of it
}

// extendedClaim is the claim as nodes need it that offer the same, and what of it each container gets.
type extendedClaim struct {
	claim    *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
}

// Class names the DeviceClass by whose devices an extended resource is served; "": there is none.
func (k *Known) Class(name corev1.ResourceName) string {
	if k == nil || !k.watching() || !strings.Contains(string(name), "/") {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.serving == nil || k.servingAt != k.offers {
		classes, err := k.classes.List(labels.Everything())
		if err != nil {
			return "" // a cache does not fail
		}
		slices.SortFunc(classes, func(a, b *resourcev1.DeviceClass) int { // of several the newest serves
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
		})
		k.serving, k.servingAt = map[corev1.ResourceName]string{}, k.offers
		for _, c := range classes {
			k.serving[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+c.Name)] = c.Name
			if explicit := c.Spec.ExtendedResourceName; explicit != nil && k.serving[corev1.ResourceName(*explicit)] == "" {
				k.serving[corev1.ResourceName(*explicit)] = c.Name
			}
		}
	}
	return k.serving[name]
}

// extendedOf is what a pod asks of devices by extended resources; nil: nothing.
func (p *Plugin) extendedOf(pod *state.PodInfo) *extended {
	var e *extended
	for name, n := range pod.Request.Scalar {
		class := ""
		if n > 0 && (resources.IsExtended(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)) {
			class = p.Known.Class(name)
		}
		if class == "" {
			continue
		}
		if e == nil {
			e = &extended{pod: pod.Pod, classes: map[corev1.ResourceName]string{}, made: map[string]*extendedClaim{}}
		}
		e.classes[name] = class
	}
	if e == nil {
		return nil
	}
	claims, err := p.Known.claims.ResourceClaims(pod.Pod.Namespace).List(labels.Everything())
	if err != nil {
		return e // a cache does not fail
	}
	for _, c := range claims {
		if isExtendedOf(c, pod.Pod) {
			e.stale = c
		}
	}
	return e
}

// isExtendedOf tells whether a claim was made for a pod's extended resources.
func isExtendedOf(c *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && metav1.IsControlledBy(c, pod)
}

// on is the claim that the pod needs on a node; nil: none.
func (e *extended) on(n *corev1.Node) *extendedClaim {
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
	if e.made[key] == nil {
		c := &extendedClaim{claim: &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: e.pod.Namespace, Name: unnamed, UID: "extended-resources-of-" + e.pod.UID,
		}}}
		for _, name := range names {
			c.ask(e.pod, name, e.classes[name])
		}
		slices.SortFunc(c.claim.Spec.Devices.Requests, func(a, b resourcev1.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
		e.made[key] = c
	}
	return e.made[key]
}

// ask adds the requests of the pod's containers for a resource. Init containers that end use the devices of those that start later, and each
// other's: the one that wants most beside them has a request of its own.
func (c *extendedClaim) ask(pod *corev1.Pod, name corev1.ResourceName, class string) {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	ends := func(i int) bool {
		always := all[i].RestartPolicy != nil && *all[i].RestartPolicy == corev1.ContainerRestartPolicyAlways
		return i < len(pod.Spec.InitContainers) && !always
	}
	give := func(i int, request string) {
		c.mappings = append(c.mappings, corev1.ContainerExtendedResourceRequest{ContainerName: all[i].Name, ResourceName: string(name), RequestName: request})
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
	var short []int // those whom the others' devices do not suffice
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

// requestFor is a container's request, named by its place among all containers and that of the resource among its own; nil: it asks for none.
func requestFor(i int, c *corev1.Container, name corev1.ResourceName, class string, have int64) *resourcev1.DeviceRequest {
	n := amountOf(c, name)
	if n <= 0 {
		return nil
	}
	at, _ := slices.BinarySearch(slices.Sorted(maps.Keys(c.Resources.Requests)), name)
	return &resourcev1.DeviceRequest{Name: fmt.Sprintf("container-%d-request-%d", i, at), Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n - have,
	}}
}

// wants are the claims for which devices have to be found on a node: that for the extended resources is the last.
func (s *podClaims) wants(n *corev1.Node) []*resourcev1.ResourceClaim {
	return s.extended.and(s.free, n)
}

func (e *extended) and(free []*resourcev1.ResourceClaim, n *corev1.Node) []*resourcev1.ResourceClaim {
	if c := e.on(n); c != nil {
		return append(slices.Clip(free), c.claim)
	}
	return free
}

// planned is the claim for extended resources that this attempt found devices for.
type planned struct {
	podClaim
	extendedClaim
	made *podClaim // as PreBind has written it
}

// make writes the claim, has the pod's status name it, and returns when the cache has it: until then what Reserve noted keeps its devices.
func (p *Plugin) make(ctx context.Context, of *planned, pod *corev1.Pod) error {
	api := p.Client.ResourceV1().ResourceClaims(pod.Namespace)
	made, err := api.Create(ctx, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: pod.Name + "-extended-resources-", Namespace: pod.Namespace,
			Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
			Finalizers:      []string{resourcev1.Finalizer},
		},
		Spec: *of.extendedClaim.claim.Spec.DeepCopy(),
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim for extended resources: %w", err)
	}
	of.made = &podClaim{claim: made, plan: of.plan}
	if err := p.write(ctx, of.made, pod); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: made.Name, RequestMappings: of.mappings,
		}},
	})
	if err != nil {
		return err
	}
	if _, err := p.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("name claim %s in the pod's status: %w", made.Name, err)
	}
	if err := p.Known.await(ctx, made.UID); err != nil {
		return err
	}
	p.Known.forget(of.podClaim.claim.UID)
	return nil
}

// toldWithin bounds how long a claim that was made takes to be in the cache.
const toldWithin = 2 * time.Minute

// await blocks until the cache has delivered the allocation of a claim.
func (k *Known) await(ctx context.Context, claim types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, toldWithin)
	defer cancel()
	for {
		k.mu.Lock()
		h, change := k.held[claim], k.change
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

// undo gives back the devices of a claim for extended resources, and deletes it if it was made.
func (p *Plugin) undo(ctx context.Context, of *planned) error {
	p.Known.forget(of.podClaim.claim.UID)
	if of.made == nil {
		return nil
	}
	p.Known.forget(of.made.claim.UID)
	return p.remove(ctx, of.made.claim)
}

// remove deletes a claim, with the finalizer that holds it.
func (p *Plugin) remove(ctx context.Context, c *resourcev1.ResourceClaim) error {
	api, again := p.Client.ResourceV1().ResourceClaims(c.Namespace), false
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		now := c
		if again {
			if now, err = api.Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		again = true
		i := slices.Index(now.Finalizers, resourcev1.Finalizer)
		if now.UID != c.UID || i < 0 {
			return nil
		}
		now = now.DeepCopy()
		now.Finalizers = slices.Delete(now.Finalizers, i, i+1)
		_, err = api.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = api.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
