// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/internal/check"
)

// Source is a kind of volume source. Pods and persistent volumes have many of the same, some of them in a Go type for
// each; the check is written once, for the type that pods have.
type Source struct {
	field string // its name in the structs of sources in Go
	child string // where errors in it are reported
	check func(errs *check.List, value any)
	index int // of the field in the struct that the table is for
}

// podSources are those of pods, in the order in which Kubernetes looks at them.
var podSources = indexed[corev1.VolumeSource](
	source("EmptyDir", "emptyDir", checkEmptyDir),
	source("HostPath", "hostPath", checkHostPath),
	source("GitRepo", "gitRepo", checkGitRepo),
	source("GCEPersistentDisk", "persistentDisk", func(errs *check.List, s *corev1.GCEPersistentDiskVolumeSource) {
		checkDisk(errs, "pdName", s.PDName, s.Partition)
	}),
	source("AWSElasticBlockStore", "awsElasticBlockStore",
		func(errs *check.List, s *corev1.AWSElasticBlockStoreVolumeSource) {
			checkDisk(errs, "volumeID", s.VolumeID, s.Partition)
		}),
	source("Secret", "secret", checkSecret),
	source("NFS", "nfs", checkNFS),
	source("ISCSI", "iscsi", func(errs *check.List, s *corev1.ISCSIVolumeSource) { checkISCSI(errs, s, nil) }),
	source("Glusterfs", "glusterfs", func(errs *check.List, s *corev1.GlusterfsVolumeSource) {
		requiredNames(errs, "endpoints", s.EndpointsName, "path", s.Path)
	}),
	source("Flocker", "flocker", checkFlocker),
	source("PersistentVolumeClaim", "persistentVolumeClaim",
		func(errs *check.List, s *corev1.PersistentVolumeClaimVolumeSource) {
			check.Needs(errs, "claimName", s.ClaimName)
		}),
	source("RBD", "rbd", func(errs *check.List, s *corev1.RBDVolumeSource) {
		checkMonitors(errs, s.CephMonitors)
		check.Needs(errs, "image", s.RBDImage)
	}),
	source("Cinder", "cinder", func(errs *check.List, s *corev1.CinderVolumeSource) {
		check.Needs(errs, "volumeID", s.VolumeID)
		checkSecretRef(errs, s.SecretRef)
	}),
	source("CephFS", "cephfs", func(errs *check.List, s *corev1.CephFSVolumeSource) {
		checkMonitors(errs, s.Monitors)
	}),
	source("Quobyte", "quobyte", checkQuobyte),
	source("DownwardAPI", "downwardAPI", checkDownwardAPI),
	source("FC", "fc", checkFibre),
	source("FlexVolume", "flexVolume", checkFlex),
	source("ConfigMap", "configMap", checkConfigMap),
	source("AzureFile", "azureFile", func(errs *check.List, s *corev1.AzureFileVolumeSource) {
		requiredNames(errs, "secretName", s.SecretName, "shareName", s.ShareName)
	}),
	source("VsphereVolume", "vsphereVolume", func(errs *check.List, s *corev1.VsphereVirtualDiskVolumeSource) {
		check.Needs(errs, "volumePath", s.VolumePath)
	}),
	source("PhotonPersistentDisk", "photonPersistentDisk",
		func(errs *check.List, s *corev1.PhotonPersistentDiskVolumeSource) { check.Needs(errs, "pdID", s.PdID) }),
	source("PortworxVolume", "portworxVolume", func(errs *check.List, s *corev1.PortworxVolumeSource) {
		check.Needs(errs, "volumeID", s.VolumeID)
	}),
	source("AzureDisk", "azureDisk", checkAzureDisk),
	source("StorageOS", "storageos", checkStorageOS),
	source("Projected", "projected", checkProjected),
	source("ScaleIO", "scaleIO", func(errs *check.List, s *corev1.ScaleIOVolumeSource) {
		requiredNames(errs, "gateway", s.Gateway, "system", s.System, "volumeName", s.VolumeName)
	}),
	source("CSI", "csi", checkCSI),
	source("Ephemeral", "ephemeral", checkEphemeralVolume),
	source("Image", "image", checkImage),
)

func source[T any](field, child string, f func(*check.List, *T)) Source {
	return Source{
		field: field,
		child: child,
		check: func(errs *check.List, value any) { f(errs, podForm[T](value)) },
	}
}

// indexed are the sources as the fields of All.
func indexed[All any](sources ...Source) []Source {
	for i := range sources {
		f, _ := reflect.TypeFor[All]().FieldByName(sources[i].field)
		sources[i].index = f.Index[0]
	}
	return sources
}

// SourcesOf are the sources in fields of All, in this order. A source that pods do not have has no check.
func SourcesOf[All any](fields ...string) []Source {
	var sources []Source
	for _, field := range fields {
		s := Source{field: field, child: strings.ToLower(field)}
		for _, known := range podSources {
			if known.field == field {
				s = known
			}
		}
		sources = append(sources, s)
	}
	return indexed[All](sources...)
}

// EachSource visits the sources that are set in all, a struct of pointers; at least one must be. The caller decides
// about those that are not the first.
func EachSource(errs *check.List, sources []Source, all any, visit func(s *Source, value any, first bool)) {
	fields := reflect.ValueOf(all).Elem()
	first := true
	for i := range sources {
		if f := fields.Field(sources[i].index); !f.IsNil() {
			visit(&sources[i], f.Interface(), first)
			first = false
		}
	}
	if first {
		errs.Required("", "must specify a volume type")
	}
}

// Check checks value, a source as pods or as persistent volumes have it.
func (s *Source) Check(errs *check.List, value any) {
	errs.In(s.child)
	s.check(errs, value)
	errs.Out()
}

// OneTooMany reports that there was another source.
func (s *Source) OneTooMany(errs *check.List) {
	child := s.child
	// Kubernetes has other names for some fields here, one of them misspelt.
	switch s.field {
	case "GCEPersistentDisk":
		child = "gcePersistentDisk"
	case "DownwardAPI":
		child = "downwarAPI"
	case "CephFS":
		child = "cephFS"
	}
	errs.Forbidden(child, "may not specify more than 1 volume type")
}

// podForm is the source as pods write it. A persistent volume's type of it has the same fields, and namespaces in
// addition, which are left out.
func podForm[T any](value any) *T {
	if source, ok := value.(*T); ok {
		return source
	}
	source := new(T)
	copyFields(reflect.ValueOf(source).Elem(), reflect.ValueOf(value).Elem())
	return source
}

// copyFields fills to from the fields of the same names; references to secrets differ in type.
func copyFields(to, from reflect.Value) {
	for i := range to.NumField() {
		field := to.Field(i)
		other := from.FieldByName(to.Type().Field(i).Name)
		switch {
		case field.Type() == other.Type():
			field.Set(other)
		case !other.IsNil():
			field.Set(reflect.New(field.Type().Elem()))
			copyFields(field.Elem(), other.Elem())
		}
	}
}
