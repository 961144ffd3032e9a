// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"keelson/kubelet/podinfo"
)

const (
	// allocateTimeout and preStartTimeout bound calls of a plugin. Kubernetes has the second one only.
	allocateTimeout = time.Minute
	preStartTimeout = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	// maxResponseItems bounds how many items of each kind Allocate may answer with for one container, and maxErrorText
	// the text of an error.
	maxResponseItems = 1024
	maxErrorText     = 1024
)

// RunOptions are what a container needs to use its devices, as the plugins have answered to Allocate.
type RunOptions struct {
	Envs        map[string]string
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	Annotations map[string]string
	CDI         []string
}

// deviceRequest is how many devices of a resource a container requests.
type deviceRequest struct {
	resource string
	count    int
}

// requests returns what a container requests of known device plugins, without the devices that a
// ResourceClaim has for the pod.
func (m *Manager) requests(p *corev1.Pod, c *corev1.Container) []deviceRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []deviceRequest
	for name, q := range c.Resources.Limits {
		if m.resources[string(name)] != nil && q.Value() > 0 && !podinfo.ServedByClaim(p, name) {
			out = append(out, deviceRequest{string(name), int(min(q.Value(), maxDevices+1))})
		}
	}
	slices.SortFunc(out, func(a, b deviceRequest) int { return strings.Compare(a.resource, b.resource) })
	return out
}

