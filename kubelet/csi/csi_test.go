// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	events "k8s.io/client-go/tools/record"

	"keelson/api/apitest"
	"keelson/client/clienttest"
	"keelson/kubelet/csi/csitest"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
	"keelson/lib/linux"
	"keelson/lib/signal"
	"keelson/lib/waittest"
)

// objects are secrets and tokens in memory.
type objects struct{ tokens int }

func (o *objects) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return &corev1.Secret{Data: map[string][]byte{"from": []byte(namespace + "/" + name)}}, nil
}

func (o *objects) Token(_ context.Context, _, _ string, r *authv1.TokenRequest) (*authv1.TokenRequest, error) {
	o.tokens++
	out := r.DeepCopy()
	out.Status = authv1.TokenRequestStatus{
		Token:               fmt.Sprintf("token-%d", o.tokens),
		ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
	}
	return out, nil
}

// bench is a kubelet's directory with a driver.
type bench struct {
	t       *testing.T
	m       *Mounter
	api     *fake.Clientset
	driver  *csitest.Driver
	stop    context.CancelFunc
	events  *events.FakeRecorder
	changed signal.Signal // the mounter asks for a write of the node's status
	within  time.Duration // how long a driver that hangs is waited for; 0: as long as the kubelet does

	mu    sync.Mutex
	node  *corev1.Node
	woken []string
}

const driverName = "dirs.example.com"

