// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

func csiVolumeOf(name, driver string) *corev1.PersistentVolume {
	v := volumeOn(name, "a")
	v.Spec.NodeAffinity = nil
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle of " + name}
	return v
}

// csiNode is what drivers say of a node: how many volumes, or -1 for no limit.
func csiNode(name string, counts map[string]int32) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for driver, count := range counts {
		d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
		if count >= 0 {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, d)
	}
	return n
}

func attachment(node, driver, vol string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + vol},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver,
			NodeName: node,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &vol},
		},
	}
}

// TestNodeVolumeLimits: which volumes of a pod, of a node's pods, and of those attached to the node count.
func TestNodeVolumeLimits(t *testing.T) {
	required := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "must.io"},
		Spec: storagev1.CSIDriverSpec{
			PreventPodSchedulingIfMissing: new(true),
		},
	}
	optional := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "may.io"}}
	inline := attachment("a", "x.io", "e")
	inline.Name = "inline"
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}
	common := []runtime.Object{
		csiVolumeOf("c", "x.io"), csiVolumeOf("d", "x.io"), csiVolumeOf("e", "x.io"), csiVolumeOf("m", "must.io"),
		csiVolumeOf("o", "may.io"), volumeOn("local", "a"),
		boundClaim("c", "c"), boundClaim("d", "d"), boundClaim("e", "e"), boundClaim("m", "m"), boundClaim("o", "o"),
		boundClaim("dangling", "nothing"), lateClaim("new", "made"), lateClaim("newer", "made"),
		lateClaim("static", "static"),
		lateClass("made", "x.io"), lateClass("late", "x.io"), lateClass("static", "kubernetes.io/no-provisioner"),
		required, optional,
	}
	const full, missing = "node(s) exceed max volume count", "must.io CSI driver is not installed on the node"
	for _, tt := range []struct {
		what  string
		more  []runtime.Object
		there []string // claims of the node's pods
		claim []string // of the pod
		want  string
	}{
		{"the same volume counts once", nil, []string{"c"}, []string{"c"}, ""},
		{"a second one is too many", nil, []string{"c"}, []string{"d"}, full},
		{"two are too many", nil, nil, []string{"c", "d"}, full},
		{"a claim that is to get a volume counts", nil, []string{"new"}, []string{"c"}, full},
		{"also without a CSIDriver", nil, []string{"c"}, []string{"new"}, full},
		{"so does one whose volume is not there", nil, []string{"dangling"}, []string{"c"}, full},
		{"no driver makes static volumes", nil, []string{"c"}, []string{"static"}, ""},
		{"what is attached counts", []runtime.Object{attachment("a", "x.io", "d")}, nil, []string{"c"}, full},
		{"not if a pod explains it", []runtime.Object{attachment("a", "x.io", "c")}, []string{"c"}, []string{"c"}, ""},
		{"not elsewhere", []runtime.Object{attachment("b", "x.io", "d")}, nil, []string{"c"}, ""},
		{"not of another driver", []runtime.Object{attachment("a", "y.io", "d")}, nil, []string{"c"}, ""},
		{"not without its volume", []runtime.Object{attachment("a", "x.io", "nothing")}, nil, []string{"c"}, ""},
		{"not if it is no CSI volume", []runtime.Object{attachment("a", "x.io", "local")}, nil, []string{"c"}, ""},
		{"not if its volume has no object", []runtime.Object{inline}, nil, []string{"c"}, ""},
		{
			"the pod's own volume counts twice while it is attached for no pod, as in Kubernetes", []runtime.Object{
				attachment("a", "x.io", "c"),
			}, nil, []string{"c"}, full,
		},
		{"a driver that has to be there is not", nil, nil, []string{"m"}, missing},
		{"one that need not be there is not", nil, nil, []string{"o"}, ""},
	} {
		storage, _ := storageOf(t,
			append(append([]runtime.Object{csiNode("a", map[string]int32{"x.io": 1})}, common...),
				tt.more...)...)
		nodes := state.NewCache()
		nodes.SetNode(nodeNamed("a").Node)
		info := nodeNamed("a")
		for _, c := range tt.there {
			user := podWith("user-of-"+c, c)
			info.Pods = append(info.Pods, user)
			on := user.Pod.DeepCopy()
			on.Spec.NodeName = "a"
			nodes.SetPod(on)
		}
		f, _ := (Limits{storage}).PreFilter(nil, podWith("p", tt.claim...), nodes.Refresh())
		if f.Filter == nil {
			if tt.want != "" {
				t.Errorf("%s: nothing is said", tt.what)
			}
			continue
		}
		out := make([]*framework.Status, 1)
		f.FilterAll(out)
		for how, st := range map[string]*framework.Status{"alone": f.Filter(info), "with all": out[0]} {
			got := ""
			if st != nil {
				got = st.Reasons[0]
			}
			if got != tt.want || st != nil && st.Code != framework.Unschedulable {
				t.Errorf("%s: %s: %q, want %q", tt.what, how, got, tt.want)
			}
		}
	}
}

