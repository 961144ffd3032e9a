// SPDX-License-Identifier: Apache-2.0

// Package volume describes persistent volumes and the claims to them. Package
// podspec has the rules of the volume sources that pods know too.
package volume

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/api/resources"
)

// PersistentVolume describes v1 PersistentVolume.
func PersistentVolume() *kind.Kind {
	type volume = corev1.PersistentVolume
	return kind.Spec[*volume]{
		Names: kind.Names{
			Version: "v1", Kind: "PersistentVolume", Resource: "persistentvolumes", Singular: "persistentvolume", ShortNames: []string{"pv"},
		},
		New:     func() *volume { return &volume{} },
		NewList: func() runtime.Object { return &corev1.PersistentVolumeList{} },
		Default: defaultPersistentVolume,
		PrepareCreate: func(v *volume) {
			now := metav1.Now().Rfc3339Copy()
			v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
		},
		PrepareUpdate:  func(v, old *volume) { v.Status = old.Status },
		Validate:       validatePersistentVolume,
		ValidateUpdate: validatePersistentVolumeUpdate,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Capacity", Type: "string", Description: "The size of the volume."},
			{Name: "Access Modes", Type: "string", Description: "How the volume may be mounted."},
			{Name: "Reclaim Policy", Type: "string", Description: "What becomes of the volume when its claim goes."},
			{Name: "Status", Type: "string", Description: "Whether a claim is bound to the volume."},
			{Name: "Claim", Type: "string", Description: "The claim that is bound to the volume."},
			{Name: "StorageClass", Type: "string", Description: "StorageClass of the pv"},
			{Name: "VolumeAttributesClass", Type: "string", Description: "VolumeAttributesClass of the pv"},
			{Name: "Reason", Type: "string", Description: "Why the volume is in that state."},
			kind.AgeColumn,
			{Name: "VolumeMode", Type: "string", Priority: 1, Description: "Whether the volume is a file system or a block device."},
		},
		Row: persistentVolumeRow,
		Status: &kind.Sub[*volume]{
			PrepareUpdate: func(v, old *volume) {
				v.Spec = old.Spec
				stampPhase(v, old)
			},
			ValidateUpdate: func(*volume, *volume) field.ErrorList { return nil },
		},
	}.Erase()
}

// stampPhase notes when the phase changed.
func stampPhase(v, old *corev1.PersistentVolume) {
	now := metav1.Now().Rfc3339Copy()
	last, before := v.Status.LastPhaseTransitionTime, old.Status.LastPhaseTransitionTime
	if v.Status.Phase == old.Status.Phase {
		if last == nil {
			v.Status.LastPhaseTransitionTime = before
		}
		return
	}
	if last == nil || last.Equal(before) {
		v.Status.LastPhaseTransitionTime = &now
	}
}

