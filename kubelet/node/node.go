// SPDX-License-Identifier: Apache-2.0

// Package node registers this machine as a Node object and keeps its status and its lease up to date. The kubelet runs
// one Keeper. It writes the status when it changes and at least every 5 minutes, and renews the lease at its interval.
// It never touches pods.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/client"
	"keelson/cri"
)

// Config describes the node.
type Config struct {
	Client   *client.Client
	Runtime  cri.Client
	Events   record.EventRecorder
	Log      *slog.Logger
	Wanted   Wanted
	MaxPods  int
	Reserved corev1.ResourceList
	// Kept returns how much of a capacity the eviction thresholds keep free; nil: nothing.
	Kept func(capacity corev1.ResourceList) corev1.ResourceList
	// Pressures returns the pressure conditions that are true; nil: none.
	Pressures func() []corev1.NodeConditionType
	// Plugins returns the extended resources of device plugins, which override those in the node's status; nil: there
	// are none.
	Plugins func() (capacity, allocatable corev1.ResourceList)
	// InUse returns the attached volumes that the node uses (status.volumesInUse); nil: none.
	InUse func() []corev1.UniqueVolumeName
	// Updated is called with each new version of the Node object, and with nil when it was deleted. It may be nil.
	Updated func(*corev1.Node)
	// Back is called when the API server answers again after the node was silent for two intervals of its lease: what
	// watches have delivered is old. It may be nil.
	Back        func(context.Context)
	Register    bool
	Version     string // v1.37.2+keelson
	LeaseEvery  time.Duration
	StatusEvery time.Duration
}

// AnnotationRemoved is set on a Node object before it is deleted for good. The kubelet, if it still runs, then does not
// create it again.
const AnnotationRemoved = "keelson.dev/removed"

// Keeper keeps one Node object. Make it with New.
type Keeper struct {
	*Self

	cfg      Config
	kept     corev1.ResourceList
	port     int         // of the kubelet's server; set by Register
	keep     sync.Mutex  // held to compare current and replace it
	removed  atomic.Bool // the node was removed from the cluster for good
	recorded recorded    // used by the goroutine that writes the status: Register, then Run

	mu   sync.Mutex
	last time.Time // of the last status write
}

// New returns a Keeper of the Node object of a node. It starts nothing.
func New(self *Self, cfg Config) *Keeper {
	k := &Keeper{
		Self:     self,
		cfg:      cfg,
		recorded: nothingRecorded(),
	}
	if cfg.Kept != nil {
		k.kept = cfg.Kept(self.machine.Capacity(cfg.MaxPods))
	}
	return k
}

// store keeps the last observed object and calls cfg.Updated.
func (k *Keeper) store(n *corev1.Node) {
	k.current.Store(n)
	if k.cfg.Updated != nil {
		k.cfg.Updated(n)
	}
}

// written keeps the answer to a write, unless a newer version was observed before.
func (k *Keeper) written(n *corev1.Node) {
	k.keep.Lock()
	defer k.keep.Unlock()
	if cur := k.current.Load(); cur != nil && cur.UID == n.UID && !older(n, cur) {
		k.store(n)
	}
}

// Allocatable returns the node's allocatable resources: what its Node object says, or what it will say.
func (k *Keeper) Allocatable() corev1.ResourceList {
	n := k.current.Load()
	if n != nil && len(n.Status.Allocatable) > 0 {
		return n.Status.Allocatable
	}
	return k.allocatable(n)
}

// Register creates the Node object, or takes over an existing one, and writes its status. port is that of the kubelet's
// server. It retries until ctx is done.
func (k *Keeper) Register(ctx context.Context, port int) error {
	k.port = port
	wait := 100 * time.Millisecond
	for {
		err := k.register(ctx)
		if err == nil {
			k.cfg.Log.Info("node is registered", "node", k.name)
			return nil
		}
		k.cfg.Log.Warn("register node", "node", k.name, "err", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("register node %s: %w", k.name, err)
		case <-time.After(wait):
		}
		wait = min(2*wait, 7*time.Second)
	}
}

