// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/schedtest/reference"
)

// storageStep is a change of what there is of storage. One of the fields is set.
type storageStep struct {
	Volume     *corev1.PersistentVolume      `json:"volume,omitempty"`
	Claim      *corev1.PersistentVolumeClaim `json:"claim,omitempty"`
	Class      *storagev1.StorageClass       `json:"class,omitempty"`
	Driver     *storagev1.CSIDriver          `json:"driver,omitempty"`
	CSINode    *storagev1.CSINode            `json:"csiNode,omitempty"`
	Attachment *storagev1.VolumeAttachment   `json:"attachment,omitempty"`
	VolumeGone string                        `json:"volumeGone,omitempty"`
	ClaimGone  *corev1.PersistentVolumeClaim `json:"claimGone,omitempty"`
	Detached   string                        `json:"detached,omitempty"`
}

// store is what the scheduler knows of storage.
type store struct {
	*volumes.Storage
	factory informers.SharedInformerFactory
}

func newStore() *store {
	s := &store{Storage: volumes.NewStorage(nil), factory: informers.NewSharedInformerFactory(nil, 0)}
	if _, err := s.Watch(s.factory); err != nil {
		panic(err)
	}
	return s
}

func (s *store) of(o any) cache.Indexer {
	cs := s.factory.Storage().V1()
	switch o.(type) {
	case *corev1.PersistentVolume:
		return s.factory.Core().V1().PersistentVolumes().Informer().GetIndexer()
	case *corev1.PersistentVolumeClaim:
		return s.factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer()
	case *storagev1.StorageClass:
		return cs.StorageClasses().Informer().GetIndexer()
	case *storagev1.CSIDriver:
		return cs.CSIDrivers().Informer().GetIndexer()
	case *storagev1.CSINode:
		return cs.CSINodes().Informer().GetIndexer()
	default:
		return cs.VolumeAttachments().Informer().GetIndexer()
	}
}

func (s *store) set(o any) error {
	defer s.Changed(o)
	return s.of(o).Update(o)
}

func (s *store) drop(o any) error {
	defer s.Changed(o)
	return s.of(o).Delete(o)
}

// put adds an object to those of the reference, or replaces one.
func put[T metav1.Object](all []T, o T) []T {
	if i := at(all, o); i >= 0 {
		all[i] = o
		return all
	}
	return append(all, o)
}

func at[T metav1.Object](all []T, o T) int {
	return slices.IndexFunc(all, func(x T) bool {
		return x.GetName() == o.GetName() && x.GetNamespace() == o.GetNamespace()
	})
}

// store makes a change of storage known to both.
func (b *both) store(s *storageStep) error {
	cluster := &b.plain
	switch {
	case s.Volume != nil:
		cluster.Volumes = put(cluster.Volumes, s.Volume)
		return b.stored.set(s.Volume)
	case s.Claim != nil:
		cluster.Claims = put(cluster.Claims, s.Claim)
		return b.stored.set(s.Claim)
	case s.Class != nil:
		cluster.Classes = put(cluster.Classes, s.Class)
		return b.stored.set(s.Class)
	case s.Driver != nil:
		cluster.Drivers = put(cluster.Drivers, s.Driver)
		return b.stored.set(s.Driver)
	case s.CSINode != nil:
		cluster.CSINodes = put(cluster.CSINodes, s.CSINode)
		return b.stored.set(s.CSINode)
	case s.Attachment != nil:
		cluster.Attachments = put(cluster.Attachments, s.Attachment)
		return b.stored.set(s.Attachment)
	case s.ClaimGone != nil:
		if i := at(cluster.Claims, s.ClaimGone); i >= 0 {
			defer func() { cluster.Claims = slices.Delete(cluster.Claims, i, i+1) }()
			return b.stored.drop(cluster.Claims[i])
		}
	case s.VolumeGone != "":
		if i := slices.IndexFunc(cluster.Volumes, func(v *corev1.PersistentVolume) bool {
			return v.Name == s.VolumeGone
		}); i >= 0 {
			defer func() { cluster.Volumes = slices.Delete(cluster.Volumes, i, i+1) }()
			return b.stored.drop(cluster.Volumes[i])
		}
	case s.Detached != "":
		if i := slices.IndexFunc(cluster.Attachments, func(a *storagev1.VolumeAttachment) bool {
			return a.Name == s.Detached
		}); i >= 0 {
			defer func() { cluster.Attachments = slices.Delete(cluster.Attachments, i, i+1) }()
			return b.stored.drop(cluster.Attachments[i])
		}
	}
	return nil
}

