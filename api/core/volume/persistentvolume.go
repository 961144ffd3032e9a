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
func stampPhase(pv, old *corev1.PersistentVolume) {
	now := metav1.Now().Rfc3339Copy()
	last := pv.Status.LastPhaseTransitionTime
	before := old.Status.LastPhaseTransitionTime
	if pv.Status.Phase == old.Status.Phase {
		if last == nil {
			pv.Status.LastPhaseTransitionTime = before
		}
		return
	}
	if last == nil || last.Equal(before) {
		pv.Status.LastPhaseTransitionTime = &now
	}
}

func defaultPersistentVolume(v *corev1.PersistentVolume) {
	if v.Status.Phase == "" {
		v.Status.Phase = corev1.VolumePending
	}
	spec := &v.Spec
	if spec.PersistentVolumeReclaimPolicy == "" {
		spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	kind.Fill(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	resources.RoundUp(spec.Capacity)
	if r := spec.RBD; r != nil {
		podspec.DefaultRBD(&r.RBDPool, &r.RadosUser, &r.Keyring)
	}
	if i := spec.ISCSI; i != nil {
		podspec.DefaultISCSI(&i.ISCSIInterface)
	}
	if i := spec.ScaleIO; i != nil {
		podspec.DefaultScaleIO(&i.StorageMode, &i.FSType)
	}
	podspec.DefaultSharedSources(&corev1.VolumeSource{AzureDisk: spec.AzureDisk, HostPath: spec.HostPath})
}

func persistentVolumeRow(pv *corev1.PersistentVolume) []any {
	claim := ""
	phase := string(pv.Status.Phase)
	if r := pv.Spec.ClaimRef; r != nil {
		claim = r.Namespace + "/" + r.Name
	}
	if pv.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	class, ok := pv.Annotations[corev1.BetaStorageClassAnnotation]
	if !ok {
		class = pv.Spec.StorageClassName
	}
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		pv.Name, size.String(), accessModes(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy), phase,
		claim, class,
		orUnset(pv.Spec.VolumeAttributesClassName), pv.Status.Reason, kind.Age(pv.CreationTimestamp),
		orUnset(pv.Spec.VolumeMode),
	}
}

func validatePersistentVolume(pv *corev1.PersistentVolume) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(pv)...)
	errs.In("spec")
	spec := &pv.Spec
	validateVolumeModes(errs, spec)
	validateCapacity(errs, spec.Capacity)
	if p := spec.PersistentVolumeReclaimPolicy; p != "" {
		check.Pointer(errs, "persistentVolumeReclaimPolicy", &p, corev1.PersistentVolumeReclaimDelete,
			corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
	}
	if a := spec.NodeAffinity; a != nil {
		errs.Within("nodeAffinity", func() {
			if a.Required == nil {
				errs.Required("required", "must specify required node constraints")
				return
			}
			errs.Within("required", func() { podspec.NodeSelector(errs, a.Required) })
		})
	}
	validateVolumeSources(errs, pv)
	if spec.HostPath != nil && path.Clean(spec.HostPath.Path) == "/" &&
		spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs.Forbidden("persistentVolumeReclaimPolicy", "may not be 'recycle' for a hostPath mount of '/'")
	}
	if spec.StorageClassName != "" {
		errs.Subdomain("storageClassName", spec.StorageClassName)
	}
	check.Pointer(errs, "volumeMode", spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	if class := spec.VolumeAttributesClassName; class != nil {
		if *class == "" {
			errs.Required("volumeAttributesClassName", "an empty string is disallowed")
		} else {
			errs.Subdomain("volumeAttributesClassName", *class)
		}
		if spec.CSI == nil {
			errs.Required("csi", "has to be specified when using volumeAttributesClassName")
		}
	}
	return errs.Errors()
}

func validateVolumeModes(errs *check.List, spec *corev1.PersistentVolumeSpec) {
	modes := []corev1.PersistentVolumeAccessMode{
		corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
	}
	if len(spec.AccessModes) == 0 {
		errs.Required("accessModes", "")
	}
	for _, m := range spec.AccessModes {
		if !slices.Contains(modes, m) {
			check.NotSupported(errs, "accessModes", m, modes...)
		}
	}
	others := func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadWriteOncePod && slices.Contains(modes, m)
	}
	if slices.Contains(spec.AccessModes, corev1.ReadWriteOncePod) && slices.ContainsFunc(spec.AccessModes, others) {
		errs.Forbidden("accessModes", "may not use ReadWriteOncePod with other access modes")
	}
}

