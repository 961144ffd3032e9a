// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	// callTimeout is the timeout of one call, as in Kubernetes.
	callTimeout = 45 * time.Second
	// maxDevices limits the devices that a driver may return for one claim.
	maxDevices = 1024
	// maxErrorText limits the text of a driver's error in bytes.
	maxErrorText = 1024
)

// Prepare prepares the claims of a pod. Drivers are called once since the kubelet started: what they had prepared
// before may be lost, for example by a reboot.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) (err error) {
	if m == nil || len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	defer m.operation("PrepareResources", time.Now(), &err)
	for i := range pod.Spec.ResourceClaims {
		if _, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err != nil {
			return fmt.Errorf("prepare dynamic resources: %w", err)
		}
	}
	for name, generated := range resourceclaim.PodClaims(pod) {
		if err := m.prepare(ctx, pod, name, generated); err != nil {
			return fmt.Errorf("prepare dynamic resources: %w", err)
		}
	}
	return nil
}

func (m *Manager) prepare(ctx context.Context, pod *corev1.Pod, name string, generated bool) error {
	key := pod.Namespace + "/" + name
	unlock, err := m.claimLocks.LockContext(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if m.isReady(key, string(pod.UID)) {
		return nil
	}
	live, err := m.fetchClaim(ctx, pod, name, generated)
	if err != nil {
		return err
	}
	for _, name := range driversOf(live) { // a claim that no driver has seen can be released without drivers
		if _, err := m.registeredDriver(name, string(pod.UID)); err != nil {
			return err
		}
	}
	claim, err := m.addPod(key, live, string(pod.UID))
	if err != nil || claim.preparedInThisRun {
		return err
	}
	var devices []device
	for _, driver := range claim.Drivers {
		got, err := m.nodePrepare(ctx, driver, string(pod.UID), live)
		if err != nil {
			return err
		}
		devices = append(devices, got...)
	}
	next := claim.record
	next.Devices = devices
	next.Prepared = true
	return m.saveClaim(claim, next, true)
}

// isReady reports whether a claim is prepared and the pod is one of its users.
func (m *Manager) isReady(key, uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[key]
	return c != nil && c.preparedInThisRun && slices.Contains(c.Pods, uid)
}

// fetchClaim reads a claim and checks that the pod may use it.
func (m *Manager) fetchClaim(
	ctx context.Context, pod *corev1.Pod, name string, generated bool,
) (*resourcev1.ResourceClaim, error) {
	live, err := m.cfg.API.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
	}
	if generated {
		if err := resourceclaim.IsForPod(pod, live, false); err != nil {
			return nil, err
		}
	}
	if !resourceclaim.IsReservedForPod(pod, live, false) {
		return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, name,
			live.UID)
	}
	if live.Status.Allocation == nil {
		return nil, fmt.Errorf("ResourceClaim %s is not allocated", name)
	}
	return live, nil
}

// addPod records that a pod uses a claim, on the disk first.
func (m *Manager) addPod(key string, live *resourcev1.ResourceClaim, uid string) (*claim, error) {
	m.mu.Lock()
	c := m.claims[key]
	m.mu.Unlock()
	if c == nil {
		c = &claim{record: record{
			Namespace: live.Namespace,
			Name:      live.Name,
			UID:       string(live.UID),
			Drivers:   driversOf(live),
			Allocated: allocatedOf(live),
		}}
	}
	if c.UID != string(live.UID) {
		return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists", live.Name,
			c.UID)
	}
	// those of a pod that was deleted by force
	if len(c.Allocated) > 0 && !slices.Equal(c.Allocated, allocatedOf(live)) {
		return nil, fmt.Errorf("ResourceClaim %s has other devices by now, and the former ones are not given back yet",
			live.Name)
	}
	if slices.Contains(c.Pods, uid) {
		return c, nil
	}
	next := c.record
	next.Pods = append(slices.Clone(c.Pods), uid)
	return c, m.saveClaim(c, next, c.preparedInThisRun)
}

