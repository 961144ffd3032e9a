// SPDX-License-Identifier: Apache-2.0

// Package dra implements Dynamic Resource Allocation on the node. Drivers prepare the ResourceClaims of a pod before
// its containers start; containers get the CDI device IDs that the drivers return; drivers unprepare a claim when no
// container of its pods runs any more. Drivers register as plugins of the type DRAPlugin. The kubelet runs one Manager;
// workers of pods call it.
//
// Invariants:
//  1. A driver prepares a claim only for a pod that the claim is reserved for.
//  2. The use of a claim by a pod is recorded on disk before a driver is called: after a crash of the kubelet the claim
//     is unprepared in any case.
//  3. A claim is unprepared with the last of its pods, and before the API server learns that the pod has ended: only
//     then can another pod get the devices.
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
	"keelson/lib/signal"
)

// Config is what a Manager works with.
type Config struct {
	// Dir is the kubelet's root directory, and Plugins the directory in it where plugins register.
	Dir      rootdir.Dir
	Plugins  string
	NodeName string
	API      kubernetes.Interface
	// Wake retries the pod of that UID: a driver that it waits for has registered.
	Wake func(uid string)
	// HealthChanged is called when the health of a pod's devices has changed.
	HealthChanged func(uid string)
	Log           *slog.Logger
	// WipingDelay is for how long the ResourceSlices of an unregistered driver are kept; 0: 30 seconds, as in
	// Kubernetes.
	WipingDelay time.Duration
	// HealthTimeout is for how long drivers may take to report the health of their devices after a start of the
	// kubelet; 0: 30 seconds.
	HealthTimeout time.Duration
}

// defaultHealthTimeout is also the timeout of a report without one of its own, as in Kubernetes.
const defaultHealthTimeout = 30 * time.Second

// Manager is made by New. A nil Manager knows no devices.
type Manager struct {
	cfg        Config
	claimLocks keylock.Locks // by claim
	metrics

	mu                  sync.Mutex
	claims              map[string]*claim // by "namespace/name"
	drivers             map[string][]*driver
	waitingPods         map[string]map[string]bool // by driver: the UIDs of pods that wait for it
	unregistered        map[string]time.Time       // drivers that have unregistered, and when
	unregisteredChanged signal.Signal              // unregistered has changed
	health              healthInfo
}

// claim is a ResourceClaim that pods of the node use. It is changed under mu by the holder of its lock.
type claim struct {
	record
	preparedInThisRun bool // since the kubelet started
}

// driver is a registered driver.
type driver struct {
	name, socket string
	conn         *grpc.ClientConn
	api          draapi.DRAPluginClient
	health       healthapi.DRAResourceHealthClient // nil: it has no health service
}

// New returns a manager without drivers. It starts nothing.
func New(c Config) *Manager {
	if c.WipingDelay == 0 {
		c.WipingDelay = 30 * time.Second
	}
	if c.HealthTimeout == 0 {
		c.HealthTimeout = defaultHealthTimeout
	}
	return &Manager{
		cfg:                 c,
		metrics:             newMetrics(),
		claims:              map[string]*claim{},
		drivers:             map[string][]*driver{},
		waitingPods:         map[string]map[string]bool{},
		unregistered:        map[string]time.Time{},
		unregisteredChanged: signal.New(),
		health: healthInfo{
			byDriver: map[string]map[deviceKey]healthReport{},
			changed:  signal.New(),
		},
	}
}

// Pods returns the UIDs of the pods that use claims.
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

// CDIDeviceIDs returns the CDI device IDs of a container's claims. It prepares claims that are not prepared yet.
func (m *Manager) CDIDeviceIDs(ctx context.Context, p *corev1.Pod, container *corev1.Container) ([]string, error) {
	wanted, err := requestsOf(p, container)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	names, ok := m.cdiDeviceIDs(p, wanted)
	if !ok {
		if err := m.Prepare(ctx, p); err != nil {
			return nil, err
		}
		if names, ok = m.cdiDeviceIDs(p, wanted); !ok {
			return nil, fmt.Errorf("the claims of container %s are not prepared", container.Name)
		}
	}
	return names, nil
}

// request is a request of a claim that a container uses; without a name it uses all of them. statusName is its name in
// the container's status.
type request struct{ claim, name, statusName string }

func requestsOf(pod *corev1.Pod, container *corev1.Container) ([]request, error) {
	var out []request
	for _, r := range container.Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(of corev1.PodResourceClaim) bool {
			return of.Name == r.Name
		})
		if i < 0 {
			return nil, fmt.Errorf("container %s uses the claim %q, which the pod does not have", container.Name,
				r.Name)
		}
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != nil {
			out = append(out, request{*name, r.Request, requestRef(r.Name, r.Request)})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, of := range s.RequestMappings {
			if of.ContainerName == container.Name {
				out = append(out,
					request{s.ResourceClaimName, of.RequestName, requestRef(s.ResourceClaimName, of.RequestName)})
			}
		}
	}
	return out, nil
}

func requestRef(claim, request string) string {
	if request == "" {
		return claim
	}
	return claim + "/" + request
}

func (m *Manager) cdiDeviceIDs(p *corev1.Pod, wanted []request) (names []string, ok bool) {
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