func (k *Keeper) register(ctx context.Context) error {
	api := k.cfg.Client.CoreV1().Nodes()
	want := k.cfg.Wanted.object(k.name, k.machine.Arch)
	want.Status = k.status(ctx, nil)
	var got *corev1.Node
	var err error
	if k.cfg.Register {
		got, err = api.Create(ctx, want, metav1.CreateOptions{})
	}
	if !k.cfg.Register || apierrors.IsAlreadyExists(err) {
		if got, err = api.Get(ctx, k.name, metav1.GetOptions{}); err == nil {
			got, err = k.takeOver(ctx, got, want)
		}
	}
	if err != nil {
		return err
	}
	k.store(got)
	return k.write(ctx, true)
}

// takeOver updates labels and pod CIDRs of a Node object that an earlier run created.
func (k *Keeper) takeOver(ctx context.Context, have, want *corev1.Node) (*corev1.Node, error) {
	next := k.cfg.Wanted.takeOver(have, want)
	if maps.Equal(have.Labels, next.Labels) && maps.Equal(have.Annotations, next.Annotations) &&
		have.Spec.PodCIDR == next.Spec.PodCIDR {
		return have, nil
	}
	patch, err := diff(
		corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: have.Labels, Annotations: have.Annotations}, Spec: have.Spec},
		corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: next.Labels, Annotations: next.Annotations}, Spec: next.Spec})
	if err == nil {
		patch, err = onlyOf(have, patch)
	}
	if err != nil {
		return nil, err
	}
	return k.cfg.Client.CoreV1().Nodes().Patch(ctx, k.name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
}

func diff(before, after corev1.Node) ([]byte, error) {
	a, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	b, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	return strategicpatch.CreateTwoWayMergePatch(a, b, corev1.Node{})
}

// onlyOf returns the patch with the condition that the object is still have. A difference to an older version would
// leave what others wrote since then: a patch that does not mention Ready keeps Ready=Unknown.
func onlyOf(have *corev1.Node, patch []byte) ([]byte, error) {
	var body map[string]any
	if err := json.Unmarshal(patch, &body); err != nil {
		return nil, fmt.Errorf("decode patch of node: %w", err)
	}
	metadata, ok := body["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		body["metadata"] = metadata
	}
	metadata["uid"] = have.UID
	metadata["resourceVersion"] = have.ResourceVersion
	return json.Marshal(body)
}

// maxConflicts is how often one write of the status starts again from the server's version.
const maxConflicts = 3

// write patches the status if it differs, or if force is set and it is old. The patch holds for the version that it was
// compared with: on a conflict the comparison starts again with the server's version.
func (k *Keeper) write(ctx context.Context, force bool) error {
	have := k.current.Load()
	if have == nil {
		return nil
	}
	for try := 0; ; try++ {
		err := k.writeOver(ctx, have, force)
		if !apierrors.IsConflict(err) || try == maxConflicts {
			return err
		}
		if have, err = k.read(ctx); err != nil {
			return err
		}
	}
}

// read returns the server's version of the Node object, or a newer one that was observed meanwhile, and keeps it.
func (k *Keeper) read(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	live, err := k.cfg.Client.CoreV1().Nodes().Get(ctx, k.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", k.name, err)
	}
	k.keep.Lock()
	defer k.keep.Unlock()
	if cur := k.current.Load(); cur != nil && cur.UID == live.UID && older(live, cur) {
		return cur, nil
	}
	k.store(live)
	return live, nil
}

// writeOver patches the status of have.
func (k *Keeper) writeOver(ctx context.Context, have *corev1.Node, force bool) error {
	next := k.status(ctx, have)
	k.mu.Lock()
	due := force && time.Since(k.last) >= k.statusEvery()
	k.mu.Unlock()
	if equality.Semantic.DeepEqual(withoutHeartbeat(have.Status), withoutHeartbeat(next)) && !due {
		k.recordEvents(have, &next)
		return nil
	}
	patch, err := diff(corev1.Node{Status: have.Status}, corev1.Node{Status: next})
	if err != nil {
		return err
	}
	if string(patch) == "{}" { // already written within this second, also the heartbeat
		k.recordEvents(have, &next)
		return nil
	}
	if patch, err = replaceAddresses(patch, next.Addresses); err != nil {
		return err
	}
	if patch, err = onlyOf(have, patch); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	got, err := k.cfg.Client.CoreV1().Nodes().Patch(ctx, k.name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write status of node %s: %w", k.name, err)
	}
	k.mu.Lock()
	k.last = time.Now()
	k.mu.Unlock()
	k.written(got)
	k.recordEvents(have, &next)
	return nil
}

