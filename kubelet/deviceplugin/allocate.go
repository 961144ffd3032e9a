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
	// allocateWithin and startWithin are how long a plugin may take. Kubernetes has the second one only.
	allocateWithin = time.Minute
	startWithin    = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	// maxGiven bounds what a plugin may give one container of each kind, and maxWords what is told of its errors.
	maxGiven = 1024
	maxWords = 1024
)

// Given is what a container gets by its devices.
type Given struct {
	Envs        map[string]string
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	Annotations map[string]string
	CDI         []string
}

// ask is how many devices of a resource a container asks for.
type ask struct {
	resource string
	count    int
}

// asks are what a container wants of plugins that are known, beside what a claim has for the pod.
func (m *Manager) asks(p *corev1.Pod, c *corev1.Container) []ask {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ask
	for name, q := range c.Resources.Limits {
		if m.resources[string(name)] != nil && q.Value() > 0 && !podinfo.ServedByClaim(p, name) {
			out = append(out, ask{string(name), int(min(q.Value(), maxDevices+1))})
		}
	}
	slices.SortFunc(out, func(a, b ask) int { return strings.Compare(a.resource, b.resource) })
	return out
}

// Allocate gets the pod's containers their devices. It may be repeated: what a container has it keeps. Devices of an init container serve the
// containers after it again, unless it keeps running.
func (m *Manager) Allocate(ctx context.Context, p *corev1.Pod) error {
	if m == nil {
		return nil
	}
	again := map[string]map[string]bool{} // devices to be used again, by resource
	allocate := func(c *corev1.Container, ends bool) error {
		for _, a := range m.asks(p, c) {
			ids, err := m.allocate(ctx, string(p.UID), c.Name, a, again[a.resource])
			if err != nil {
				return fmt.Errorf("allocate %s of container %s: %w", a.resource, c.Name, err)
			}
			if again[a.resource] == nil {
				again[a.resource] = map[string]bool{}
			}
			for _, id := range ids {
				again[a.resource][id] = ends
			}
		}
		return nil
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if err := allocate(c, !podinfo.Sidecar(c)); err != nil {
			return err
		}
	}
	for i := range p.Spec.Containers {
		if err := allocate(&p.Spec.Containers[i], false); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) allocate(ctx context.Context, uid, container string, a ask, again map[string]bool) ([]string, error) {
	m.mu.Lock()
	r := m.pods[uid]
	m.mu.Unlock()
	if had := r.of(container, a.resource); had != nil {
		return had.IDs, nil
	}
	ids, e, err := m.choose(ctx, uid, a, again)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	got, err := call(ctx, allocateWithin, e.api.Allocate, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	m.allocations.WithLabelValues(a.resource).Observe(time.Since(begin).Seconds())
	var answer *pluginapi.ContainerAllocateResponse
	if err == nil {
		answer, err = theOne(got.GetContainerResponses())
	}
	if err == nil {
		err = m.keep(uid, container, allotment{Resource: a.resource, IDs: ids, Nodes: m.nodes(a.resource, ids), Answer: answerOf(answer)})
	}
	if err != nil {
		m.putBack(uid, a.resource, ids)
		return nil, err
	}
	return ids, nil
}

func theOne(list []*pluginapi.ContainerAllocateResponse) (*pluginapi.ContainerAllocateResponse, error) {
	if len(list) != 1 {
		return nil, fmt.Errorf("the device plugin answered for %d containers, and was asked about one", len(list))
	}
	if one := list[0]; max(len(one.GetEnvs()), len(one.GetMounts()), len(one.GetDevices()), len(one.GetAnnotations()), len(one.GetCdiDevices())) > maxGiven {
		return nil, fmt.Errorf("the device plugin gives one container more than %d things of a kind", maxGiven)
	}
	return list[0], nil
}

// choose takes devices for a pod. While there are too few, as when another pod has not given its ones back yet, it waits.
func (m *Manager) choose(ctx context.Context, uid string, a ask, again map[string]bool) ([]string, *endpoint, error) {
	wctx, cancel := context.WithTimeout(ctx, m.cfg.Wait)
	defer cancel()
	asked := map[*endpoint][]string{}
	for {
		m.mu.Lock()
		r, changed := m.resources[a.resource], m.change
		must, free := r.candidates(again)
		e := r.last
		enough := r.alive && len(must)+len(free) >= a.count
		if preferred, ok := asked[e]; enough && (ok || !e.options.GetGetPreferredAllocationAvailable()) {
			ids := pick(a.count, must, preferred, free)
			for _, id := range ids {
				r.taken[id] = uid
			}
			m.mu.Unlock()
			return ids, e, nil
		}
		alive := r.alive
		m.mu.Unlock()
		if enough {
			asked[e] = prefers(ctx, e, a.count, must, free)
			continue
		}
		select {
		case <-changed:
		case <-wctx.Done():
			if !alive {
				return nil, nil, errors.New("its device plugin is not registered")
			}
			return nil, nil, fmt.Errorf("requested number of devices unavailable. Requested: %d, Available: %d", a.count, len(must)+len(free))
		}
	}
}

// candidates are the healthy devices that the pod may use again, and those that nobody has.
func (r *pool) candidates(again map[string]bool) (must, free []string) {
	for id, d := range r.devices {
		switch {
		case !d.healthy:
		case again[id]:
			must = append(must, id)
		case r.taken[id] == "":
			free = append(free, id)
		}
	}
	slices.Sort(must)
	slices.Sort(free)
	return must, free
}

// pick takes n of the candidates: those to be used again first, then those that the plugin prefers.
func pick(n int, must, preferred, free []string) []string {
	out := slices.Clone(must[:min(n, len(must))])
	for _, list := range [][]string{preferred, free} {
		for _, id := range list {
			if len(out) == n {
				return out
			}
			if _, ok := slices.BinarySearch(free, id); ok && !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	return out
}

// prefers asks a plugin which devices it would give. What it answers is advice, and so is no answer.
func prefers(ctx context.Context, e *endpoint, n int, must, free []string) []string {
	got, err := call(ctx, startWithin, e.api.GetPreferredAllocation, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: slices.Concat(must, free), MustIncludeDeviceIDs: must[:min(n, len(must))], AllocationSize: int32(n), //nolint:gosec // bounded by asks
	}}})
	if err != nil || len(got.GetContainerResponses()) != 1 {
		return nil
	}
	ids := got.GetContainerResponses()[0].GetDeviceIDs()
	return ids[:min(len(ids), maxDevices)]
}

// putBack undoes choose, but for devices that the pod had before.
func (m *Manager) putBack(uid, resource string, ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if !m.pods[uid].has(resource, id) {
			delete(m.resources[resource].taken, id)
		}
	}
	m.changedLocked()
}