// Allocate allocates devices for the pod's containers. It may be repeated: a container keeps its devices. Devices of an
// init container are reused by the containers after it, unless it is a sidecar.
func (m *Manager) Allocate(ctx context.Context, pod *corev1.Pod) error {
	if m == nil {
		return nil
	}
	reusable := map[string]map[string]bool{} // by resource
	allocate := func(c *corev1.Container, ends bool) error {
		for _, a := range m.requests(pod, c) {
			ids, err := m.allocate(ctx, string(pod.UID), c.Name, a, reusable[a.resource])
			if err != nil {
				return fmt.Errorf("allocate %s of container %s: %w", a.resource, c.Name, err)
			}
			if reusable[a.resource] == nil {
				reusable[a.resource] = map[string]bool{}
			}
			for _, id := range ids {
				reusable[a.resource][id] = ends
			}
		}
		return nil
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if err := allocate(c, !podinfo.Sidecar(c)); err != nil {
			return err
		}
	}
	for i := range pod.Spec.Containers {
		if err := allocate(&pod.Spec.Containers[i], false); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) allocate(
	ctx context.Context, uid, container string, a deviceRequest, reusable map[string]bool,
) ([]string, error) {
	m.mu.Lock()
	r := m.pods[uid]
	m.mu.Unlock()
	if had := r.allocation(container, a.resource); had != nil {
		return had.IDs, nil
	}
	ids, e, err := m.selectDevices(ctx, uid, a, reusable)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	got, err := call(ctx, allocateTimeout, e.api.Allocate, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	m.allocations.WithLabelValues(a.resource).Observe(time.Since(begin).Seconds())
	var answer *pluginapi.ContainerAllocateResponse
	if err == nil {
		answer, err = singleResponse(got.GetContainerResponses())
	}
	if err == nil {
		err = m.saveAllocation(uid, container, allocation{
			Resource:  a.resource,
			IDs:       ids,
			NUMANodes: m.numaNodes(a.resource, ids),
			Response:  responseOf(answer),
		})
	}
	if err != nil {
		m.unallocate(uid, a.resource, ids)
		return nil, err
	}
	return ids, nil
}

func singleResponse(list []*pluginapi.ContainerAllocateResponse) (*pluginapi.ContainerAllocateResponse, error) {
	if len(list) != 1 {
		return nil, fmt.Errorf("the device plugin answered for %d containers, and was asked about one", len(list))
	}
	if one := list[0]; max(len(one.GetEnvs()), len(one.GetMounts()), len(one.GetDevices()), len(one.GetAnnotations()),
		len(one.GetCdiDevices())) > maxResponseItems {
		return nil, fmt.Errorf("the device plugin gives one container more than %d things of a kind", maxResponseItems)
	}
	return list[0], nil
}

// selectDevices selects devices for a pod and marks them as allocated. While too few are available, for example until
// another pod is torn down, it waits.
func (m *Manager) selectDevices(
	ctx context.Context, uid string, a deviceRequest, reusable map[string]bool,
) ([]string, *endpoint, error) {
	wctx, cancel := context.WithTimeout(ctx, m.cfg.AllocateWait)
	defer cancel()
	preferredBy := map[*endpoint][]string{}
	for {
		m.mu.Lock()
		pool := m.resources[a.resource]
		changed := m.changed
		mustInclude, available := pool.candidates(reusable)
		e := pool.endpoint
		enough := pool.listed && len(mustInclude)+len(available) >= a.count
		if preferred, ok := preferredBy[e]; enough && (ok || !e.options.GetGetPreferredAllocationAvailable()) {
			ids := combine(a.count, mustInclude, preferred, available)
			for _, id := range ids {
				pool.allocated[id] = uid
			}
			m.mu.Unlock()
			return ids, e, nil
		}
		listed := pool.listed
		m.mu.Unlock()
		if enough {
			preferredBy[e] = preferredAllocation(ctx, e, a.count, mustInclude, available)
			continue
		}
		select {
		case <-changed:
		case <-wctx.Done():
			if !listed {
				return nil, nil, errors.New("its device plugin is not registered")
			}
			return nil, nil, fmt.Errorf("requested number of devices unavailable. Requested: %d, Available: %d",
				a.count, len(mustInclude)+len(available))
		}
	}
}

// candidates returns the healthy devices that the pod reuses, and those that no pod has.
func (r *pool) candidates(reusable map[string]bool) (mustInclude, available []string) {
	for id, d := range r.devices {
		switch {
		case !d.healthy:
		case reusable[id]:
			mustInclude = append(mustInclude, id)
		case r.allocated[id] == "":
			available = append(available, id)
		}
	}
	slices.Sort(mustInclude)
	slices.Sort(available)
	return mustInclude, available
}

// combine takes n of the candidates: those to be reused first, then those that the plugin prefers.
func combine(n int, mustInclude, preferred, available []string) []string {
	out := slices.Clone(mustInclude[:min(n, len(mustInclude))])
	for _, list := range [][]string{preferred, available} {
		for _, id := range list {
			if len(out) == n {
				return out
			}
			if _, ok := slices.BinarySearch(available, id); ok && !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	return out
}

// preferredAllocation calls GetPreferredAllocation. The answer is a hint only; an error is no hint.
func preferredAllocation(ctx context.Context, e *endpoint, n int, mustInclude, available []string) []string {
	got, err := call(ctx, preStartTimeout, e.api.GetPreferredAllocation, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs:   slices.Concat(mustInclude, available),
			MustIncludeDeviceIDs: mustInclude[:min(n, len(mustInclude))],
			AllocationSize:       int32(n), // bounded by asks
		}},
	})
	if err != nil || len(got.GetContainerResponses()) != 1 {
		return nil
	}
	ids := got.GetContainerResponses()[0].GetDeviceIDs()
	return ids[:min(len(ids), maxDevices)]
}

// unallocate undoes selectDevices, but for devices that the pod had before.
func (m *Manager) unallocate(uid, resource string, ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if !m.pods[uid].has(resource, id) {
			delete(m.resources[resource].allocated, id)
		}
	}
	m.notifyWaitersLocked()
}