// TestVolumeCountsFollow: a node's volumes are counted again when its attachments, their volumes or its drivers
// change.
func TestVolumeCountsFollow(t *testing.T) {
	factory := informers.NewSharedInformerFactory(nil, 0)
	storage := NewStorage(nil)
	if _, err := storage.Watch(factory); err != nil {
		t.Fatal(err)
	}
	of := func(o any) cache.Indexer {
		cs := factory.Storage().V1()
		switch o.(type) {
		case *corev1.PersistentVolume:
			return factory.Core().V1().PersistentVolumes().Informer().GetIndexer()
		case *corev1.PersistentVolumeClaim:
			return factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer()
		case *storagev1.CSIDriver:
			return cs.CSIDrivers().Informer().GetIndexer()
		case *storagev1.CSINode:
			return cs.CSINodes().Informer().GetIndexer()
		default:
			return cs.VolumeAttachments().Informer().GetIndexer()
		}
	}
	set := func(o any) {
		if err := of(o).Update(o); err != nil {
			t.Fatal(err)
		}
		storage.Changed(o)
	}
	drop := func(o any) {
		if err := of(o).Delete(o); err != nil {
			t.Fatal(err)
		}
		storage.Changed(o)
	}
	nodes := state.NewCache()
	nodes.SetNode(nodeNamed("a").Node)
	const missing = "x.io CSI driver is not installed on the node"
	set(&storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "x.io"},
		Spec: storagev1.CSIDriverSpec{
			PreventPodSchedulingIfMissing: new(true),
		},
	})
	set(csiVolumeOf("c", "x.io"))
	set(boundClaim("c", "c"))
	full := tooManyVolumes.Reasons[0]
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"nothing", func() {}, missing},
		{"the driver registers", func() { set(csiNode("a", map[string]int32{"x.io": 1})) }, ""},
		{"an attachment without a volume", func() { set(attachment("a", "x.io", "d")) }, ""},
		{"its volume comes", func() { set(csiVolumeOf("d", "x.io")) }, full},
		{"the limit grows", func() { set(csiNode("a", map[string]int32{"x.io": 2})) }, ""},
		{"one more attachment", func() {
			set(csiVolumeOf("e", "x.io"))
			set(attachment("a", "x.io", "e"))
		}, full},
		{"it is detached", func() { drop(attachment("a", "x.io", "e")) }, ""},
		{"the limit goes", func() {
			set(csiNode("a", map[string]int32{"x.io": -1}))
			set(attachment("a", "x.io", "e"))
		}, ""},
		{"the driver goes", func() { set(csiNode("a", nil)) }, missing},
	} {
		step.do()
		f, _ := (Limits{storage}).PreFilter(nil, podWith("p", "c"), nodes.Refresh())
		out := make([]*framework.Status, 1)
		f.FilterAll(out)
		got := ""
		if out[0] != nil {
			got = out[0].Reasons[0]
		}
		if got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// TestVolumeLimitEvents: which events wake a pod that NodeVolumeLimits refused.
func TestVolumeLimitEvents(t *testing.T) {
	changed := func(old, now *storagev1.CSINode) framework.Event {
		return framework.Event{Kinds: framework.Storage, OldObject: old, NewObject: now}
	}
	ofAttachment := func(old, now any) framework.Event {
		return framework.Event{
			Kinds:     framework.Objects,
			Resource:  VolumeAttachments,
			OldObject: old,
			NewObject: now,
		}
	}
	x := func(count int32) *storagev1.CSINode { return csiNode("a", map[string]int32{"x.io": count}) }
	a := attachment("a", "x.io", "d")
	for what, tt := range map[string]struct {
		e    framework.Event
		want bool
	}{
		"a CSINode comes":            {framework.Event{Kinds: framework.Storage, NewObject: x(1)}, true},
		"a limit grows":              {changed(x(1), x(2)), true},
		"a limit goes":               {changed(x(1), x(-1)), true},
		"a driver with a limit goes": {changed(x(1), csiNode("a", nil)), true},
		"a driver registers":         {changed(csiNode("a", nil), x(-1)), true},
		"a limit shrinks":            {changed(x(2), x(1)), false},
		"a limit comes":              {changed(x(-1), x(1)), false},
		"nothing of a CSINode":       {changed(x(1), x(1)), false},
		"a volume comes": {
			framework.Event{Kinds: framework.Storage, NewObject: volumeOn("v", "a")}, false,
		},
		"a volume is detached":       {ofAttachment(a, nil), true},
		"a volume is to be attached": {ofAttachment(nil, a), false},
		"a volume has been attached": {ofAttachment(a, a), false},
		"its claim comes": {
			framework.Event{Kinds: framework.PersistentVolumeClaims, Claim: boundClaim("c", "c")}, true,
		},
		"another claim comes": {
			framework.Event{Kinds: framework.PersistentVolumeClaims, Claim: boundClaim("d", "d")}, false,
		},
		"a pod with a claim goes": {
			framework.Event{Kinds: framework.AssignedPodDelete, OldPod: podWith("q", "d").Pod}, true,
		},
		"a pod without a claim goes": {
			framework.Event{Kinds: framework.AssignedPodDelete, OldPod: podWith("q").Pod}, false,
		},
		"a node comes without a CSINode": {framework.Event{Kinds: framework.NodeAdd}, true},
	} {
		got := false
		for _, h := range (Limits{}).events() {
			got = got || h.Match(&tt.e) && (h.QueueingHintFn == nil || h.QueueingHintFn(podWith("p", "c"), &tt.e))
		}
		if got != tt.want {
			t.Errorf("%s: %v, want %v", what, got, tt.want)
		}
	}
}