func driversOf(c *resourcev1.ResourceClaim) []string {
	var names []string
	for _, r := range c.Status.Allocation.Devices.Results {
		names = append(names, r.Driver)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func allocatedOf(c *resourcev1.ResourceClaim) []string {
	var out []string
	for _, r := range c.Status.Allocation.Devices.Results {
		d := r.Request + ": " + r.Driver + "/" + r.Pool + "/" + r.Device
		if r.ShareID != nil {
			d += "/" + string(*r.ShareID)
		}
		out = append(out, d)
	}
	return out
}

// saveClaim writes the record of a claim to the disk, and then to the manager's state.
func (m *Manager) saveClaim(c *claim, next record, prepared bool) error {
	if err := next.save(m.cfg.Dir); err != nil {
		return fmt.Errorf("note the devices of ResourceClaim %s: %w", next.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.record = next
	c.preparedInThisRun = prepared
	m.claims[next.key()] = c
	return nil
}

// nodePrepare calls NodePrepareResources of one driver for a claim.
func (m *Manager) nodePrepare(ctx context.Context, name, pod string, live *resourcev1.ResourceClaim) ([]device, error) {
	d, err := m.registeredDriver(name, pod)
	if err != nil {
		return nil, err
	}
	uid := string(live.UID)
	resp, err := call(ctx, d.api.NodePrepareResources, &draapi.NodePrepareResourcesRequest{
		Claims: []*draapi.Claim{{Namespace: live.Namespace, Name: live.Name, Uid: uid}},
	})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", err)
	}
	got := resp.GetClaims()[uid]
	switch {
	case got == nil:
		return nil, fmt.Errorf("NodePrepareResources skipped ResourceClaim %s", live.Name)
	case got.GetError() != "":
		return nil, fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %.*s", live.Name, maxErrorText,
			got.GetError())
	case len(got.GetDevices()) > maxDevices:
		return nil, fmt.Errorf("NodePrepareResources: %d devices for ResourceClaim %s, more than %d",
			len(got.GetDevices()), live.Name, maxDevices)
	}
	var out []device
	for _, dev := range got.GetDevices() {
		out = append(out, device{
			Driver:   name,
			Pool:     dev.GetPoolName(),
			Device:   dev.GetDeviceName(),
			ShareID:  dev.ShareId,
			Requests: dev.GetRequestNames(),
			CDI:      dev.GetCdiDeviceIds(),
		})
	}
	return out, nil
}

// Unprepare unprepares the claims that only this pod uses. It may be repeated.
func (m *Manager) Unprepare(ctx context.Context, uid string) (err error) {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	var keys []string
	for key, c := range m.claims {
		if slices.Contains(c.Pods, uid) {
			keys = append(keys, key)
		}
	}
	for name, pods := range m.waitingPods {
		if delete(pods, uid); len(pods) == 0 {
			delete(m.waitingPods, name)
		}
	}
	m.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	defer m.operation("UnprepareResources", time.Now(), &err)
	slices.Sort(keys)
	var errs []error
	for _, key := range keys {
		if err := m.unprepare(ctx, key, uid); err != nil {
			errs = append(errs, fmt.Errorf("unprepare dynamic resources: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) unprepare(ctx context.Context, key, uid string) error {
	unlock, err := m.claimLocks.LockContext(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	m.mu.Lock()
	claim := m.claims[key]
	m.mu.Unlock()
	if claim == nil || !slices.Contains(claim.Pods, uid) {
		return nil
	}
	if len(claim.Pods) > 1 {
		next := claim.record
		next.Pods = slices.DeleteFunc(slices.Clone(claim.Pods), func(u string) bool { return u == uid })
		return m.saveClaim(claim, next, claim.preparedInThisRun)
	}
	m.mu.Lock()
	claim.preparedInThisRun = false // half of it may be unprepared from here on
	m.mu.Unlock()
	for _, name := range claim.Drivers {
		d, err := m.registeredDriver(name, uid)
		if err != nil {
			return err
		}
		resp, err := call(ctx, d.api.NodeUnprepareResources, &draapi.NodeUnprepareResourcesRequest{
			Claims: []*draapi.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: claim.UID}},
		})
		if err != nil {
			return fmt.Errorf("NodeUnprepareResources: %w", err)
		}
		got, ok := resp.GetClaims()[claim.UID]
		if !ok {
			return fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", claim.Name)
		}
		if got.GetError() != "" {
			return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %.*s", claim.Name, maxErrorText,
				got.GetError())
		}
	}
	if err := claim.remove(m.cfg.Dir); err != nil {
		return fmt.Errorf("forget the devices of ResourceClaim %s: %w", claim.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, key)
	return nil
}

// call calls a driver with a timeout.
func call[Q, A any](ctx context.Context, fn func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	a, err := fn(ctx, q, grpc.WaitForReady(false))
	if s, ok := grpcstatus.FromError(err); ok && err != nil {
		err = fmt.Errorf("rpc error: code = %s desc = %.*s", s.Code(), maxErrorText, s.Message())
	}
	return a, err
}

// Load reads the claims that an earlier kubelet process has prepared.
func (m *Manager) Load() error {
	found, damaged, err := load(m.cfg.Dir)
	if err != nil {
		return fmt.Errorf("find prepared devices: %w", err)
	}
	for _, name := range damaged {
		m.cfg.Log.Warn("the record of a claim's devices cannot be read: they are not given back", "file", name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.claims, found)
	return nil
}
