// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/storage/volume"

	"keelson/api/apitest"
	"keelson/api/core/localvolume"
	"keelson/client/clienttest"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// storageOf is a Storage that knows objs.
func storageOf(t *testing.T, objs ...runtime.Object) (*Storage, *fake.Clientset) {
	t.Helper()
	clientset := clienttest.New(objs...)
	storage := NewStorage(clientset)
	f := informers.NewSharedInformerFactory(clientset, 0)
	if _, err := storage.Watch(f); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		f.Shutdown()
	})
	f.WaitForCacheSync(ctx.Done())
	return storage, clientset
}

func boundClaim(name, vol string) *corev1.PersistentVolumeClaim {
	c := lateClaim(name, "late")
	c.Spec.VolumeName = vol
	c.Status.Phase = corev1.ClaimBound
	c.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
	return c
}

func lateClaim(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, UID: types.UID(name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

func lateClass(name, provisioner string) *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       provisioner,
		VolumeBindingMode: &late,
	}
}

func volumeOn(name, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "static",
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
					},
				}}},
			},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

func podWith(name string, claims ...string) *state.PodInfo {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, UID: types.UID(name)}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: c,
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			},
		})
	}
	return state.NewPodInfo(p)
}

func nodeNamed(name string) *state.NodeInfo {
	return &state.NodeInfo{
		Name: name,
		Node: apitest.Node(name, apitest.NodeLabels(corev1.LabelHostname, name)),
	}
}

func TestVolumeBindingVerdicts(t *testing.T) {
	lost := boundClaim("lost", "v")
	going := boundClaim("going", "on-a")
	lost.Status.Phase = corev1.ClaimLost
	now := metav1.Now()
	going.DeletionTimestamp = &now
	going.Finalizers = []string{"kubernetes.io/pvc-protection"}
	selected := lateClaim("selected", "made")
	selected.Annotations = map[string]string{volume.AnnSelectedNode: "b"}
	topology := lateClass("topology", "x.io/y")
	topology.AllowedTopologies = []corev1.TopologySelectorTerm{
		{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: corev1.LabelHostname, Values: []string{"b"}},
		}},
	}
	s, _ := storageOf(t, lateClass("static", volume.NotSupportedProvisioner), lateClass("made", "x.io/y"), topology,
		volumeOn("on-a", "a"), boundClaim("bound", "on-a"), boundClaim("dangling", "nothing"), lost, going, selected,
		lateClaim("free", "static"), lateClaim("second", "static"), lateClaim("made", "made"), lateClaim("there",
			"topology"), lateClaim("immediate", ""))
	volumeBinding := &Binding{Storage: s}
	for _, tt := range []struct{ what, all, a, b string }{
		{"", "", "", ""},
		{"bound", "", "", "node(s) didn't match PersistentVolume's node affinity"},
		{
			"dangling", "", "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
			"node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
		},
		{"free", "", "", "node(s) didn't find available persistent volumes to bind"},
		{
			"free second", "", "node(s) didn't find available persistent volumes to bind",
			"node(s) didn't find available persistent volumes to bind",
		},
		{"made", "", "", ""},
		{"selected", "", "node(s) didn't find available persistent volumes to bind", ""},
		{"there", "", "node(s) didn't find available persistent volumes to bind", ""},
		{"immediate", "pod has unbound immediate PersistentVolumeClaims", "", ""},
		{"none", `persistentvolumeclaim "none" not found`, "", ""},
		{"lost", `persistentvolumeclaim "lost" bound to non-existent persistentvolume "v"`, "", ""},
		{"going", `persistentvolumeclaim "going" is being deleted`, "", ""},
	} {
		f, st := volumeBinding.PreFilter(nil, podWith("p", strings.Fields(tt.what)...), nil)
		if st != nil || tt.all != "" {
			if st == nil || strings.Join(st.Reasons, ",") != tt.all {
				t.Errorf("%q: refused by %+v, want %q", tt.what, st, tt.all)
			}
			continue
		}
		for _, n := range []struct{ node, want string }{{"a", tt.a}, {"b", tt.b}} {
			got := ""
			if f.Filter != nil {
				if st := f.Filter(nodeNamed(n.node)); st != nil {
					got = strings.Join(st.Reasons, ",")
				}
			}
			if got != n.want {
				t.Errorf("%q on %s: %q, want %q", tt.what, n.node, got, n.want)
			}
		}
	}
}