// bind gives the claims of a pod that has a node their volumes, as controllers do.
func (b *both) bind(choices []reference.VolumeChoice) error {
	for _, o := range choices {
		claim := o.Claim.DeepCopy()
		v := o.Volume
		if v == nil {
			v = volume("made-"+claim.Name, *claim.Spec.StorageClassName, "2Gi")
			v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: v.Name}
		}
		v = v.DeepCopy()
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		v.Status.Phase = corev1.VolumeBound
		bound(claim, v.Name)
		for _, s := range []storageStep{{Volume: v}, {Claim: claim}} {
			if err := b.store(&s); err != nil {
				return err
			}
		}
	}
	return nil
}

const driver = "x.io"

func volume(name, class, size string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{}},
	}
	v.Spec.StorageClassName = class
	v.Spec.Capacity = list("storage", size)
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
	v.Status.Phase = corev1.VolumeAvailable
	return v
}

func bound(claim *corev1.PersistentVolumeClaim, volume string) {
	claim.Spec.VolumeName = volume
	claim.Status.Phase = corev1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
}

// mostClaims are as many for each namespace, of three kinds: with a volume, with a volume for one pod alone, and
// waiting for a pod.
const mostClaims = 9

// claim makes a version of a claim. Class and size go with its number: of two volumes for one claim, chance would
// decide.
func (d generator) claim(i int) *corev1.PersistentVolumeClaim {
	name := fmt.Sprint("c", i)
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: teams[i%len(teams)], Name: name, UID: types.UID(name)},
	}
	c.Spec.StorageClassName = new([]string{"static", "made"}[i%2])
	c.Spec.Resources.Requests = list("storage", []string{"1Gi", "2Gi"}[i%2])
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	switch i / len(teams) % 3 {
	case 1:
		c.Spec.AccessModes[0] = corev1.ReadWriteOncePod
		fallthrough
	case 0:
		bound(c, fmt.Sprint("v", i))
	}
	if d.oneIn(12) {
		c.Status.Phase = corev1.ClaimLost
	}
	if d.oneIn(20) {
		c.DeletionTimestamp = new(metav1.Unix(1, 0))
	}
	if d.oneIn(20) {
		c.Spec.StorageClassName = new("now")
	}
	return c
}

// volumeOf makes a version of the volume of a claim, and free one that claims which wait may get.
func (d generator) volumeOf(i int) *corev1.PersistentVolume {
	pv := volume(fmt.Sprint("v", i), "static", "2Gi")
	pv.Spec.ClaimRef = &corev1.ObjectReference{
		Namespace: teams[i%len(teams)],
		Name:      fmt.Sprint("c", i),
		UID:       types.UID(fmt.Sprint("c", i)),
	}
	pv.Status.Phase = corev1.VolumeBound
	if !d.oneIn(3) {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: pv.Name}
	}
	if d.oneIn(2) {
		pv.Labels[corev1.LabelTopologyZone] = pick(d, "a", "b", "a__b", "c")
	}
	d.nodeAffinityOf(pv)
	return pv
}

func (d generator) free(i int) *corev1.PersistentVolume {
	v := volume(fmt.Sprint("s", i), "static", pick(d, "1Gi", "2Gi", "4Gi", "10Gi"))
	if d.oneIn(8) {
		v.Status.Phase = corev1.VolumePending
	}
	d.nodeAffinityOf(v)
	return v
}