// saveAllocation writes an allocation to the disk first, and then to the manager's state.
func (m *Manager) saveAllocation(uid, container string, a allocation) error {
	m.mu.Lock()
	next := m.pods[uid].with(uid, container, a)
	m.mu.Unlock()
	if err := next.save(m.cfg.Dir); err != nil {
		return fmt.Errorf("note the devices of the pod: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[uid] = next
	return nil
}

// RunContainerOptions returns what a container that is about to start needs. It allocates the devices, if that is not
// done yet, and calls PreStartContainer.
func (m *Manager) RunContainerOptions(
	ctx context.Context, p *corev1.Pod, container *corev1.Container,
) (*RunOptions, error) {
	out := &RunOptions{Envs: map[string]string{}, Annotations: map[string]string{}}
	if m == nil || len(container.Resources.Limits) == 0 {
		return out, nil
	}
	if err := m.Allocate(ctx, p); err != nil {
		return nil, err
	}
	m.mu.Lock()
	list := m.pods[string(p.UID)].allocations(container.Name)
	m.mu.Unlock()
	for i := range list {
		if err := m.preStart(ctx, &list[i]); err != nil {
			return nil, fmt.Errorf("make %s ready for container %s: %w", list[i].Resource, container.Name, err)
		}
		out.merge(&list[i].Response)
	}
	return out, nil
}

// preStart calls PreStartContainer of a plugin that requires it.
func (m *Manager) preStart(ctx context.Context, a *allocation) error {
	m.mu.Lock()
	r := m.resources[a.Resource]
	var e *endpoint
	if r != nil {
		e = r.endpoint
	}
	m.mu.Unlock()
	if e == nil || !e.options.GetPreStartRequired() { // unknown until it has registered since the kubelet started
		return nil
	}
	_, err := call(ctx, preStartTimeout, e.api.PreStartContainer, &pluginapi.PreStartContainerRequest{
		DevicesIds: a.IDs,
	})
	return err
}

// merge adds the options of one resource. It replaces none that is set already.
func (g *RunOptions) merge(a *response) {
	for k, v := range a.Envs {
		if _, ok := g.Envs[k]; !ok {
			g.Envs[k] = v
		}
	}
	for k, v := range a.Annotations {
		if _, ok := g.Annotations[k]; !ok {
			g.Annotations[k] = v
		}
	}
	for _, f := range a.Mounts {
		if !slices.ContainsFunc(g.Mounts, func(o *runtimeapi.Mount) bool {
			return o.GetContainerPath() == f.ContainerPath
		}) {
			g.Mounts = append(g.Mounts, &runtimeapi.Mount{
				ContainerPath: f.ContainerPath,
				HostPath:      f.HostPath,
				Readonly:      f.ReadOnly,
			})
		}
	}
	for _, f := range a.Devices {
		if !slices.ContainsFunc(g.Devices, func(o *runtimeapi.Device) bool {
			return o.GetContainerPath() == f.ContainerPath
		}) {
			g.Devices = append(g.Devices, &runtimeapi.Device{
				ContainerPath: f.ContainerPath,
				HostPath:      f.HostPath,
				Permissions:   f.Permissions,
			})
		}
	}
	for _, name := range a.CDI {
		if !slices.Contains(g.CDI, name) {
			g.CDI = append(g.CDI, name)
		}
	}
}

func responseOf(a *pluginapi.ContainerAllocateResponse) response {
	out := response{Envs: maps.Clone(a.GetEnvs()), Annotations: maps.Clone(a.GetAnnotations())}
	for _, f := range a.GetMounts() {
		out.Mounts = append(out.Mounts, hostFile{
			ContainerPath: f.GetContainerPath(),
			HostPath:      f.GetHostPath(),
			ReadOnly:      f.GetReadOnly(),
		})
	}
	for _, f := range a.GetDevices() {
		out.Devices = append(out.Devices, hostFile{
			ContainerPath: f.GetContainerPath(),
			HostPath:      f.GetHostPath(),
			Permissions:   f.GetPermissions(),
		})
	}
	for _, d := range a.GetCdiDevices() {
		out.CDI = append(out.CDI, d.GetName())
	}
	return out
}

// call calls a plugin with a timeout.
func call[Q, A any](ctx context.Context, within time.Duration, fn func(
	context.Context, Q, ...grpc.CallOption,
) (A, error), q Q,
) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a, err := fn(ctx, q, grpc.WaitForReady(false))
	if s, ok := grpcstatus.FromError(err); ok && err != nil {
		err = fmt.Errorf("rpc error: code = %s desc = %.*s", s.Code(), maxErrorText, s.Message())
	}
	return a, err
}
