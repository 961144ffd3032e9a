// SPDX-License-Identifier: Apache-2.0

package schedtest_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"pgregory.net/rapid"

	"keelson/scheduler/core"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// storageObjects are what a scheduler knows of storage, put there by hand.
type storageObjects struct {
	*volumes.Storage
	of map[string]cache.Indexer
}

func newStorageObjects() *storageObjects {
	factory := informers.NewSharedInformerFactory(nil, 0)
	s := &storageObjects{Storage: volumes.NewStorage(nil), of: map[string]cache.Indexer{}}
	if _, err := s.Watch(factory); err != nil {
		panic(err)
	}
	for kind, inf := range map[string]cache.SharedIndexInformer{
		"claim":      factory.Core().V1().PersistentVolumeClaims().Informer(),
		"volume":     factory.Core().V1().PersistentVolumes().Informer(),
		"class":      factory.Storage().V1().StorageClasses().Informer(),
		"driver":     factory.Storage().V1().CSIDrivers().Informer(),
		"node":       factory.Storage().V1().CSINodes().Informer(),
		"capacity":   factory.Storage().V1().CSIStorageCapacities().Informer(),
		"attachment": factory.Storage().V1().VolumeAttachments().Informer(),
	} {
		s.of[kind] = inf.GetIndexer()
	}
	return s
}

func (s *storageObjects) set(t *rapid.T, kind string, o runtime.Object) {
	if err := s.of[kind].Update(o); err != nil {
		t.Fatal(err)
	}
	s.Changed(o)
}

func (s *storageObjects) remove(t *rapid.T, kind, key string) {
	if o, ok, _ := s.of[kind].GetByKey(key); ok {
		if err := s.of[kind].Delete(o); err != nil {
			t.Fatal(err)
		}
		s.Changed(cache.DeletedFinalStateUnknown{Key: key, Obj: o})
	}
}

const storageNamespace = "default"

func drawIn(t *rapid.T, key string, values ...string) corev1.NodeSelectorRequirement {
	op := rapid.SampledFrom([]corev1.NodeSelectorOperator{
		corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn,
	}).Draw(t, "operator")
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

func drawVolume(t *rapid.T, i int) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name:   fmt.Sprint("v", i),
		UID:    types.UID(fmt.Sprint("v", i)),
		Labels: map[string]string{},
	}}
	pv.Spec.Capacity = corev1.ResourceList{
		corev1.ResourceStorage: schedtest.Quantity(rapid.SampledFrom([]string{"1Gi", "2Gi", "3Gi"}).Draw(t,
			"capacity")),
	}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.StorageClassName = rapid.SampledFrom([]string{"static", "static", "made"}).Draw(t, "class")
	pv.Status.Phase = rapid.SampledFrom([]corev1.PersistentVolumePhase{
		corev1.VolumeAvailable, corev1.VolumeAvailable, corev1.VolumeAvailable, corev1.VolumePending,
	}).Draw(t, "phase")
	host := rapid.SampledFrom([]string{"n0", "n1", "n2", "n3"}).Draw(t, "host")
	var terms []corev1.NodeSelectorTerm
	switch rapid.IntRange(0, 6).Draw(t, "affinity") {
	case 0, 1, 2:
		terms = []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{drawIn(t, corev1.LabelHostname, host)}},
		}
	case 3:
		terms = []corev1.NodeSelectorTerm{
			{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					drawIn(t, corev1.LabelTopologyZone, "a", "b"), drawIn(t, corev1.LabelHostname, host, "n5"),
				},
			},
			{},
		}
	case 4:
		terms = []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{drawIn(t, corev1.LabelTopologyZone, "a")}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{drawIn(t, corev1.LabelHostname, host)}},
		}
	case 5:
		terms = []corev1.NodeSelectorTerm{
			{MatchFields: []corev1.NodeSelectorRequirement{drawIn(t, "metadata.name", host)}},
		}
	}
	if terms != nil {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	if label := rapid.SampledFrom(
		[]string{"", "", corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyRegion}).Draw(
		t, "zone label"); label != "" {
		pv.Labels[label] = rapid.SampledFrom([]string{"a", "b", "a__b"}).Draw(t, "zones")
	}
	if rapid.Bool().Draw(t, "csi") {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver:       "x.io",
			VolumeHandle: rapid.SampledFrom([]string{pv.Name, pv.Name, "same"}).Draw(t, "handle"),
		}
	}
	if i < 6 && rapid.IntRange(0, 3).Draw(t, "for a claim") == 0 { // of two for one claim, chance would decide
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: storageNamespace, Name: fmt.Sprint("c", i)}
	}
	return pv
}