func newBench(t *testing.T, objs ...runtime.Object) *bench {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep", 25))
	for _, d := range []string{"plugins", "plugins_registry", "pods"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-uid"}}
	b := &bench{
		t:       t,
		api:     clienttest.New(append(objs, node)...),
		node:    node,
		events:  events.NewFakeRecorder(100),
		changed: signal.New(),
	}
	b.driver = &csitest.Driver{
		Name:       driverName,
		NodeID:     "id-of-n",
		Dir:        t.TempDir(),
		Kubelet:    dir,
		Named:      rootdir.Standard,
		Mounts:     os.Getuid() == 0,
		MaxVolumes: 7,
		Topology:   map[string]string{"topology.dirs.example.com/node": "n"},
		Can: []csiapi.NodeServiceCapability_RPC_Type{
			csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		},
	}
	b.m = b.mounter()
	t.Cleanup(func() {
		mounts, err := linux.Mounts()
		if err != nil {
			t.Error(err)
		}
		for _, m := range slices.Backward(mounts) {
			if strings.HasPrefix(m.Point, dir) {
				if err := linux.Unmount(m.Point); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return b
}

// mounter is one of a kubelet that was just started.
func (b *bench) mounter() *Mounter {
	b.t.Helper()
	m := New(Config{
		Dir:      rootdir.Dir(b.driver.Kubelet),
		NodeName: "n",
		API:      b.api,
		Objects:  &objects{},
		Events:   b.events,
		Log:      slog.New(slog.DiscardHandler),
		Node: func() *corev1.Node {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.node
		},
		NodeChanged: b.changed.Notify,
		Wake: func(uid string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.woken = append(b.woken, uid)
		},
	})
	var pods []string
	entries, err := os.ReadDir(filepath.Join(b.driver.Kubelet, "pods"))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		pods = append(pods, e.Name())
	}
	if err := m.Load(pods); err != nil {
		b.t.Fatal(err)
	}
	return m
}

// serve starts the driver and registers it.
func (b *bench) serve() {
	b.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		if err := b.driver.Serve(ctx); err != nil {
			b.t.Error(err)
		}
	}()
	b.stop = func() {
		stop()
		<-done
	}
	b.t.Cleanup(b.stop)
	waittest.Until(b.t, "the driver's sockets are there", func() bool {
		_, err := os.Lstat(filepath.Join(b.driver.Kubelet, "plugins_registry", driverName+"-reg.sock"))
		return err == nil
	})
	b.register(b.m)
}

func (b *bench) info() plugin.Info {
	return plugin.Info{
		Socket:   driverName + "-reg.sock",
		Name:     driverName,
		Endpoint: filepath.Join(b.driver.Named, "plugins", driverName, "csi.sock"),
		Versions: []string{"1.0.0"},
	}
}

func (b *bench) register(m *Mounter) {
	b.t.Helper()
	if err := m.Register(b.t.Context(), b.info()); err != nil {
		b.t.Fatal(err)
	}
	if b.within == 0 {
		return
	}
	m.drivers.get(driverName).within = b.within
}

// announced waits until the node's volumesInUse are to have the volume.
func (b *bench) announced(name corev1.UniqueVolumeName) {
	b.t.Helper()
	for late := time.After(time.Minute); !slices.Contains(b.m.InUse(), name); {
		select {
		case <-b.changed.C():
		case <-late:
			b.t.Fatalf("volume %s is not announced", name)
		}
	}
}

func (b *bench) setUp(r Request) Volume {
	b.t.Helper()
	v, err := b.m.SetUp(b.t.Context(), r)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

func (b *bench) calls(want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.driver.Calls()); diff != "" {
		b.t.Errorf("calls of the driver (-want +got):\n%s", diff)
	}
}

// empty looks whether anything of volumes is left on the disk.
func (b *bench) empty() {
	b.t.Helper()
	for _, dir := range []string{"pods/*/" + mountsOf, "pods/*/" + devicesOf, staging + "/*"} {
		for _, what := range []string{"/*"} {
			found, err := filepath.Glob(filepath.Join(b.driver.Kubelet, dir+what))
			if err != nil {
				b.t.Fatal(err)
			}
			for _, f := range found {
				b.t.Errorf("left behind: %s", f)
			}
		}
	}
	if n := len(b.m.volumes); n > 0 {
		b.t.Errorf("%d volumes are still known", n)
	}
}

func pod(uid string) *corev1.Pod {
	return apitest.Pod("ns/p-"+uid, apitest.UID(uid), func(p *corev1.Pod) { p.Spec.ServiceAccountName = "sa" })
}

func claimed(uid, pv, handle string) Request {
	return Request{
		Pod:   pod(uid),
		Name:  "data",
		Claim: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + pv}},
		PV: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pv},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes:  []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				MountOptions: []string{"noatime"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver:               driverName,
					VolumeHandle:         handle,
					FSType:               "ext4",
					VolumeAttributes:     map[string]string{"kind": "dir"},
					NodeStageSecretRef:   &corev1.SecretReference{Namespace: "s", Name: "stage"},
					NodePublishSecretRef: &corev1.SecretReference{Namespace: "s", Name: "publish"},
				}},
			},
		},
	}
}

func noAttach(change ...func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(false),
		},
	}
	for _, c := range change {
		c(&d.Spec)
	}
	return d
}