func (k *Keeper) statusEvery() time.Duration {
	if k.cfg.StatusEvery == 0 {
		return 5 * time.Minute
	}
	return k.cfg.StatusEvery
}

func withoutHeartbeat(s corev1.NodeStatus) corev1.NodeStatus {
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		s.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	return s
}

// Run watches the Node object, renews the lease and writes the status until ctx is done. Call Register first.
func (k *Keeper) Run(ctx context.Context) {
	f := k.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", k.name).String()
	}})
	inf := coreinformers.New(f.Scoped()).Nodes().Informer()
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.observe(o) },
		UpdateFunc: func(_, o any) { k.observe(o) },
		DeleteFunc: k.gone,
	}); err != nil {
		k.cfg.Log.Error("watch own node", "err", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { inf.RunWithContext(ctx) })
	wg.Go(func() { k.leases(ctx) })
	k.statuses(ctx)
	wg.Wait()
}

// gone handles the deletion of the Node object. The kubelet creates it again, unless it had AnnotationRemoved.
func (k *Keeper) gone(o any) {
	if lost, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = lost.Obj
	}
	n, ok := o.(*corev1.Node)
	if !ok || n.Name != k.name {
		return
	}
	if n.Annotations[AnnotationRemoved] != "" && !k.removed.Swap(true) {
		k.cfg.Log.Warn("this node was removed from the cluster: it comes back with a token only, after keelson down "+
			"--purge", "node", k.name)
	}
	k.keep.Lock()
	k.store(nil)
	k.keep.Unlock()
	k.Changed()
}

func (k *Keeper) observe(o any) {
	node, ok := o.(*corev1.Node)
	if !ok || node.Name != k.name {
		return
	}
	k.removed.Store(false)
	k.keep.Lock()
	defer k.keep.Unlock()
	cur := k.current.Load()
	if cur != nil && cur.UID == node.UID && older(node, cur) {
		return
	}
	k.store(node)
	if cur == nil || node.ResourceVersion == "" || node.ResourceVersion != cur.ResourceVersion {
		k.Changed() // another client wrote: our fields may need repair
	}
}

func (k *Keeper) statuses(ctx context.Context) {
	timer := time.NewTimer(k.statusEvery())
	defer timer.Stop()
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-k.changed.C():
		case <-timer.C:
			due = true
		}
		var err error
		if k.removed.Load() {
			timer.Reset(k.statusEvery())
			continue
		}
		if k.current.Load() == nil {
			err = k.register(ctx)
		} else {
			err = k.write(ctx, due)
		}
		next := k.statusEvery()
		if err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("write node status", "err", err)
			next = 5 * time.Second
			if apierrors.IsNotFound(err) {
				k.store(nil)
			}
		}
		timer.Reset(next)
	}
}

func (k *Keeper) images(ctx context.Context) []corev1.ContainerImage {
	resp, err := k.cfg.Runtime.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil
	}
	var out []corev1.ContainerImage
	for _, img := range resp.GetImages() {
		names := append(slices.Clone(img.GetRepoDigests()), img.GetRepoTags()...)
		if len(names) > 0 {
			// no image is that large
			out = append(out, corev1.ContainerImage{Names: names[:min(len(names), 5)], SizeBytes: int64(img.GetSize())})
		}
	}
	slices.SortFunc(out, func(a, b corev1.ContainerImage) int {
		if a.SizeBytes != b.SizeBytes {
			return int(min(max(b.SizeBytes-a.SizeBytes, -1), 1))
		}
		return slices.Compare(a.Names, b.Names)
	})
	return out[:min(len(out), 50)]
}
