// SPDX-License-Identifier: Apache-2.0

// Package dra has the devices of pods' ResourceClaims prepared by their drivers before containers start, gives containers the CDI names
// that drivers answer with, and has the devices given back once no container of a claim's pods runs. Drivers register as plugins of
// the type DRAPlugin. The kubelet runs one Manager; workers of pods call it.
//
// Invariants:
//  1. A driver is asked to prepare a claim only for a pod that the claim is reserved for.
//  2. That a pod uses a claim is on the disk before a driver is asked: after a crash of the kubelet it is asked to give back what it may have prepared.
//  3. A claim is given back when the last of its pods has, and before the API server hears that the pod has ended: only then can the
//     devices be another pod's.
package dra

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"

	"keelson/kubelet/rootdir"
	"keelson/lib/keylock"
)

// Config is what a Manager works with.
type Config struct {
	// Dir is the kubelet's directory, and Plugins where plugins register, within it.
	Dir      rootdir.Dir
	Plugins  string
	NodeName string
	API      kubernetes.Interface
	// Wake has the pod of that UID tried again: a driver has come that it waits for.
	Wake func(uid string)
	// HealthChanged is told that Health has changed, of a pod's devices.
	HealthChanged func(uid string)
	Log           *slog.Logger
	// Grace is for how long the slices of a driver that has gone are kept; 0: 30 seconds.
	Grace time.Duration
	// Lapse is for how long drivers that were there before may take to tell the health of their devices; 0: 30 seconds.
	Lapse time.Duration
}

// defaultLapse is also for how long a report of health holds that does not say so, as in Kubernetes.
const defaultLapse = 30 * time.Second

// Manager is made by New. A nil Manager knows no devices.
type Manager struct {
	cfg   Config
	turns keylock.Locks // by claim
	metrics

	mu      sync.Mutex
	claims  map[string]*claim // by "namespace/name"
	drivers map[string][]*driver
	waiting map[string]map[string]bool // pods by the driver they wait for
	gone    map[string]time.Time       // drivers that have gone, and when
	news    chan struct{}              // capacity 1: gone has changed
	health  healths
}

// claim is a claim that pods of the node use. Who has its turn may change it, under mu.
type claim struct {
	record
	fresh bool // its drivers were asked in this life
}

// driver is a registered driver.
type driver struct {
	name, socket string
	conn         *grpc.ClientConn
	api          draapi.DRAPluginClient
	health       healthapi.DRAResourceHealthClient // nil: it does not tell the health of its devices
}

// New returns a manager without drivers. It starts nothing.
func New(c Config) *Manager {
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Lapse == 0 {
		c.Lapse = defaultLapse
	}
	return &Manager{
		cfg: c, metrics: newMetrics(), claims: map[string]*claim{}, drivers: map[string][]*driver{}, waiting: map[string]map[string]bool{}, gone: map[string]time.Time{},
		news: make(chan struct{}, 1), health: healths{of: map[string]map[place]report{}, news: make(chan struct{}, 1)},
	}
}

// Pods are the UIDs of the pods that use claims.
func (m *Manager) Pods() []string {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, c := range m.claims {
		out = append(out, c.Pods...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Names are the CDI names of the devices that a container's claims stand for. What is not prepared yet is prepared first.
func (m *Manager) Names(ctx context.Context, p *corev1.Pod, c *corev1.Container) ([]string, error) {
	wanted, err := requestsOf(p, c)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	names, ok := m.names(p, wanted)
	if !ok {
		if err := m.Prepare(ctx, p); err != nil {
			return nil, err
		}
		if names, ok = m.names(p, wanted); !ok {
			return nil, fmt.Errorf("the claims of container %s are not prepared", c.Name)
		}
	}
	return names, nil
}

// request is what a container wants of a claim; without a name all that the claim has. told is what the container's status calls it.
type request struct{ claim, name, told string }

func requestsOf(p *corev1.Pod, c *corev1.Container) ([]request, error) {
	var out []request
	for _, r := range c.Resources.Claims {
		i := slices.IndexFunc(p.Spec.ResourceClaims, func(of corev1.PodResourceClaim) bool { return of.Name == r.Name })
		if i < 0 {
			return nil, fmt.Errorf("container %s uses the claim %q, which the pod does not have", c.Name, r.Name)
		}
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != nil {
			out = append(out, request{*name, r.Request, joined(r.Name, r.Request)})
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		for _, of := range s.RequestMappings {
			if of.ContainerName == c.Name {
				out = append(out, request{s.ResourceClaimName, of.RequestName, joined(s.ResourceClaimName, of.RequestName)})
			}
		}
	}
	return out, nil
}

func joined(claim, request string) string {
	if request == "" {
		return claim
	}
	return claim + "/" + request
}

func (m *Manager) names(p *corev1.Pod, wanted []request) (names []string, ok bool) {
	if m == nil {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wanted {
		c := m.claims[p.Namespace+"/"+w.claim]
		if c == nil || !c.Prepared || !slices.Contains(c.Pods, string(p.UID)) {
			return nil, false
		}
		for _, d := range c.Devices {
			if !d.serves(w.name) {
				continue
			}
			for _, name := range d.CDI {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names, true
}