func TestRegistration(t *testing.T) {
	bench := newBench(t)
	bench.serve()
	look := func() (*corev1.Node, *storagev1.CSINode) {
		n, err := bench.api.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := bench.api.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n, c
	}
	node, csiNode := look()
	if node.Labels["topology.dirs.example.com/node"] != "n" ||
		node.Annotations[nodeIDs] != `{"dirs.example.com":"id-of-n"}` {
		t.Errorf("node: labels %v, annotations %v", node.Labels, node.Annotations)
	}
	want := []storagev1.CSINodeDriver{{
		Name:         driverName,
		NodeID:       "id-of-n",
		TopologyKeys: []string{"topology.dirs.example.com/node"},
		Allocatable:  &storagev1.VolumeNodeResources{Count: new(int32(7))},
	}}
	if diff := cmp.Diff(want, csiNode.Spec.Drivers); diff != "" || csiNode.OwnerReferences[0].UID != "n-uid" {
		t.Errorf("CSINode of %v: %s", csiNode.OwnerReferences, diff)
	}
	// An older socket of the same driver goes: nothing happens.
	old := bench.info()
	old.Socket = "old.sock"
	bench.m.Unregister(t.Context(), old)
	if bench.m.drivers.get(driverName) == nil {
		t.Error("the driver went with another socket of its name")
	}
	bench.m.Unregister(t.Context(), bench.info())
	node, csiNode = look()
	if len(csiNode.Spec.Drivers) != 0 || node.Annotations[nodeIDs] != "" ||
		node.Labels["topology.dirs.example.com/node"] != "n" {
		t.Errorf("after its end: drivers %v, annotations %v, labels %v", csiNode.Spec.Drivers, node.Annotations,
			node.Labels)
	}
	// A label that says something else is not overwritten.
	bench.driver.Topology = map[string]string{"topology.dirs.example.com/node": "m"}
	err := bench.m.Register(t.Context(), bench.info())
	if err == nil ||
		!strings.Contains(err.Error(),
			`detected topology value collision: driver reported "topology.dirs.example.com/node":"m" but existing label is "topology.dirs.example.com/node":"n"`) {
		t.Errorf("got %v", err)
	}
	if bench.m.drivers.get(driverName) != nil {
		t.Error("a driver that was refused is registered")
	}
}

func TestDriversThatAreRefused(t *testing.T) {
	bench := newBench(t)
	bench.serve()
	for name, c := range map[string]struct {
		change func(*plugin.Info)
		driver func()
		want   string
	}{
		"name":    {func(i *plugin.Info) { i.Name = "../x" }, nil, "is no name of a CSI driver"},
		"version": {func(i *plugin.Info) { i.Versions = []string{"0.3.0"} }, nil, "none of 1.x"},
		"endpoint": {
			func(i *plugin.Info) { i.Endpoint = "/run/docker.sock" }, nil, "is not below the kubelet's directory",
		},
		"way out": {func(i *plugin.Info) {
			i.Endpoint = "/var/lib/kubelet/../../../run/docker.sock"
		}, nil, "is not below the kubelet's directory"},
		"no id":   {func(*plugin.Info) {}, func() { bench.driver.NodeID = "" }, "the node has no id"},
		"long id": {func(*plugin.Info) {}, func() { bench.driver.NodeID = strings.Repeat("x", 300) }, "more than 256"},
		"label": {func(*plugin.Info) {}, func() {
			bench.driver.NodeID = "n"
			bench.driver.Topology = map[string]string{"a b": "c"}
		}, "topology"},
	} {
		i := bench.info()
		c.change(&i)
		if c.driver != nil {
			c.driver()
		}
		if err := bench.m.Register(t.Context(), i); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		bench.driver.NodeID = "id-of-n"
		bench.driver.Topology = nil
	}
}