func validateCapacity(errs *check.List, list corev1.ResourceList) {
	if len(list) == 0 {
		errs.Required("capacity", "")
	}
	if _, ok := list[corev1.ResourceStorage]; !ok || len(list) > 1 {
		check.NotSupported(errs, "capacity", list, corev1.ResourceStorage)
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		if q.Value() < 0 {
			errs.Add(field.Invalid(errs.Path("capacity").Key(string(name)), q.Value(),
				"must be a valid resource quantity"))
		}
		if q.Sign() <= 0 {
			errs.Add(field.Invalid(errs.Path("capacity").Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
}

// sources are those of persistent volumes, in the order in which Kubernetes looks at them.
var sources = podspec.SourcesOf[corev1.PersistentVolumeSource](
	"HostPath", "GCEPersistentDisk", "AWSElasticBlockStore", "Glusterfs", "Flocker", "NFS", "RBD", "Quobyte", "CephFS",
	"ISCSI", "Cinder", "FC", "FlexVolume", "AzureFile", "VsphereVolume", "PhotonPersistentDisk", "PortworxVolume",
	"AzureDisk", "ScaleIO", "Local", "StorageOS", "CSI",
)

// validateVolumeSources requires exactly one source, except that a FlexVolume may follow another one.
func validateVolumeSources(errs *check.List, pv *corev1.PersistentVolume) {
	podspec.EachSource(errs, sources, &pv.Spec.PersistentVolumeSource, func(s *podspec.Source, value any, first bool) {
		if _, flex := value.(*corev1.FlexPersistentVolumeSource); first || flex {
			validateSource(errs, pv, s, value)
		} else {
			s.OneTooMany(errs)
		}
	})
}

// validateSource checks a source of pv: as pods' where pods have it, too, and what it has in addition.
func validateSource(errs *check.List, pv *corev1.PersistentVolume, s *podspec.Source, value any) {
	switch source := value.(type) {
	case *corev1.LocalVolumeSource:
		if source.Path == "" {
			errs.Required("local.path", "")
		} else {
			errs.Within("local", func() { podspec.NoBacksteps(errs, "path", source.Path) })
		}
		if pv.Spec.NodeAffinity == nil {
			errs.Required("nodeAffinity", "Local volume requires node affinity")
		}
	case *corev1.CSIPersistentVolumeSource:
		errs.Within("csi", func() { validateVolumeCSI(errs, source) })
	case *corev1.ISCSIPersistentVolumeSource:
		errs.Within("iscsi", func() { podspec.PersistentISCSI(errs, pv.Name, source) })
	default:
		s.Check(errs, value)
		validateNamespaces(errs, value)
	}
}

// validateNamespaces checks what volume sources of persistent volumes have in addition to those of pods: namespaces.
func validateNamespaces(errs *check.List, value any) {
	switch source := value.(type) {
	case *corev1.CinderPersistentVolumeSource:
		if r := source.SecretRef; r != nil && r.Namespace == "" {
			errs.Required("cinder.secretRef.namespace", "")
		}
	case *corev1.StorageOSPersistentVolumeSource:
		if r := source.SecretRef; r != nil && r.Namespace == "" {
			errs.Required("storageos.secretRef.namespace", "")
		}
	case *corev1.AzureFilePersistentVolumeSource:
		if ns := source.SecretNamespace; ns != nil && *ns == "" {
			errs.Required("azureFile.secretNamespace", "")
		}
	case *corev1.GlusterfsPersistentVolumeSource:
		if ns := source.EndpointsNamespace; ns != nil && *ns == "" {
			errs.Invalid("glusterfs.endpointsNamespace", *ns,
				"if the endpointnamespace is set, it must be a valid namespace name")
		} else if ns != nil {
			errs.Name("glusterfs.endpointsNamespace", *ns, apivalidation.ValidateNamespaceName)
		}
	}
}

func validateVolumeCSI(errs *check.List, source *corev1.CSIPersistentVolumeSource) {
	podspec.DriverName(errs, "driver", source.Driver)
	check.Needs(errs, "volumeHandle", source.VolumeHandle)
	for _, r := range []struct {
		child string
		ref   *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", source.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", source.ControllerExpandSecretRef},
		{"nodePublishSecretRef", source.NodePublishSecretRef},
		{"nodeExpandSecretRef", source.NodeExpandSecretRef},
	} {
		if r.ref == nil {
			continue
		}
		errs.In(r.child)
		check.NeedsForm(errs, "name", r.ref.Name, errs.Subdomain)
		check.NeedsForm(errs, "namespace", r.ref.Namespace, errs.Label)
		errs.Out()
	}
}

// volumeWarnings name what is old about a volume.
func volumeWarnings(pv, _ *corev1.PersistentVolume) []string {
	var out []string
	say := func(set bool, path, text string) {
		if set {
			out = append(out, path+": "+text)
		}
	}
	_, class := pv.Annotations[corev1.BetaStorageClassAnnotation]
	_, options := pv.Annotations["volume.beta.kubernetes.io/mount-options"]
	say(class, "metadata.annotations[volume.beta.kubernetes.io/storage-class]",
		`deprecated since v1.8; use "storageClassName" attribute instead`)
	say(options, "metadata.annotations[volume.beta.kubernetes.io/mount-options]",
		`deprecated since v1.31; use "mountOptions" attribute instead`)
	spec := &pv.Spec
	say(spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle,
		"spec.persistentVolumeReclaimPolicy",
		"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	if a := spec.NodeAffinity; a != nil && a.Required != nil {
		out = append(out, podspec.NodeTermWarnings(a.Required.NodeSelectorTerms,
			field.NewPath("spec", "nodeAffinity", "required", "nodeSelectorTerms"))...)
	}
	say(spec.CephFS != nil, "spec.cephfs", "deprecated in v1.28, non-functional in v1.31+")
	say(spec.PhotonPersistentDisk != nil, "spec.photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+")
	say(spec.ScaleIO != nil, "spec.scaleIO", "deprecated in v1.16, non-functional in v1.22+")
	say(spec.StorageOS != nil, "spec.storageOS", "deprecated in v1.22, non-functional in v1.25+")
	say(spec.Glusterfs != nil, "spec.glusterfs", "deprecated in v1.25, non-functional in v1.26+")
	say(spec.RBD != nil, "spec.rbd", "deprecated in v1.28, non-functional in v1.31+")
	return out
}

func validatePersistentVolumeUpdate(pv, old *corev1.PersistentVolume) field.ErrorList {
	errs := validatePersistentVolume(pv)
	now := pv.Spec.PersistentVolumeSource
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
	errs = append(errs, apivalidation.ValidateImmutableField(pv.Spec.VolumeMode, old.Spec.VolumeMode,
		field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(pv.Spec.NodeAffinity, old.Spec.NodeAffinity,
			field.NewPath("nodeAffinity"))...)
	}
	return errs
}
