// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin serves device plugins (the API v1beta1: extended resources such as nvidia.com/gpu). Plugins register at the socket
// device-plugins/kubelet.sock of the kubelet's directory and tell of their devices; containers get whole devices of those. The node's
// capacity has what is there, its allocatable what is healthy. The kubelet runs one Manager; workers of pods call it.
//
// Invariants:
//  1. A device is one pod's, from before its plugin is asked until the pod is torn down.
//  2. What a container has is on the disk before it starts: after a restart of the kubelet it has the same, and nobody else does.
//  3. A plugin is believed about its own devices only, and nothing is held while one is asked.
package deviceplugin

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"keelson/kubelet/rootdir"
)

// Config is what a Manager works with.
type Config struct {
	// Dir is the kubelet's directory.
	Dir rootdir.Dir
	// Changed is told that Resources has changed, HealthChanged that Health has, of a pod's devices.
	Changed       func()
	HealthChanged func(uid string)
	Log           *slog.Logger
	// Grace is for how long the devices of a plugin that has gone are still counted as the node's, none of them healthy; 0: 5 minutes, as
	// in Kubernetes. Wait is for how long a pod waits for devices that another has not given back yet; 0: 10 seconds. Lapse is for how long
	// what a plugin said of the health of its devices holds when it has gone; 0: 30 seconds.
	Grace, Wait, Lapse time.Duration
}

// Manager is made by New. A nil Manager has no devices.
type Manager struct {
	cfg Config
	metrics

	mu        sync.Mutex
	resources map[string]*pool
	pods      map[string]*record // by UID
	change    chan struct{}      // closed when more may be free than before
	writing   sync.Mutex         // held while the list of resources is written
}

// pool is a resource: the devices of one plugin.
type pool struct {
	last    *endpoint // that registered last; nil: none did in this life
	alive   bool      // last has told its devices, and is there
	told    bool      // devices are what a plugin of this life told, or none came
	gone    time.Time // since when no plugin is there that has told its devices
	devices map[string]device
	taken   map[string]string // the pod that has a device
}

// device is what a plugin says of one.
type device struct {
	healthy bool
	nodes   []int64 // the NUMA nodes that it is near, in order; none: the plugin does not say
}

// endpoint is a plugin that has registered.
type endpoint struct {
	resource string
	options  *pluginapi.DevicePluginOptions
	conn     *grpc.ClientConn
	api      pluginapi.DevicePluginClient
	end      context.CancelFunc
}

// New returns a manager without plugins. It starts nothing.
func New(c Config) *Manager {
	if c.Grace == 0 {
		c.Grace = 5 * time.Minute
	}
	if c.Wait == 0 {
		c.Wait = 10 * time.Second
	}
	if c.Lapse == 0 {
		c.Lapse = 30 * time.Second
	}
	return &Manager{cfg: c, metrics: newMetrics(), resources: map[string]*pool{}, pods: map[string]*record{}, change: make(chan struct{})}
}

// Pods are the UIDs of the pods that have devices.
func (m *Manager) Pods() []string {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.pods))
}

// Resources are what the node has by its plugins, and how many of them are healthy. One whose plugin has gone for good is there with 0.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, r := range m.resources {
		healthy := 0
		for _, d := range r.devices {
			if d.healthy && r.alive {
				healthy++
			}
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(r.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	return capacity, allocatable
}

// Release gives back what a pod has. It may be repeated.
func (m *Manager) Release(uid string) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	r := m.pods[uid]
	m.mu.Unlock()
	if r != nil {
		if err := r.remove(m.cfg.Dir); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
	for _, r := range m.resources {
		maps.DeleteFunc(r.taken, func(_, by string) bool { return by == uid })
	}
	m.changedLocked()
	return nil
}

// changedLocked tells pods that wait for devices.
func (m *Manager) changedLocked() {
	close(m.change)
	m.change = make(chan struct{})
}

func (m *Manager) poolLocked(name string) *pool {
	r := m.resources[name]
	if r == nil {
		r = &pool{devices: map[string]device{}, taken: map[string]string{}}
		m.resources[name] = r
	}
	return r
}