func TestLifeOfAVolume(t *testing.T) {
	bench := newBench(t, noAttach())
	bench.serve()
	first := bench.setUp(claimed("u1", "pv", "handle"))
	if first.Path != filepath.Join(bench.driver.Kubelet, "pods/u1/volumes/kubernetes.io~csi/pv/mount") ||
		!first.OwnedByGroup || !first.Fresh {
		t.Errorf("got %+v", first)
	}
	bench.calls("NodeStageVolume handle", "NodePublishVolume handle")
	stage := bench.driver.Last("NodeStageVolume").(*csiapi.NodeStageVolumeRequest)
	if !strings.HasPrefix(stage.GetStagingTargetPath(),
		"/var/lib/kubelet/plugins/kubernetes.io/csi/dirs.example.com/") ||
		!strings.HasSuffix(stage.GetStagingTargetPath(), "/globalmount") ||
		stage.GetSecrets()["from"] != "s/stage" || stage.GetVolumeCapability().GetMount().GetFsType() != "ext4" ||
		stage.GetVolumeContext()["kind"] != "dir" {
		t.Errorf("staged by %v", stage)
	}
	publish := bench.driver.Last("NodePublishVolume").(*csiapi.NodePublishVolumeRequest)
	if publish.GetTargetPath() != "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pv/mount" ||
		publish.GetStagingTargetPath() != stage.GetStagingTargetPath() ||
		publish.GetSecrets()["from"] != "s/publish" ||
		publish.GetVolumeCapability().GetMount().GetMountFlags()[0] != "noatime" ||
		publish.GetVolumeCapability().GetAccessMode().
			GetMode() != csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("published by %v", publish)
	}
	bench.setUp(claimed("u1", "pv", "handle"))
	bench.calls()
	bench.setUp(claimed("u2", "pv", "handle"))
	bench.calls("NodePublishVolume handle")
	if bench.driver.Mounts {
		if err := os.WriteFile(filepath.Join(first.Path, "file"), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(bench.driver.Kubelet,
			"pods/u2/volumes/kubernetes.io~csi/pv/mount/file")); err != nil || string(got) != "kept" {
			t.Errorf("the other pod reads %q, %v", got, err)
		}
	}
	tearDown := func(uid string) {
		t.Helper()
		if err := bench.m.TearDown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	tearDown("u1")
	bench.calls("NodeUnpublishVolume handle")
	tearDown("u2")
	bench.calls("NodeUnpublishVolume handle", "NodeUnstageVolume handle")
	tearDown("u2")
	bench.calls()
	bench.empty()
}

func TestAttachedVolumes(t *testing.T) {
	bench := newBench(t)
	bench.serve()
	r := claimed("u", "pv", "handle")
	got := make(chan error)
	go func() { // ends with the volume's attachment
		_, err := bench.m.SetUp(t.Context(), r)
		got <- err
	}()
	name := corev1.UniqueVolumeName("kubernetes.io/csi/dirs.example.com^handle")
	bench.announced(name)
	say := func(inUse, attached bool) {
		node := bench.node.DeepCopy()
		node.Status = corev1.NodeStatus{}
		if inUse {
			node.Status.VolumesInUse = []corev1.UniqueVolumeName{name}
		}
		if attached {
			node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: name}}
		}
		bench.mu.Lock()
		bench.node = node
		bench.mu.Unlock()
		bench.m.NodeUpdated(node)
	}
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentID(key{driverName, "handle"}, "n")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n"},
	}
	a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "sdx"}}
	if _, err := bench.api.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	say(false, true) // attached, and the server does not know yet that it is used
	bench.calls()
	say(true, false)
	bench.calls()
	say(true, true)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	bench.calls("NodeStageVolume handle", "NodePublishVolume handle")
	if c := bench.driver.Last(
		"NodePublishVolume").(*csiapi.NodePublishVolumeRequest).GetPublishContext(); c["device"] != "sdx" {
		t.Errorf("published with the context %v", c)
	}
	// A restarted kubelet still uses it.
	bench.m = bench.mounter()
	if !slices.Contains(bench.m.InUse(), name) {
		t.Error("a restart forgot that the volume is used")
	}
	bench.register(bench.m)
	if err := bench.m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if len(bench.m.InUse()) != 0 {
		t.Errorf("in use after its end: %v", bench.m.InUse())
	}
	bench.empty()
	// A pod that is deleted while it waits gives back what it announced.
	say(false, false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with its attachment's wait
		_, err := bench.m.SetUp(ctx, claimed("w", "pv", "handle"))
		got <- err
	}()
	bench.announced(name)
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := bench.m.TearDown(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if len(bench.m.InUse()) != 0 {
		t.Errorf("in use although no pod has it: %v", bench.m.InUse())
	}
}