func defaultPersistentVolume(v *corev1.PersistentVolume) {
	if v.Status.Phase == "" {
		v.Status.Phase = corev1.VolumePending
	}
	s := &v.Spec
	if s.PersistentVolumeReclaimPolicy == "" {
		s.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	kind.Fill(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	resources.RoundUp(s.Capacity)
	if s.HostPath != nil {
		kind.Fill(&s.HostPath.Type, corev1.HostPathUnset)
	}
	if r := s.RBD; r != nil {
		kind.FillZero(&r.RBDPool, "rbd")
		kind.FillZero(&r.RadosUser, "admin")
		kind.FillZero(&r.Keyring, "/etc/ceph/keyring")
	}
	if i := s.ISCSI; i != nil {
		kind.FillZero(&i.ISCSIInterface, "default")
	}
	if i := s.ScaleIO; i != nil {
		kind.FillZero(&i.StorageMode, "ThinProvisioned")
		kind.FillZero(&i.FSType, "xfs")
	}
	podspec.DefaultLegacyVolume(&corev1.VolumeSource{AzureDisk: s.AzureDisk})
}

func persistentVolumeRow(v *corev1.PersistentVolume) []any {
	claim, phase := "", string(v.Status.Phase)
	if r := v.Spec.ClaimRef; r != nil {
		claim = r.Namespace + "/" + r.Name
	}
	if v.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	class, ok := v.Annotations[corev1.BetaStorageClassAnnotation]
	if !ok {
		class = v.Spec.StorageClassName
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		v.Name, size.String(), accessModes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim, class,
		orUnset(v.Spec.VolumeAttributesClassName), v.Status.Reason, kind.Age(v.CreationTimestamp), orUnset(v.Spec.VolumeMode),
	}
}

func validatePersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(v)...)
	l.In("spec")
	s := &v.Spec
	validateVolumeModes(l, s)
	validateCapacity(l, s.Capacity)
	if p := s.PersistentVolumeReclaimPolicy; p != "" {
		check.Pointer(l, "persistentVolumeReclaimPolicy", &p, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
	}
	if a := s.NodeAffinity; a != nil {
		l.Within("nodeAffinity", func() {
			if a.Required == nil {
				l.Required("required", "must specify required node constraints")
				return
			}
			l.Within("required", func() { podspec.NodeSelector(l, a.Required) })
		})
	}
	validateVolumeSources(l, v)
	if s.HostPath != nil && path.Clean(s.HostPath.Path) == "/" && s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		l.Forbidden("persistentVolumeReclaimPolicy", "may not be 'recycle' for a hostPath mount of '/'")
	}
	if s.StorageClassName != "" {
		l.Subdomain("storageClassName", s.StorageClassName)
	}
	check.Pointer(l, "volumeMode", s.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	if class := s.VolumeAttributesClassName; class != nil {
		if *class == "" {
			l.Required("volumeAttributesClassName", "an empty string is disallowed")
		} else {
			l.Subdomain("volumeAttributesClassName", *class)
		}
		if s.CSI == nil {
			l.Required("csi", "has to be specified when using volumeAttributesClassName")
		}
	}
	return l.Errors()
}

func validateVolumeModes(l *check.List, s *corev1.PersistentVolumeSpec) {
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
	if len(s.AccessModes) == 0 {
		l.Required("accessModes", "")
	}
	for _, m := range s.AccessModes {
		if !slices.Contains(modes, m) {
			check.NotSupported(l, "accessModes", m, modes...)
		}
	}
	if len(s.AccessModes) > 1 && slices.Contains(s.AccessModes, corev1.ReadWriteOncePod) {
		l.Forbidden("accessModes", "may not use ReadWriteOncePod with other access modes")
	}
}

func validateCapacity(l *check.List, list corev1.ResourceList) {
	if len(list) == 0 {
		l.Required("capacity", "")
	}
	if _, ok := list[corev1.ResourceStorage]; !ok || len(list) > 1 {
		check.NotSupported(l, "capacity", list, corev1.ResourceStorage)
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; q.Sign() <= 0 {
			l.Add(field.Invalid(l.Path("capacity").Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
}

// validateVolumeSources checks the sources that pods know too as theirs, and the two that only volumes have.
func validateVolumeSources(l *check.List, v *corev1.PersistentVolume) {
	s, n := &v.Spec, 0
	if shared := sharedSource(&s.PersistentVolumeSource); shared != (corev1.VolumeSource{}) {
		podspec.VolumeSource(l, &corev1.Volume{Name: v.Name, VolumeSource: shared})
		n++
	}
	one := func(set bool, child string, check func()) {
		if !set {
			return
		}
		if n++; n > 1 {
			l.Forbidden(child, "may not specify more than 1 volume type")
			return
		}
		l.Within(child, check)
	}
	one(s.Local != nil, "local", func() {
		if s.Local.Path == "" {
			l.Required("path", "")
		}
		podspec.NoBacksteps(l, "path", s.Local.Path)
	})
	if s.Local != nil && s.NodeAffinity == nil {
		l.Add(field.Required(field.NewPath("metadata").Child("annotations"), "Local volume requires node affinity"))
	}
	one(s.CSI != nil, "csi", func() { validateVolumeCSI(l, s.CSI) })
	if n == 0 {
		l.Required("", "must specify a volume type")
	}
}

// sharedSource is s as pods write it; namespaces of secrets, which pods do not have, are left out.
func sharedSource(s *corev1.PersistentVolumeSource) corev1.VolumeSource {
	out := corev1.VolumeSource{
		GCEPersistentDisk: s.GCEPersistentDisk, AWSElasticBlockStore: s.AWSElasticBlockStore, HostPath: s.HostPath, NFS: s.NFS, FC: s.FC,
		Flocker: s.Flocker, VsphereVolume: s.VsphereVolume, Quobyte: s.Quobyte, AzureDisk: s.AzureDisk, PhotonPersistentDisk: s.PhotonPersistentDisk,
		PortworxVolume: s.PortworxVolume,
	}
	if g := s.Glusterfs; g != nil {
		out.Glusterfs = &corev1.GlusterfsVolumeSource{EndpointsName: g.EndpointsName, Path: g.Path}
	}
	if r := s.RBD; r != nil {
		out.RBD = &corev1.RBDVolumeSource{CephMonitors: r.CephMonitors, RBDImage: r.RBDImage, RBDPool: r.RBDPool, SecretRef: local(r.SecretRef)}
	}
	if i := s.ISCSI; i != nil {
		out.ISCSI = &corev1.ISCSIVolumeSource{
			TargetPortal: i.TargetPortal, IQN: i.IQN, Lun: i.Lun, DiscoveryCHAPAuth: i.DiscoveryCHAPAuth, SessionCHAPAuth: i.SessionCHAPAuth,
			SecretRef: local(i.SecretRef), InitiatorName: i.InitiatorName,
		}
	}
	if c := s.Cinder; c != nil {
		out.Cinder = &corev1.CinderVolumeSource{VolumeID: c.VolumeID, SecretRef: local(c.SecretRef)}
	}
	if c := s.CephFS; c != nil {
		out.CephFS = &corev1.CephFSVolumeSource{Monitors: c.Monitors, SecretRef: local(c.SecretRef)}
	}
	if f := s.FlexVolume; f != nil {
		out.FlexVolume = &corev1.FlexVolumeSource{Driver: f.Driver, Options: f.Options}
	}
	if a := s.AzureFile; a != nil {
		out.AzureFile = &corev1.AzureFileVolumeSource{SecretName: a.SecretName, ShareName: a.ShareName}
	}
	if i := s.ScaleIO; i != nil {
		out.ScaleIO = &corev1.ScaleIOVolumeSource{Gateway: i.Gateway, System: i.System, VolumeName: i.VolumeName, SecretRef: local(i.SecretRef)}
	}
	if o := s.StorageOS; o != nil {
		out.StorageOS = &corev1.StorageOSVolumeSource{VolumeName: o.VolumeName, VolumeNamespace: o.VolumeNamespace}
	}
	return out
}

func local(r *corev1.SecretReference) *corev1.LocalObjectReference {
	if r == nil {
		return nil
	}
	return &corev1.LocalObjectReference{Name: r.Name}
}

func validateVolumeCSI(l *check.List, s *corev1.CSIPersistentVolumeSource) {
	podspec.DriverName(l, "driver", s.Driver)
	if s.VolumeHandle == "" {
		l.Required("volumeHandle", "")
	}
	for _, r := range []struct {
		child string
		ref   *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", s.ControllerPublishSecretRef}, {"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef},
	} {
		if r.ref == nil {
			continue
		}
		l.In(r.child)
		if r.ref.Name == "" {
			l.Required("name", "")
		}
		if r.ref.Namespace == "" {
			l.Required("namespace", "")
		}
		l.Out()
	}
}

func validatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	errs := validatePersistentVolume(v)
	now, was := v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource
	if now.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		c := *was.CSI // may be added later
		c.ControllerExpandSecretRef = now.CSI.ControllerExpandSecretRef
		was.CSI = &c
	}
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", cmp.Diff(was, now))))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(v.Spec.NodeAffinity, old.Spec.NodeAffinity, field.NewPath("nodeAffinity"))...)
	}
	return errs
}
