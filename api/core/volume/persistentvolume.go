// SPDX-License-Identifier: Apache-2.0

// Package volume describes persistent volumes and the claims to them. Package
// podspec has the rules of the volume sources that pods know too.
package volume

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
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
			Version:    "v1",
			Kind:       "PersistentVolume",
			Resource:   "persistentvolumes",
			Singular:   "persistentvolume",
			ShortNames: []string{"pv"},
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
		Warnings:       volumeWarnings,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Capacity", Type: "string", Description: corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]},
			{
				Name:        "Access Modes",
				Type:        "string",
				Description: corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"],
			},
			{
				Name:        "Reclaim Policy",
				Type:        "string",
				Description: corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"],
			},
			{Name: "Status", Type: "string", Description: corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]},
			{Name: "Claim", Type: "string", Description: corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]},
			{Name: "StorageClass", Type: "string", Description: "StorageClass of the pv"},
			{Name: "VolumeAttributesClass", Type: "string", Description: "VolumeAttributesClass of the pv"},
			{Name: "Reason", Type: "string", Description: corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]},
			kind.AgeColumn,
			{
				Name:        "VolumeMode",
				Type:        "string",
				Priority:    1,
				Description: corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"],
			},
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
	last := v.Status.LastPhaseTransitionTime
	before := old.Status.LastPhaseTransitionTime
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
	claim := ""
	phase := string(v.Status.Phase)
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
		v.Name, size.String(), accessModes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), phase,
		claim, class,
		orUnset(v.Spec.VolumeAttributesClassName), v.Status.Reason, kind.Age(v.CreationTimestamp),
		orUnset(v.Spec.VolumeMode),
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
		check.Pointer(l, "persistentVolumeReclaimPolicy", &p, corev1.PersistentVolumeReclaimDelete,
			corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
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
	if s.HostPath != nil && path.Clean(s.HostPath.Path) == "/" &&
		s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
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
	modes := []corev1.PersistentVolumeAccessMode{
		corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
	}
	if len(s.AccessModes) == 0 {
		l.Required("accessModes", "")
	}
	for _, m := range s.AccessModes {
		if !slices.Contains(modes, m) {
			check.NotSupported(l, "accessModes", m, modes...)
		}
	}
	others := func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadWriteOncePod && slices.Contains(modes, m)
	}
	if slices.Contains(s.AccessModes, corev1.ReadWriteOncePod) && slices.ContainsFunc(s.AccessModes, others) {
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
		q := list[name]
		if q.Value() < 0 {
			l.Add(field.Invalid(l.Path("capacity").Key(string(name)), q.Value(), "must be a valid resource quantity"))
		}
		if q.Sign() <= 0 {
			l.Add(field.Invalid(l.Path("capacity").Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
}

// sourceOrder are the sources in the order in which Kubernetes looks at them.
var sourceOrder = []string{
	"HostPath", "GCEPersistentDisk", "AWSElasticBlockStore", "Glusterfs", "Flocker", "NFS", "RBD", "Quobyte", "CephFS",
	"ISCSI", "Cinder", "FC", "FlexVolume",
	"AzureFile", "VsphereVolume", "PhotonPersistentDisk", "PortworxVolume", "AzureDisk", "ScaleIO", "Local",
	"StorageOS", "CSI",
}

// validateVolumeSources wants one source; a FlexVolume is none too many wherever it comes.
func validateVolumeSources(l *check.List, v *corev1.PersistentVolume) {
	all := reflect.ValueOf(&v.Spec.PersistentVolumeSource).Elem()
	n := 0
	for _, source := range sourceOrder {
		f := all.FieldByName(source)
		if f.IsNil() {
			continue
		}
		if n++; n > 1 && source != "FlexVolume" {
			l.Forbidden(podspec.TwiceName(source), "may not specify more than 1 volume type")
			continue
		}
		var one corev1.PersistentVolumeSource
		reflect.ValueOf(&one).Elem().FieldByName(source).Set(f)
		validateSource(l, v, &one)
	}
	if n == 0 {
		l.Required("", "must specify a volume type")
	}
}

// validateSource checks s, the one source of v that is looked at: as pods' where pods know it, too.
func validateSource(l *check.List, v *corev1.PersistentVolume, s *corev1.PersistentVolumeSource) {
	switch {
	case s.Local != nil:
		if s.Local.Path == "" {
			l.Required("local.path", "")
		} else {
			l.Within("local", func() { podspec.NoBacksteps(l, "path", s.Local.Path) })
		}
		if v.Spec.NodeAffinity == nil {
			l.Required("nodeAffinity", "Local volume requires node affinity")
		}
	case s.CSI != nil:
		l.Within("csi", func() { validateVolumeCSI(l, s.CSI) })
	case s.ISCSI != nil:
		l.Within("iscsi", func() { validateVolumeISCSI(l, v.Name, s.ISCSI) })
	default:
		podspec.VolumeSource(l, &corev1.Volume{Name: v.Name, VolumeSource: sharedSource(s)})
		validateNamespaces(l, s)
	}
}

// validateNamespaces checks what the sources of volumes have beside those of pods: namespaces.
func validateNamespaces(l *check.List, s *corev1.PersistentVolumeSource) {
	namespace := func(child string, r *corev1.SecretReference) {
		if r != nil && r.Namespace == "" {
			l.Required(child+".secretRef.namespace", "")
		}
	}
	switch {
	case s.Cinder != nil:
		namespace("cinder", s.Cinder.SecretRef)
	case s.StorageOS != nil:
		if r := s.StorageOS.SecretRef; r != nil && r.Name == "" {
			l.Required("storageos.secretRef.name", "")
		}
		if r := s.StorageOS.SecretRef; r != nil && r.Namespace == "" {
			l.Required("storageos.secretRef.namespace", "")
		}
	case s.AzureFile != nil:
		if ns := s.AzureFile.SecretNamespace; ns != nil && *ns == "" {
			l.Required("azureFile.secretNamespace", "")
		}
	case s.Glusterfs != nil:
		if ns := s.Glusterfs.EndpointsNamespace; ns != nil {
			l.In("glusterfs")
			if *ns == "" {
				l.Invalid("endpointsNamespace", *ns,
					"if the endpointnamespace is set, it must be a valid namespace name")
			} else {
				l.Name("endpointsNamespace", *ns, apivalidation.ValidateNamespaceName)
			}
			l.Out()
		}
	}
}

func validateVolumeISCSI(l *check.List, name string, s *corev1.ISCSIPersistentVolumeSource) {
	const noForm = "must be valid format"
	if s.TargetPortal == "" {
		l.Required("targetPortal", "")
	}
	if s.InitiatorName != nil && len(name)+1+len(s.TargetPortal) > 64 {
		l.Invalid("targetportal", s.TargetPortal, "Total length of <volume name>:<iscsi.targetPortal> must be under "+
			"64 characters if iscsi.initiatorName is specified.")
	}
	if s.IQN == "" {
		l.Required("iqn", "")
	} else {
		podspec.ISCSIName(l, "iqn", s.IQN, noForm)
	}
	if s.Lun < 0 || s.Lun > 255 {
		l.Invalid("lun", s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		l.Required("secretRef", "")
	}
	if s.SecretRef != nil && s.SecretRef.Name == "" {
		l.Required("secretRef.name", "")
	}
	if s.InitiatorName != nil {
		podspec.ISCSIName(l, "initiatorname", *s.InitiatorName, noForm)
	}
}

// sharedSource is s as pods write it; what pods do not have is left out.
func sharedSource(s *corev1.PersistentVolumeSource) corev1.VolumeSource {
	out := corev1.VolumeSource{
		GCEPersistentDisk:    s.GCEPersistentDisk,
		AWSElasticBlockStore: s.AWSElasticBlockStore,
		HostPath:             s.HostPath,
		NFS:                  s.NFS,
		FC:                   s.FC,
		Flocker:              s.Flocker,
		VsphereVolume:        s.VsphereVolume,
		Quobyte:              s.Quobyte,
		AzureDisk:            s.AzureDisk,
		PhotonPersistentDisk: s.PhotonPersistentDisk,
		PortworxVolume:       s.PortworxVolume,
	}
	if g := s.Glusterfs; g != nil {
		out.Glusterfs = &corev1.GlusterfsVolumeSource{EndpointsName: g.EndpointsName, Path: g.Path}
	}
	if r := s.RBD; r != nil {
		out.RBD = &corev1.RBDVolumeSource{CephMonitors: r.CephMonitors, RBDImage: r.RBDImage, RBDPool: r.RBDPool}
	}
	if c := s.Cinder; c != nil {
		out.Cinder = &corev1.CinderVolumeSource{VolumeID: c.VolumeID, SecretRef: local(c.SecretRef)}
	}
	if c := s.CephFS; c != nil {
		out.CephFS = &corev1.CephFSVolumeSource{Monitors: c.Monitors}
	}
	if f := s.FlexVolume; f != nil {
		out.FlexVolume = &corev1.FlexVolumeSource{Driver: f.Driver, Options: f.Options}
	}
	if a := s.AzureFile; a != nil {
		out.AzureFile = &corev1.AzureFileVolumeSource{SecretName: a.SecretName, ShareName: a.ShareName}
	}
	if i := s.ScaleIO; i != nil {
		out.ScaleIO = &corev1.ScaleIOVolumeSource{Gateway: i.Gateway, System: i.System, VolumeName: i.VolumeName}
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
		{"controllerPublishSecretRef", s.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef},
		{"nodeExpandSecretRef", s.NodeExpandSecretRef},
	} {
		if r.ref == nil {
			continue
		}
		l.In(r.child)
		if r.ref.Name == "" {
			l.Required("name", "")
		} else {
			l.Subdomain("name", r.ref.Name)
		}
		if r.ref.Namespace == "" {
			l.Required("namespace", "")
		} else {
			l.Label("namespace", r.ref.Namespace)
		}
		l.Out()
	}
}

// volumeWarnings name what is old about a volume.
func volumeWarnings(v, _ *corev1.PersistentVolume) []string {
	var out []string
	say := func(set bool, path, text string) {
		if set {
			out = append(out, path+": "+text)
		}
	}
	_, class := v.Annotations[corev1.BetaStorageClassAnnotation]
	_, options := v.Annotations["volume.beta.kubernetes.io/mount-options"]
	say(class, "metadata.annotations[volume.beta.kubernetes.io/storage-class]",
		`deprecated since v1.8; use "storageClassName" attribute instead`)
	say(options, "metadata.annotations[volume.beta.kubernetes.io/mount-options]",
		`deprecated since v1.31; use "mountOptions" attribute instead`)
	s := &v.Spec
	say(s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle, "spec.persistentVolumeReclaimPolicy",
		"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	if a := s.NodeAffinity; a != nil && a.Required != nil {
		out = append(out, podspec.NodeTermWarnings(a.Required.NodeSelectorTerms,
			field.NewPath("spec", "nodeAffinity", "required", "nodeSelectorTerms"))...)
	}
	say(s.CephFS != nil, "spec.cephfs", "deprecated in v1.28, non-functional in v1.31+")
	say(s.PhotonPersistentDisk != nil, "spec.photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+")
	say(s.ScaleIO != nil, "spec.scaleIO", "deprecated in v1.16, non-functional in v1.22+")
	say(s.StorageOS != nil, "spec.storageOS", "deprecated in v1.22, non-functional in v1.25+")
	say(s.Glusterfs != nil, "spec.glusterfs", "deprecated in v1.25, non-functional in v1.26+")
	say(s.RBD != nil, "spec.rbd", "deprecated in v1.28, non-functional in v1.31+")
	return out
}

func validatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	errs := validatePersistentVolume(v)
	now := v.Spec.PersistentVolumeSource
	was := old.Spec.PersistentVolumeSource
	if now.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		c := *was.CSI // may be added later
		c.ControllerExpandSecretRef = now.CSI.ControllerExpandSecretRef
		was.CSI = &c
	}
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", cmp.Diff(was, now))))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(v.Spec.VolumeMode, old.Spec.VolumeMode,
		field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(v.Spec.NodeAffinity, old.Spec.NodeAffinity,
			field.NewPath("nodeAffinity"))...)
	}
	return errs
}