func TestRestartedKubelet(t *testing.T) {
	bench := newBench(t, noAttach())
	bench.serve()
	bench.setUp(claimed("u1", "pv", "handle"))
	bench.setUp(claimed("u2", "other", "second"))
	bench.driver.Calls()
	bench.m = bench.mounter()
	if bench.driver.Mounts {
		bench.setUp(claimed("u1", "pv", "handle")) // it is known from the disk, before the driver is
		if bench.register(bench.m); !slices.Equal(bench.woken, []string{"u1"}) {
			t.Errorf("the driver came back, and %v was woken", bench.woken)
		}
	} else {
		bench.register(bench.m)
	}
	bench.setUp(claimed("u1", "pv", "handle"))
	if bench.driver.Mounts {
		bench.calls()
	} else {
		bench.driver.Calls()
	}
	// Killed between two steps: a volume is staged, and no pod has it.
	if err := os.RemoveAll(
		filepath.Join(bench.driver.Kubelet, "pods/u1/volumes/kubernetes.io~csi/pv/vol_data.json")); err != nil {
		t.Fatal(err)
	}
	bench.m = bench.mounter()
	bench.register(bench.m)
	bench.m.unstageUnused(t.Context())
	bench.calls("NodeUnstageVolume handle")
	if err := bench.m.TearDown(t.Context(), "u2"); err != nil {
		t.Fatal(err)
	}
	bench.calls("NodeUnpublishVolume second", "NodeUnstageVolume second")
}