func drawClaim(t *rapid.T, i int) *corev1.PersistentVolumeClaim {
	name := fmt.Sprint("c", i)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace:   storageNamespace,
		Name:        name,
		UID:         types.UID(name),
		Annotations: map[string]string{},
	}}
	claim.Spec.StorageClassName = new(rapid.SampledFrom([]string{"static", "static", "made", "topology"}).Draw(t,
		"class"))
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{rapid.SampledFrom([]corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany,
	}).Draw(t, "mode")}
	claim.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceStorage: schedtest.Quantity(rapid.SampledFrom([]string{"1Gi", "2Gi"}).Draw(t, "size")),
	}
	switch rapid.IntRange(0, 9).Draw(t, "state") {
	case 0, 1, 2, 3:
		claim.Spec.VolumeName = fmt.Sprint("v", i)
		claim.Status.Phase = corev1.ClaimBound
		claim.Annotations[volume.AnnBindCompleted] = "yes"
	case 4:
		claim.Annotations[volume.AnnSelectedNode] = rapid.SampledFrom([]string{"n0", "n1"}).Draw(t, "selected")
	}
	return claim
}

func drawClaiming(t *rapid.T, i int) *corev1.Pod {
	pod := schedtest.Pod(fmt.Sprint("p", i))
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "volumes") {
		v := corev1.Volume{Name: fmt.Sprint("volume", len(pod.Spec.Volumes))}
		if rapid.IntRange(0, 5).Draw(t, "disk") == 0 {
			v.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{
				PDName:   rapid.SampledFrom([]string{"d", "e"}).Draw(t, "pd"),
				ReadOnly: rapid.Bool().Draw(t, "read only"),
			}
		} else {
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: fmt.Sprint("c", rapid.IntRange(0, 5).Draw(t, "claim")),
			}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	return pod
}

// drawStorage is a change of what there is of storage.
func drawStorage(t *rapid.T, s *storageObjects) {
	switch rapid.IntRange(0, 12).Draw(t, "storage") {
	case 0, 1, 2:
		s.set(t, "volume", drawVolume(t, rapid.IntRange(0, 9).Draw(t, "volume")))
	case 3, 4, 5:
		s.set(t, "claim", drawClaim(t, rapid.IntRange(0, 5).Draw(t, "claim")))
	case 6:
		s.remove(t, "volume", fmt.Sprint("v", rapid.IntRange(0, 9).Draw(t, "volume")))
	case 7:
		s.remove(t, "claim", storageNamespace+"/"+fmt.Sprint("c", rapid.IntRange(0, 5).Draw(t, "claim")))
	case 8:
		n := &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", rapid.IntRange(0, 3).Draw(t, "node"))},
		}
		if count := rapid.Int32Range(-1, 3).Draw(t, "limit"); count >= 0 {
			n.Spec.Drivers = []storagev1.CSINodeDriver{
				{Name: "x.io", Allocatable: &storagev1.VolumeNodeResources{Count: &count}},
			}
		}
		s.set(t, "node", n)
	case 9:
		zone := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")
		s.set(t, "capacity", &storagev1.CSIStorageCapacity{
			ObjectMeta:       metav1.ObjectMeta{Namespace: storageNamespace, Name: zone},
			StorageClassName: "made",
			NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: zone}},
			Capacity:         new(schedtest.Quantity(rapid.SampledFrom([]string{"1Gi", "5Gi"}).Draw(t, "left"))),
		})
	case 10, 11:
		node := fmt.Sprint("n", rapid.IntRange(0, 3).Draw(t, "node"))
		v := fmt.Sprint("v", rapid.IntRange(0, 9).Draw(t, "volume"))
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: node + v}}
		a.Spec.Attacher = "x.io"
		a.Spec.NodeName = node
		a.Spec.Source.PersistentVolumeName = &v
		if _, there, _ := s.of["attachment"].GetByKey(a.Name); there {
			s.remove(t, "attachment", a.Name)
		} else {
			s.set(t, "attachment", a)
		}
	case 12:
		s.set(t, "driver", csiDriver(rapid.Bool().Draw(t, "required")))
	}
}

func csiDriver(required bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "x.io"},
		Spec:       storagev1.CSIDriverSpec{StorageCapacity: new(true), PreventPodSchedulingIfMissing: &required},
	}
}

func storageClasses(t *rapid.T, s *storageObjects) {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	for name, provisioner := range map[string]string{
		"static":   volume.NotSupportedProvisioner,
		"made":     "x.io",
		"topology": "y.io",
	} {
		class := &storagev1.StorageClass{
			ObjectMeta:        metav1.ObjectMeta{Name: name},
			Provisioner:       provisioner,
			VolumeBindingMode: &late,
		}
		if name == "topology" {
			class.AllowedTopologies = []corev1.TopologySelectorTerm{
				{
					MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
						{Key: corev1.LabelTopologyZone, Values: []string{"a"}},
					},
				},
			}
		}
		s.set(t, "class", class)
	}
	s.set(t, "driver", csiDriver(false))
}

