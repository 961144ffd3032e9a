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
	// callWithin is how long a driver may take for one call, as in Kubernetes.
	callWithin = 45 * time.Second
	// maxDevices bounds what a driver may say of one claim.
	maxDevices = 1024
	// maxWords bounds what is told of a driver's error.
	maxWords = 1024
)

// Prepare has the devices of a pod's claims prepared. Drivers are asked once in the kubelet's life: what they had prepared earlier may be
// gone, with the machine's last boot.
func (m *Manager) Prepare(ctx context.Context, p *corev1.Pod) (err error) {
	if m == nil || len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	defer m.operation("PrepareResources", time.Now(), &err)
	for i := range p.Spec.ResourceClaims {
		if _, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err != nil {
			return fmt.Errorf("prepare dynamic resources: %w", err)
		}
	}
	for name, generated := range resourceclaim.PodClaims(p) {
		if err := m.prepare(ctx, p, name, generated); err != nil {
			return fmt.Errorf("prepare dynamic resources: %w", err)
		}
	}
	return nil
}

func (m *Manager) prepare(ctx context.Context, p *corev1.Pod, name string, generated bool) error {
	key := p.Namespace + "/" + name
	unlock, err := m.turns.LockContext(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if m.isReady(key, string(p.UID)) {
		return nil
	}
	live, err := m.allowed(ctx, p, name, generated)
	if err != nil {
		return err
	}
	for _, name := range driversOf(live) { // a claim that no driver was asked about needs none to be given back
		if _, err := m.driver(name, string(p.UID)); err != nil {
			return err
		}
	}
	c, err := m.use(key, live, string(p.UID))
	if err != nil || c.fresh {
		return err
	}
	var devices []device
	for _, driver := range c.Drivers {
		got, err := m.ask(ctx, driver, string(p.UID), live)
		if err != nil {
			return err
		}
		devices = append(devices, got...)
	}
	next := c.record
	next.Devices, next.Prepared = devices, true
	return m.keep(c, next, true)
}

// isReady tells whether a claim is prepared, and a pod known to use it.
func (m *Manager) isReady(key, uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[key]
	return c != nil && c.fresh && slices.Contains(c.Pods, uid)
}

// allowed reads a claim, and makes sure that the pod may have its devices.
func (m *Manager) allowed(ctx context.Context, p *corev1.Pod, name string, generated bool) (*resourcev1.ResourceClaim, error) {
	live, err := m.cfg.API.ResourceV1().ResourceClaims(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
	}
	if generated {
		if err := resourceclaim.IsForPod(p, live, false); err != nil {
			return nil, err
		}
	}
	if !resourceclaim.IsReservedForPod(p, live, false) {
		return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", p.Name, p.UID, name, live.UID)
	}
	if live.Status.Allocation == nil {
		return nil, fmt.Errorf("ResourceClaim %s is not allocated", name)
	}
	return live, nil
}

// use notes, on the disk first, that a pod uses a claim.
func (m *Manager) use(key string, live *resourcev1.ResourceClaim, uid string) (*claim, error) {
	m.mu.Lock()
	c := m.claims[key]
	m.mu.Unlock()
	if c == nil {
		c = &claim{record: record{Namespace: live.Namespace, Name: live.Name, UID: string(live.UID), Drivers: driversOf(live), Allocated: allocatedOf(live)}}
	}
	if c.UID != string(live.UID) {
		return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists", live.Name, c.UID)
	}
	if len(c.Allocated) > 0 && !slices.Equal(c.Allocated, allocatedOf(live)) { // a pod that was deleted by force had these
		return nil, fmt.Errorf("ResourceClaim %s has other devices by now, and the former ones are not given back yet", live.Name)
	}
	if slices.Contains(c.Pods, uid) {
		return c, nil
	}
	next := c.record
	next.Pods = append(slices.Clone(c.Pods), uid)
	return c, m.keep(c, next, c.fresh)
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

// keep writes what is known of a claim, and then knows it.
func (m *Manager) keep(c *claim, next record, fresh bool) error {
	if err := next.save(m.cfg.Dir); err != nil {
		return fmt.Errorf("note the devices of ResourceClaim %s: %w", next.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.record, c.fresh = next, fresh
	m.claims[next.key()] = c
	return nil
}

// ask has one driver prepare a claim.
func (m *Manager) ask(ctx context.Context, name, pod string, live *resourcev1.ResourceClaim) ([]device, error) {
	d, err := m.driver(name, pod)
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
		return nil, fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %.*s", live.Name, maxWords, got.GetError())
	case len(got.GetDevices()) > maxDevices:
		return nil, fmt.Errorf("NodePrepareResources: %d devices for ResourceClaim %s, more than %d", len(got.GetDevices()), live.Name, maxDevices)
	}
	var out []device
	for _, dev := range got.GetDevices() {
		out = append(out, device{
			Driver: name, Pool: dev.GetPoolName(), Device: dev.GetDeviceName(), Share: dev.ShareId, Requests: dev.GetRequestNames(), CDI: dev.GetCdiDeviceIds(),
		})
	}
	return out, nil
}

// Unprepare has the devices given back that only this pod uses. It may be repeated.
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
	for name, pods := range m.waiting {
		if delete(pods, uid); len(pods) == 0 {
			delete(m.waiting, name)
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
		if err := m.giveBack(ctx, key, uid); err != nil {
			errs = append(errs, fmt.Errorf("unprepare dynamic resources: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) giveBack(ctx context.Context, key, uid string) error {
	unlock, err := m.turns.LockContext(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	m.mu.Lock()
	c := m.claims[key]
	m.mu.Unlock()
	if c == nil || !slices.Contains(c.Pods, uid) {
		return nil
	}
	if len(c.Pods) > 1 {
		next := c.record
		next.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(u string) bool { return u == uid })
		return m.keep(c, next, c.fresh)
	}
	m.mu.Lock()
	c.fresh = false // half of it may be given back from here on
	m.mu.Unlock()
	for _, name := range c.Drivers {
		d, err := m.driver(name, uid)
		if err != nil {
			return err
		}
		resp, err := call(ctx, d.api.NodeUnprepareResources, &draapi.NodeUnprepareResourcesRequest{
			Claims: []*draapi.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: c.UID}},
		})
		if err != nil {
			return fmt.Errorf("NodeUnprepareResources: %w", err)
		}
		got, ok := resp.GetClaims()[c.UID]
		if !ok {
			return fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", c.Name)
		}
		if got.GetError() != "" {
			return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %.*s", c.Name, maxWords, got.GetError())
		}
	}
	if err := c.remove(m.cfg.Dir); err != nil {
		return fmt.Errorf("forget the devices of ResourceClaim %s: %w", c.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, key)
	return nil
}

// call asks a driver.
func call[Q, A any](ctx context.Context, fn func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	a, err := fn(ctx, q, grpc.WaitForReady(false))
	if s, ok := grpcstatus.FromError(err); ok && err != nil {
		err = fmt.Errorf("rpc error: code = %s desc = %.*s", s.Code(), maxWords, s.Message())
	}
	return a, err
}

// Load finds what an earlier life has had prepared.
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