// keep writes what a container has, and then knows it.
func (m *Manager) keep(uid, container string, a allotment) error {
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

// Given is what a container that is about to start gets. It has its devices allocated, if that is not done yet, and made ready.
func (m *Manager) Given(ctx context.Context, p *corev1.Pod, c *corev1.Container) (*Given, error) {
	out := &Given{Envs: map[string]string{}, Annotations: map[string]string{}}
	if m == nil || len(c.Resources.Limits) == 0 {
		return out, nil
	}
	if err := m.Allocate(ctx, p); err != nil {
		return nil, err
	}
	m.mu.Lock()
	list := m.pods[string(p.UID)].all(c.Name)
	m.mu.Unlock()
	for i := range list {
		if err := m.ready(ctx, &list[i]); err != nil {
			return nil, fmt.Errorf("make %s ready for container %s: %w", list[i].Resource, c.Name, err)
		}
		out.add(&list[i].Answer)
	}
	return out, nil
}

// ready asks a plugin that wants to be asked before each start.
func (m *Manager) ready(ctx context.Context, a *allotment) error {
	m.mu.Lock()
	r := m.resources[a.Resource]
	var e *endpoint
	if r != nil {
		e = r.last
	}
	m.mu.Unlock()
	if e == nil || !e.options.GetPreStartRequired() { // as long as it has not come in this life, nobody knows
		return nil
	}
	_, err := call(ctx, startWithin, e.api.PreStartContainer, &pluginapi.PreStartContainerRequest{DevicesIds: a.IDs})
	return err
}

// add adds what came with one resource. What was there first stays.
func (g *Given) add(a *answer) {
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
		if !slices.ContainsFunc(g.Mounts, func(o *runtimeapi.Mount) bool { return o.GetContainerPath() == f.In }) {
			g.Mounts = append(g.Mounts, &runtimeapi.Mount{ContainerPath: f.In, HostPath: f.On, Readonly: f.ReadOnly})
		}
	}
	for _, f := range a.Devices {
		if !slices.ContainsFunc(g.Devices, func(o *runtimeapi.Device) bool { return o.GetContainerPath() == f.In }) {
			g.Devices = append(g.Devices, &runtimeapi.Device{ContainerPath: f.In, HostPath: f.On, Permissions: f.Permissions})
		}
	}
	for _, name := range a.CDI {
		if !slices.Contains(g.CDI, name) {
			g.CDI = append(g.CDI, name)
		}
	}
}

func answerOf(a *pluginapi.ContainerAllocateResponse) answer {
	out := answer{Envs: maps.Clone(a.GetEnvs()), Annotations: maps.Clone(a.GetAnnotations())}
	for _, f := range a.GetMounts() {
		out.Mounts = append(out.Mounts, file{In: f.GetContainerPath(), On: f.GetHostPath(), ReadOnly: f.GetReadOnly()})
	}
	for _, f := range a.GetDevices() {
		out.Devices = append(out.Devices, file{In: f.GetContainerPath(), On: f.GetHostPath(), Permissions: f.GetPermissions()})
	}
	for _, d := range a.GetCdiDevices() {
		out.CDI = append(out.CDI, d.GetName())
	}
	return out
}

// call asks a plugin.
func call[Q, A any](ctx context.Context, within time.Duration, fn func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a, err := fn(ctx, q, grpc.WaitForReady(false))
	if s, ok := grpcstatus.FromError(err); ok && err != nil {
		err = fmt.Errorf("rpc error: code = %s desc = %.*s", s.Code(), maxWords, s.Message())
	}
	return a, err
}