// TestVolumesAllAtOnce: filtering all nodes at once for pods with volumes, by the indexes, gives the same result as
// filtering them one by one, from the claims, volumes and pods.
func TestVolumesAllAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		storageObjects := newStorageObjects()
		storageClasses(t, storageObjects)
		engine := func(percent int32) *core.Engine {
			p := schedtest.Default(&plugins.Shared{Storage: storageObjects.Storage})
			p.PercentageOfNodesToScore = percent
			return core.NewEngine(p, 1, 1)
		}
		var nodes []*corev1.Node
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			opts := []schedtest.NodeOption{schedtest.Labels(corev1.LabelHostname, fmt.Sprint("n", i))}
			if key := rapid.SampledFrom(
				[]string{"", corev1.LabelTopologyZone, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone}).
				Draw(t, "zone label"); key != "" {
				opts = append(opts, schedtest.Labels(key, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")))
			}
			nodes = append(nodes, schedtest.Node(fmt.Sprint("n", i), opts...))
		}
		for i := range 10 {
			storageObjects.set(t, "volume", drawVolume(t, i))
		}
		var pods []*corev1.Pod
		for i := range 8 {
			storageObjects.set(t, "claim", drawClaim(t, i%6))
			pods = append(pods, drawClaiming(t, i))
		}
		harness := newWorld(nodes, nil)
		there := map[string]*corev1.Pod{}
		alive := map[string]*corev1.Node{}
		wholesale := engine(0)
		each := engine(50)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "of storage") {
				drawStorage(t, storageObjects)
			} else {
				churn(t, harness, nodes, pods, there, alive)
			}
			info := state.NewPodInfo(rapid.SampledFrom(pods).Draw(t, "tried"))
			attempt := wholesale.Decide(info, harness.Cache.Refresh(), nil)
			b := each.Decide(info, harness.Cache.Refresh(), nil)
			if diff := cmp.Diff(verdict(b), verdict(attempt)); diff != "" {
				t.Fatalf("%s: verdicts (-one by one +all at once):\n%s", info.Key, diff)
			}
			if diff := cmp.Diff(ranked(b), ranked(attempt)); diff != "" {
				t.Fatalf("%s: scores (-one by one +all at once):\n%s", info.Key, diff)
			}
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0:
				if attempt.Chosen != nil {
					if err := (&volumes.Binding{Storage: storageObjects.Storage}).Reserve(t.Context(), attempt.Cycle, info, attempt.Chosen); err != nil {
						t.Fatalf("%s on %s: %v", info.Key, attempt.Chosen.Name, err)
					}
				}
			case 1:
				(&volumes.Binding{Storage: storageObjects.Storage}).Unreserve(t.Context(), nil, info, "")
			}
		}
	})
}

// TestLateClaimsSeeAllNodes: all nodes are filtered, by the index of free volumes, for a pod whose claim waits for it.
func TestLateClaimsSeeAllNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		storageObjects := newStorageObjects()
		storageClasses(t, storageObjects)
		const count = 400
		free := rapid.IntRange(0, count-1).Draw(t, "free")
		var nodes []*corev1.Node
		for i := range count {
			name := fmt.Sprint("n", i)
			nodes = append(nodes, schedtest.Node(name, schedtest.Labels(corev1.LabelHostname, name)))
		}
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}}
		pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: schedtest.Quantity("1Gi")}
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		pv.Spec.StorageClassName = "static"
		pv.Status.Phase = corev1.VolumeAvailable
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{
			Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key:      corev1.LabelHostname,
					Operator: corev1.NodeSelectorOpIn,
					Values:   []string{fmt.Sprint("n", free)},
				}},
			}}},
		}
		storageObjects.set(t, "volume", pv)
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: storageNamespace, Name: "c", UID: "c"},
		}
		c.Spec.StorageClassName = new("static")
		c.Spec.AccessModes = pv.Spec.AccessModes
		c.Spec.Resources.Requests = pv.Spec.Capacity
		storageObjects.set(t, "claim", c)
		pod := schedtest.Pod("p")
		pod.Spec.Volumes = []corev1.Volume{{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
			},
		}}
		p := schedtest.Default(&plugins.Shared{Storage: storageObjects.Storage})
		h := newWorld(nodes, nil)
		a := core.NewEngine(p, 1, 1).Decide(state.NewPodInfo(pod), h.Cache.Refresh(), nil)
		if a.EvaluatedNodes != count || a.Chosen == nil || a.Chosen.Name != fmt.Sprint("n", free) {
			t.Fatalf("looked at %d of %d nodes, chose %v; the volume is on n%d", a.EvaluatedNodes, count, a.Chosen,
				free)
		}
	})
}
