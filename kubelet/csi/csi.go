// SPDX-License-Identifier: Apache-2.0

// Package csi mounts and unmounts the volumes of pods by the node's CSI drivers. Its callers: package plugin registers
// and unregisters drivers (Register, Unregister); package volume calls SetUp and TearDown for each pod; the node's
// status reads InUse, statistics read Stats. It never attaches a volume: a controller does.
//
// Records on the disk, with Kubernetes' names, say what is mounted, so that a restarted kubelet continues where it was:
//
//	plugins/kubernetes.io/csi/<driver>/<hash of handle>/   vol_data.json, globalmount: where a volume is staged
//	plugins/kubernetes.io/csi/volumeDevices/...            the same of block volumes
//	pods/<uid>/volumes/kubernetes.io~csi/<name>/           vol_data.json, published, mount: where it is published
//	pods/<uid>/volumeDevices/kubernetes.io~csi/<name>/     vol_data.json, published: of block volumes
//
// Invariants:
//  1. A record is on the disk before a driver is asked to mount, and is removed when it has unmounted. So the leftovers
//     of a crash are undone.
//  2. A volume that is attached is in the node's volumesInUse, as the server has it, before it is mounted, and until it
//     is unstaged.
//  3. Calls about one volume do not overlap. A driver that hangs delays the pods with its volumes and no others.
//  4. Drivers are called without a lock on what all volumes share, and each call has a time limit.
package csi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	events "k8s.io/client-go/tools/record"

	"keelson/kubelet/rootdir"
	"keelson/lib/signal"
)

// Objects reads the API objects that volumes need. They are shared: never modify them.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Token(ctx context.Context, namespace, serviceAccount string, r *authv1.TokenRequest) (*authv1.TokenRequest, error)
}

// Config holds the dependencies of a Mounter.
type Config struct {
	Dir      rootdir.Dir
	NodeName string
	API      kubernetes.Interface
	Objects  Objects
	// Node returns the last observed Node object; nil before the node is registered. It is shared.
	Node func() *corev1.Node
	// NodeChanged requests a write of the node's status, since InUse has changed.
	NodeChanged func()
	// Wake makes the pod's worker call SetUp again.
	Wake   func(uid string)
	Events events.EventRecorder
	Log    *slog.Logger
}

// Mounter holds the node's drivers and the volumes that they have mounted. Make it with New.
type Mounter struct {
	cfg    Config
	tokens tokens
	stats  measured
	kick   signal.Signal // requests a new write of the node's objects
	// attachWithin is how long a pod waits for the attachment before an event is recorded.
	attachWithin time.Duration
	drivers      *drivers
	published    *publisher
	counts       *counts

	mu      sync.Mutex
	volumes map[key]*volume
	news    chan struct{} // closed when the node's object has changed
}

// key identifies a volume: a driver and its volume handle.
type key struct{ driver, handle string }

// volume is the state of one volume. turn guards the fields below it; Mounter.mu guards pods and attached.
type volume struct {
	key
	turn chan struct{} // a mutex that can be awaited with a context: one token, absent while taken

	attached bool            // a controller attaches it: listed in status.volumesInUse
	pods     map[string]*use // by uid
	staged   bool            // perhaps only in part: it must be unstaged
	ready    bool            // staged in this run of the kubelet
	record   record          // of a staged volume
}

// use is the use of a volume by one pod.
type use struct {
	record
	names     map[string]bool // the pod's names of it
	published bool            // in this run of the kubelet
}

// New returns an empty Mounter. Call Load next.
func New(cfg Config) *Mounter {
	drivers := newDrivers()
	published := newPublisher(cfg.API, cfg.NodeName, drivers)
	return &Mounter{
		cfg:          cfg,
		tokens:       tokens{objects: cfg.Objects, of: map[string]map[string]token{}},
		stats:        measured{of: map[string]map[string]*reading{}},
		kick:         signal.New(),
		attachWithin: attachedWithin,
		drivers:      drivers,
		published:    published,
		counts: &counts{
			api:        cfg.API,
			drivers:    drivers,
			published:  published,
			registered: signal.New(),
			log:        cfg.Log,
		},
		volumes: map[key]*volume{},
		news:    make(chan struct{}),
	}
}

// Error says why a volume could not be mounted, in the words of FailedMount events.
type Error struct {
	Op     string // MountVolume.MountDevice; empty: Err says all
	Volume string
	Err    error
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s failed for volume %q : %v", e.Op, e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// InUse returns the attached volumes that are mounted on this node, or will be.
func (m *Mounter) InUse() []corev1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.UniqueVolumeName
	for _, v := range m.volumes {
		if v.attached {
			out = append(out, v.unique())
		}
	}
	slices.Sort(out)
	return out
}

// NodeUpdated takes a new version of the Node object.
func (m *Mounter) NodeUpdated(n *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.news)
	m.news = make(chan struct{})
	if n != nil && !m.published.isIn(n) {
		m.kick.Notify()
	}
}

// use records that a pod uses a volume. It requests a write of the node's status if the volume is new in volumesInUse.
func (m *Mounter) use(s *spec, uid string, attached bool) (v *volume, u *use) {
	m.mu.Lock()
	v = m.volumeLocked(s.key)
	announce := attached && !v.attached
	v.attached = v.attached || attached
	if u = v.pods[uid]; u == nil {
		u = &use{names: map[string]bool{}}
		v.pods[uid] = u
	}
	u.record = s.record(m.cfg.NodeName, attached)
	u.names[s.Name] = true
	m.mu.Unlock()
	if announce {
		m.cfg.NodeChanged()
	}
	return v, u
}

func (m *Mounter) volumeLocked(k key) *volume {
	v := m.volumes[k]
	if v == nil {
		v = &volume{key: k, turn: make(chan struct{}, 1), pods: map[string]*use{}}
		v.turn <- struct{}{}
		m.volumes[k] = v
	}
	return v
}

// drop removes a pod's use, and with the last use the volume. The caller holds the volume's turn.
func (m *Mounter) drop(v *volume, uid string) {
	m.mu.Lock()
	delete(v.pods, uid)
	gone := len(v.pods) == 0 && !v.staged
	attached := v.attached
	if gone && m.volumes[v.key] == v {
		delete(m.volumes, v.key)
	}
	m.mu.Unlock()
	if gone && attached {
		m.cfg.NodeChanged()
	}
}

// others reports whether a pod other than uid uses the volume.
func (m *Mounter) others(v *volume, uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := range v.pods {
		if other != uid {
			return true
		}
	}
	return false
}

// begin waits for the volume's turn, until ctx ends.
func (m *Mounter) begin(ctx context.Context, v *volume) error {
	select {
	case <-v.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("an operation with the given key %s already exists: %w", v.unique(), ctx.Err())
	}
}

func (v *volume) end() { v.turn <- struct{}{} }
