// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin serves device plugins (the API v1beta1: extended resources such as nvidia.com/gpu). Plugins
// register at the socket device-plugins/kubelet.sock of the kubelet's directory and list their devices; whole devices
// are allocated to containers. The node's capacity has what is there, its allocatable what is healthy. The kubelet runs
// one Manager; workers of pods call it.
//
// Invariants:
//  1. A device is allocated to one pod only, from before Allocate is called until the pod is torn down.
//  2. An allocation is on the disk before its container starts: after a restart of the kubelet the container still has
//     it, and no other container does.
//  3. A plugin can change its own devices only, and no lock is held during a call of a plugin.
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
	// ResourcesChanged is called when Resources has changed, HealthChanged when the health of a pod's devices has.
	ResourcesChanged func()
	HealthChanged    func(uid string)
	Log              *slog.Logger
	// StopGracePeriod is for how long the devices of a plugin that has stopped still count as the node's capacity, none
	// of them healthy; 0: 5 minutes, as in Kubernetes. AllocateWait is for how long a pod waits for devices that
	// another pod still has; 0: 10 seconds. HealthTimeout is for how long the last health of a plugin's devices is
	// valid after it has stopped; 0: 30 seconds.
	StopGracePeriod, AllocateWait, HealthTimeout time.Duration
}

// Manager is made by New. A nil Manager has no devices.
type Manager struct {
	cfg Config
	metrics

	mu              sync.Mutex
	resources       map[string]*pool
	pods            map[string]*record // by UID
	changed         chan struct{}      // closed when more devices may be available than before
	resourcesFileMu sync.Mutex         // held while the file of resources is written
}

// pool has the devices of one resource.
type pool struct {
	endpoint  *endpoint // that registered last; nil: none since the kubelet started
	listed    bool      // the endpoint is connected and has listed its devices
	known     bool      // a plugin has listed devices since the kubelet started, or none has come in time
	stoppedAt time.Time // since when listed is false
	devices   map[string]device
	allocated map[string]string // device to the UID of its pod
}

// device is what a plugin lists of one.
type device struct {
	healthy   bool
	numaNodes []int64 // of its topology, sorted; none: the plugin has no topology
}

// endpoint is a registered plugin.
type endpoint struct {
	resource string
	options  *pluginapi.DevicePluginOptions
	conn     *grpc.ClientConn
	api      pluginapi.DevicePluginClient
	stop     context.CancelFunc
}

// New returns a manager without plugins. It starts nothing.
func New(config Config) *Manager {
	if config.StopGracePeriod == 0 {
		config.StopGracePeriod = 5 * time.Minute
	}
	if config.AllocateWait == 0 {
		config.AllocateWait = 10 * time.Second
	}
	if config.HealthTimeout == 0 {
		config.HealthTimeout = 30 * time.Second
	}
	return &Manager{
		cfg:       config,
		metrics:   newMetrics(),
		resources: map[string]*pool{},
		pods:      map[string]*record{},
		changed:   make(chan struct{}),
	}
}

// Pods returns the UIDs of the pods that have devices.
func (m *Manager) Pods() []string {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.pods))
}

// Resources returns the capacity of extended resources, and how many of their devices are healthy. A resource whose
// plugin has stopped for good has 0.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity = corev1.ResourceList{}
	allocatable = corev1.ResourceList{}
	for name, r := range m.resources {
		healthy := 0
		for _, d := range r.devices {
			if d.healthy && r.listed {
				healthy++
			}
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(r.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	return capacity, allocatable
}

// Release frees the devices of a pod. It may be repeated.
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
		maps.DeleteFunc(r.allocated, func(_, by string) bool { return by == uid })
	}
	m.notifyWaitersLocked()
	return nil
}

// notifyWaitersLocked wakes pods that wait for devices.
func (m *Manager) notifyWaitersLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Manager) poolLocked(name string) *pool {
	r := m.resources[name]
	if r == nil {
		r = &pool{devices: map[string]device{}, allocated: map[string]string{}}
		m.resources[name] = r
	}
	return r
}