func TestDriversThatFail(t *testing.T) {
	bench := newBench(t, noAttach())
	bench.within = 3 * time.Second // enough for the calls that are answered
	request := claimed("u", "pv", "handle")
	fails := func(want string) {
		t.Helper()
		if _, err := bench.m.SetUp(t.Context(), request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	fails(
		`MountVolume.MountDevice failed for volume "pv" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name dirs.example.com not found in the list of registered CSI drivers`)
	bench.serve()
	if !slices.Equal(bench.woken, []string{"u"}) {
		t.Errorf("the driver came, and %v was woken", bench.woken)
	}
	bench.driver.Break("NodeStageVolume", status.Error(codes.Internal, "no disk "+strings.Repeat("x", 5000)))
	fails(`MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = no disk xxx`)
	if _, err := bench.m.SetUp(t.Context(), request); len(err.Error()) > 1500 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	bench.driver.Break("NodeStageVolume", nil)
	bench.driver.Break("NodePublishVolume", csitest.ErrHang)
	fails(`MountVolume.SetUp failed for volume "pv" : rpc error: code = DeadlineExceeded`)
	// While one volume hangs, another one is mounted.
	bench.driver.Calls()
	done := make(chan error)
	go func() { // ends after the driver's time
		_, err := bench.m.SetUp(t.Context(), request)
		done <- err
	}()
	waittest.Until(bench.t, "the driver hangs", func() bool {
		return slices.Contains(bench.driver.Calls(), "NodePublishVolume handle")
	})
	bench.driver.Break("NodePublishVolume", nil)
	bench.setUp(claimed("v", "second", "second"))
	if err := <-done; err == nil {
		t.Error("a driver that hung has published")
	}
	bench.driver.Calls()
	// What was half done is undone, and a driver that is away holds up nothing but this.
	bench.driver.Break("NodeUnstageVolume", status.Error(codes.Internal, "busy"))
	if err := bench.m.TearDown(t.Context(), "u"); err == nil ||
		!strings.Contains(err.Error(),
			`UnmountVolume.TearDown failed for volume "pv" : UnmountDevice failed: rpc error: code = Internal desc = busy`) {
		t.Errorf("got %v", err)
	}
	bench.driver.Break("NodeUnstageVolume", nil)
	bench.m.Unregister(t.Context(), bench.info())
	if err := bench.m.TearDown(t.Context(), "u"); err == nil ||
		!strings.Contains(err.Error(), "not found in the list of registered CSI drivers") {
		t.Errorf("got %v", err)
	}
	bench.register(bench.m)
	for _, uid := range []string{"u", "v"} {
		if err := bench.m.TearDown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	bench.empty()
}

func TestInlineVolumes(t *testing.T) {
	request := Request{
		Pod:      pod("u"),
		Name:     "keys",
		ReadOnly: true,
		Inline: &corev1.CSIVolumeSource{
			Driver:               driverName,
			VolumeAttributes:     map[string]string{"a": "b"},
			NodePublishSecretRef: &corev1.LocalObjectReference{Name: "mine"},
		},
	}
	bench := newBench(t, noAttach())
	bench.serve()
	if _, err := bench.m.SetUp(t.Context(), request); err == nil ||
		!strings.Contains(err.Error(), `volume mode "Ephemeral" not supported by driver dirs.example.com`) {
		t.Errorf("got %v", err)
	}
	bench = newBench(t, noAttach(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.PodInfoOnMount = new(true)
		s.RequiresRepublish = new(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	}))
	bench.serve()
	handle := inlineHandle("u", "keys")
	got := bench.setUp(request)
	bench.calls("NodePublishVolume " + handle)
	if left := time.Until(got.Refresh); left < 50*time.Second || left > 80*time.Second || got.OwnedByGroup {
		t.Errorf("got %+v", got)
	}
	req := bench.driver.Last("NodePublishVolume").(*csiapi.NodePublishVolumeRequest)
	if !strings.Contains(req.GetVolumeContext()[tokensKey], `{"vault":{"token":"token-1","expirationTimestamp":"`) {
		t.Errorf("tokens: %s", req.GetVolumeContext()[tokensKey])
	}
	delete(req.GetVolumeContext(), tokensKey)
	want := map[string]string{
		"a":                                      "b",
		"csi.storage.k8s.io/ephemeral":           "true",
		"csi.storage.k8s.io/pod.name":            "p-u",
		"csi.storage.k8s.io/pod.namespace":       "ns",
		"csi.storage.k8s.io/pod.uid":             "u",
		"csi.storage.k8s.io/serviceAccount.name": "sa",
	}
	if diff := cmp.Diff(want, req.GetVolumeContext()); diff != "" || req.GetSecrets()["from"] != "ns/mine" ||
		!req.GetReadonly() {
		t.Errorf("%v\n%s", req, diff)
	}
	bench.setUp(request) // published again, with the same token
	bench.calls("NodePublishVolume " + handle)
	if c := bench.driver.Last(
		"NodePublishVolume").(*csiapi.NodePublishVolumeRequest).GetVolumeContext()[tokensKey]; !strings.Contains(c,
		"token-1") {
		t.Errorf("tokens: %s", c)
	}
	if err := bench.m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	bench.calls("NodeUnpublishVolume " + handle)
	bench.empty()
}

// TestTokensInSecrets: a driver that asks for it gets the tokens of pods as a secret, not in the volume's context,
// which drivers log.
func TestTokensInSecrets(t *testing.T) {
	bench := newBench(t, noAttach(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.PodInfoOnMount = new(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
		s.ServiceAccountTokenInSecrets = new(true)
	}))
	bench.serve()
	bench.setUp(Request{
		Pod:  pod("u"),
		Name: "keys",
		Inline: &corev1.CSIVolumeSource{
			Driver:               driverName,
			NodePublishSecretRef: &corev1.LocalObjectReference{Name: "mine"},
		},
	})
	bench.calls("NodePublishVolume " + inlineHandle("u", "keys"))
	req := bench.driver.Last("NodePublishVolume").(*csiapi.NodePublishVolumeRequest)
	if _, there := req.GetVolumeContext()[tokensKey]; there ||
		!strings.Contains(req.GetSecrets()[tokensKey], `{"vault":{"token":"token-1"`) ||
		req.GetSecrets()["from"] != "ns/mine" {
		t.Errorf("context %v, secrets %v", req.GetVolumeContext(), req.GetSecrets())
	}
	if err := bench.m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	bench.calls("NodeUnpublishVolume " + inlineHandle("u", "keys"))
	bench.empty()
}