// TestLocalVolumesFit: a claim goes to no node where its local volume would be refused: it would wait there forever.
func TestLocalVolumesFit(t *testing.T) {
	s, _ := storageOf(t, lateClass("standard", localvolume.Provisioner), lateClaim("data", "standard"))
	nodeFilter, st := (&Binding{Storage: s}).PreFilter(nil, podWith("p", "data"), nil)
	if st != nil {
		t.Fatal(st)
	}
	small := nodeNamed("small")
	large := nodeNamed("large")
	unknown := nodeNamed("unknown")
	none := nodeNamed("none")
	for _, n := range []*state.NodeInfo{small, large, unknown} {
		n.Node.Labels[localvolume.NodeHas] = "true"
	}
	small.Node.Status.Capacity = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("500Mi")}
	large.Node.Status.Capacity = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
	for n, want := range map[*state.NodeInfo]*framework.Status{
		small:   noSpace,
		large:   nil,
		unknown: nil,
		none:    noSpace,
	} {
		if got := nodeFilter.Filter(n); got != want {
			t.Errorf("%s: got %+v, want %+v", n.Name, got, want)
		}
	}
}

// TestVolumeBindingReserves: no other pod gets a volume that is reserved, and pods that share a claim stay together.
func TestVolumeBindingReserves(t *testing.T) {
	s, _ := storageOf(t, lateClass("static", volume.NotSupportedProvisioner), lateClass("made", "x.io/y"),
		volumeOn("on-a", "a"), lateClaim("one", "static"), lateClaim("two", "static"), lateClaim("shared", "made"))
	volumeBinding := &Binding{Storage: s}
	fits := func(p *state.PodInfo, node string) bool {
		f, st := volumeBinding.PreFilter(nil, p, nil)
		if st != nil {
			t.Fatal(st.Reasons)
		}
		return f.Filter(nodeNamed(node)) == nil
	}
	first := podWith("first", "one", "shared")
	second := podWith("second", "two")
	if err := volumeBinding.Reserve(t.Context(), nil, first, nodeNamed("a")); err != nil {
		t.Fatal(err)
	}
	if fits(second, "a") {
		t.Error("a volume that another claim is about to get was given away")
	}
	if third := podWith("third", "shared"); !fits(third, "a") || fits(third, "b") {
		t.Error("pods with one claim go to different nodes")
	}
	if !volumeBinding.PreBindPreFlight(nil, first, "a") || volumeBinding.PreBindPreFlight(nil, second, "a") {
		t.Error("who waits for volumes is not known")
	}
	volumeBinding.Unreserve(t.Context(), nil, first, "a")
	if !fits(second, "a") || !fits(podWith("third", "shared"), "b") {
		t.Error("what was reserved is not free again")
	}
}

func TestVolumeBindingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage, clientset := storageOf(t, lateClass("static", volume.NotSupportedProvisioner),
			lateClass("made", "x.io/y"),
			volumeOn("on-a", "a"), lateClaim("one", "static"), lateClaim("two", "made"))
		volumeBinding := &Binding{Storage: storage}
		info := podWith("p", "one", "two")
		if err := volumeBinding.Reserve(t.Context(), nil, info, nodeNamed("a")); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- volumeBinding.PreBind(t.Context(), nil, info, "a") }() // ends below
		synctest.Wait()
		v, err := clientset.CoreV1().PersistentVolumes().Get(t.Context(), "on-a", metav1.GetOptions{})
		if err != nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Name != "one" {
			t.Fatalf("the volume is for %v, %v", v.Spec.ClaimRef, err)
		}
		two, err := clientset.CoreV1().PersistentVolumeClaims("dev").Get(t.Context(), "two", metav1.GetOptions{})
		if err != nil || two.Annotations[volume.AnnSelectedNode] != "a" {
			t.Fatalf("the claim's node is %v, %v", two.Annotations, err)
		}
		for _, name := range []string{"one", "two"} {
			select {
			case err := <-done:
				t.Fatalf("did not wait for %s: %v", name, err)
			default:
			}
			bound := boundClaim(name, "v-"+name)
			if _, err := clientset.CoreV1().PersistentVolumeClaims("dev").Update(t.Context(), bound,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			storage.Changed(bound)
			synctest.Wait()
		}
		if err := <-done; err != nil || volumeBinding.PreBindPreFlight(nil, info, "a") {
			t.Errorf("all claims are bound: %v", err)
		}
	})
}

func TestVolumeBindingGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage, clientset := storageOf(t, lateClass("made", "x.io/y"), lateClaim("two", "made"))
		volumeBinding := &Binding{Storage: storage}
		info := podWith("p", "two")
		for _, reset := range []bool{true, false} {
			if err := volumeBinding.Reserve(t.Context(), nil, info, nodeNamed("a")); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- volumeBinding.PreBind(t.Context(), nil, info, "a") }() // ends below
			synctest.Wait()
			want := "deadline"
			if reset { // the provisioner cannot
				want = "selectedNode annotation reset"
				unselected := lateClaim("two", "made")
				if _, err := clientset.CoreV1().PersistentVolumeClaims("dev").Update(t.Context(), unselected,
					metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				storage.Changed(unselected)
			}
			time.Sleep(11 * time.Minute)
			if err := <-done; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("reset %v: %v", reset, err)
			}
			volumeBinding.Unreserve(t.Context(), nil, info, "a")
		}
	})
}

func TestReadWriteOncePod(t *testing.T) {
	alone := boundClaim("alone", "v")
	alone.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	storage, _ := storageOf(t, alone, boundClaim("many", "w"))
	user := podWith("user", "alone", "many")
	user.Pod.Spec.NodeName = "a"
	cache := state.NewCache()
	cache.SetNode(nodeNamed("a").Node)
	cache.SetNode(nodeNamed("b").Node)
	cache.SetPod(user.Pod)
	snap := cache.Refresh()
	info := snap.Node("a")
	if f, _ := (Restrictions{storage}).PreFilter(nil, podWith("p", "many"), snap); f.Filter != nil {
		t.Error("a claim that many may have is restricted")
	}
	f, _ := (Restrictions{storage}).PreFilter(nil, podWith("p", "alone"), snap)
	if f.Filter == nil {
		t.Fatal("a claim for one pod is not restricted")
	}
	for _, node := range snap.Nodes {
		if st := f.Filter(node); st != claimTaken {
			t.Errorf("on %s: %+v", node.Name, st)
		}
	}
	if st := f.Adjust(info, nil, []*state.PodInfo{user}).Filter(info); st != nil {
		t.Errorf("with its user gone: %+v", st)
	}
}

func TestVolumeZone(t *testing.T) {
	v := volumeOn("v", "a")
	v.Spec.NodeAffinity = nil
	v.Labels = map[string]string{corev1.LabelTopologyZone: "z1__z2"}
	s, _ := storageOf(t, v, boundClaim("c", "v"))
	zone, _ := (Zone{s}).PreFilter(nil, podWith("p", "c"), nil)
	for value, want := range map[string]bool{
		"z1": true,
		"z2": true,
		"z3": false,
		"":   true,
	} {
		n := nodeNamed("a")
		if value != "" {
			n.Node.Labels[corev1.LabelTopologyZone] = value
		}
		if got := zone.Filter(n) == nil; got != want {
			t.Errorf("zone %q: %v", value, got)
		}
	}
}