// nodeAffinityOf says on which nodes a volume can be.
func (d generator) nodeAffinityOf(pv *corev1.PersistentVolume) {
	requirement := corev1.NodeSelectorRequirement{Operator: corev1.NodeSelectorOpIn}
	switch d.IntN(4) {
	case 0:
		return
	case 1:
		requirement.Key = corev1.LabelTopologyZone
		requirement.Values = pickUpTo(d, 2, "a", "b", "c")
	case 2:
		requirement.Key = corev1.LabelHostname
		requirement.Values = []string{fmt.Sprint("n", d.IntN(4)), fmt.Sprint("n", d.IntN(8))}
	case 3:
		requirement.Key = "disk"
		requirement.Operator = corev1.NodeSelectorOpNotIn
		requirement.Values = []string{"hdd"}
	}
	if len(requirement.Values) == 0 {
		requirement.Values = []string{"a"}
	}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}}},
	}}
}

func (d generator) csiNode(i int) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
	if d.oneIn(4) {
		return n
	}
	on := storagev1.CSINodeDriver{Name: driver, NodeID: n.Name}
	if !d.oneIn(4) {
		on.Allocatable = &storagev1.VolumeNodeResources{Count: new(d.Int32N(4))}
	}
	n.Spec.Drivers = []storagev1.CSINodeDriver{on}
	return n
}

func (d generator) attachment(nodes int) *storagev1.VolumeAttachment {
	node := fmt.Sprint("n", d.IntN(nodes))
	v := fmt.Sprint("v", d.IntN(mostClaims))
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + v},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver,
			NodeName: node,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &v},
		},
	}
}

// storage is what there is at first.
func (d generator) storage(nodes int) (steps []step) {
	add := func(s storageStep) { steps = append(steps, step{Storage: &s}) }
	late := storagev1.VolumeBindingWaitForFirstConsumer
	now := storagev1.VolumeBindingImmediate
	add(storageStep{
		Class: &storagev1.StorageClass{
			ObjectMeta:        metav1.ObjectMeta{Name: "static"},
			Provisioner:       "kubernetes.io/no-provisioner",
			VolumeBindingMode: &late,
		},
	})
	add(storageStep{Class: &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "made"},
		Provisioner:       driver,
		VolumeBindingMode: &late,
	}})
	add(storageStep{Class: &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "now"},
		Provisioner:       driver,
		VolumeBindingMode: &now,
	}})
	add(storageStep{
		Driver: &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec: storagev1.CSIDriverSpec{
				PreventPodSchedulingIfMissing: new(d.oneIn(3)),
			},
		},
	})
	for i := range mostClaims {
		if i/len(teams)%3 < 2 {
			add(storageStep{Volume: d.volumeOf(i)})
		}
		add(storageStep{Claim: d.claim(i)})
	}
	for i := range 4 {
		add(storageStep{Volume: d.free(i)})
	}
	for i := range nodes {
		if !d.oneIn(3) {
			add(storageStep{CSINode: d.csiNode(i)})
		}
	}
	return steps
}

// ofStorage is a change.
func (d generator) ofStorage(nodes int) step {
	i := d.IntN(mostClaims)
	late := i/len(teams)%3 == 2
	var s storageStep
	switch d.IntN(9) {
	case 0, 1:
		s.CSINode = d.csiNode(d.IntN(nodes))
	case 2, 3:
		s.Attachment = d.attachment(nodes)
	case 4:
		s.Detached = d.attachment(nodes).Name
	case 5:
		s.Claim = d.claim(i)
	case 6:
		s.ClaimGone = d.claim(i)
	case 7:
		s.VolumeGone = fmt.Sprint(pick(d, "v", "s"), i)
	case 8:
		if s.Volume = d.free(4 + d.IntN(4)); !late {
			s.Volume = d.volumeOf(i)
		}
	}
	return step{Storage: &s}
}

// volumes gives a pod some.
func (d generator) volumes(pod *corev1.Pod) {
	team := slices.Index(teams, pod.Namespace)
	for range 1 + d.IntN(2) {
		v := corev1.Volume{Name: fmt.Sprint("v", len(pod.Spec.Volumes))}
		if d.oneIn(5) {
			v.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: pick(d, "d", "e"), ReadOnly: d.oneIn(2)}
		} else {
			claim := team + len(teams)*d.IntN(mostClaims/len(teams))
			if d.oneIn(30) {
				claim = mostClaims // there is none
			}
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", claim)}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
}
