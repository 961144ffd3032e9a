// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/api/internal/check"
)

// The volume sources that came before CSI, few of which still work.

// requiredNames wants a value for each child.
func requiredNames(errs *check.List, childrenAndValues ...string) {
	for i := 0; i+1 < len(childrenAndValues); i += 2 {
		check.Needs(errs, childrenAndValues[i], childrenAndValues[i+1])
	}
}

func checkGitRepo(errs *check.List, s *corev1.GitRepoVolumeSource) {
	check.Needs(errs, "repository", s.Repository)
	checkDescending(errs, "directory", s.Directory)
}

func checkDisk(errs *check.List, child, name string, partition int32) {
	check.Needs(errs, child, name)
	if partition < 0 || partition > 255 {
		errs.Invalid("partition", partition, validation.InclusiveRangeError(1, 255))
	}
}

func checkNFS(errs *check.List, s *corev1.NFSVolumeSource) {
	requiredNames(errs, "server", s.Server, "path", s.Path)
	if !path.IsAbs(s.Path) {
		errs.Invalid("path", s.Path, "must be an absolute path")
	}
}

func checkMonitors(errs *check.List, list []string) {
	if len(list) == 0 {
		errs.Required("monitors", "")
	}
}

func checkStorageOS(errs *check.List, s *corev1.StorageOSVolumeSource) {
	check.Needs(errs, "volumeName", s.VolumeName)
	if s.VolumeName != "" {
		errs.Label("volumeName", s.VolumeName)
	}
	if s.VolumeNamespace != "" {
		errs.Label("volumeNamespace", s.VolumeNamespace)
	}
	checkSecretRef(errs, s.SecretRef)
}

func checkSecretRef(errs *check.List, r *corev1.LocalObjectReference) {
	if r != nil && r.Name == "" {
		errs.Required("secretRef.name", "")
	}
}

var (
	iqnName = regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`)
	euiName = regexp.MustCompile(`^eui.[[:alnum:]]{16}$`)
	naaName = regexp.MustCompile(`^naa.[[:alnum:]]{32}$`)
)

const portalTooLong = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if " +
	"iscsi.initiatorName is specified."

func longPortal(volume string, s *corev1.ISCSIVolumeSource) bool {
	return s.InitiatorName != nil && len(volume)+1+len(s.TargetPortal) > 64
}

// PersistentISCSI checks the source of the PersistentVolume called volume.
func PersistentISCSI(errs *check.List, volume string, s *corev1.ISCSIPersistentVolumeSource) {
	checkISCSI(errs, podForm[corev1.ISCSIVolumeSource](s), &volume)
}

// checkISCSI checks the source of the PersistentVolume called volume, or of a pod where it is nil: Kubernetes has a
// function for each, which differ a little.
func checkISCSI(errs *check.List, source *corev1.ISCSIVolumeSource, volume *string) {
	unknownForm := "must be valid format starting with iqn, eui, or naa"
	check.Needs(errs, "targetPortal", source.TargetPortal)
	if volume != nil {
		unknownForm = "must be valid format"
		if longPortal(*volume, source) {
			errs.Invalid("targetportal", source.TargetPortal, portalTooLong)
		}
	}
	if source.IQN == "" {
		errs.Required("iqn", "")
	} else {
		checkISCSIName(errs, "iqn", source.IQN, unknownForm)
	}
	if source.Lun < 0 || source.Lun > 255 {
		errs.Invalid("lun", source.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (source.DiscoveryCHAPAuth || source.SessionCHAPAuth) && source.SecretRef == nil {
		errs.Required("secretRef", "")
	}
	if volume != nil {
		checkSecretRef(errs, source.SecretRef)
	}
	if source.InitiatorName != nil {
		checkISCSIName(errs, "initiatorname", *source.InitiatorName, unknownForm)
	}
}

// checkISCSIName wants the name of an initiator or a target; detail is what to say of names of no known form.
func checkISCSIName(errs *check.List, child, name, detail string) {
	var form *regexp.Regexp
	switch {
	case strings.HasPrefix(name, "iqn"):
		form = iqnName
	case strings.HasPrefix(name, "eui"):
		form = euiName
	case strings.HasPrefix(name, "naa"):
		form = naaName
	default:
		errs.Invalid(child, name, detail)
		return
	}
	if !form.MatchString(name) {
		errs.Invalid(child, name, "must be valid format")
	}
}

func checkFibre(errs *check.List, fcVolumeSource *corev1.FCVolumeSource) {
	if len(fcVolumeSource.TargetWWNs) < 1 && len(fcVolumeSource.WWIDs) < 1 {
		errs.Required("targetWWNs", "must specify either targetWWNs or wwids, but not both")
	}
	if len(fcVolumeSource.TargetWWNs) == 0 {
		return
	}
	if len(fcVolumeSource.WWIDs) != 0 {
		errs.Invalid("targetWWNs", fcVolumeSource.TargetWWNs,
			"targetWWNs and wwids can not be specified simultaneously")
	}
	if fcVolumeSource.Lun == nil {
		errs.Required("lun", "lun is required if targetWWNs is specified")
	} else if *fcVolumeSource.Lun < 0 || *fcVolumeSource.Lun > 255 {
		errs.Invalid("lun", *fcVolumeSource.Lun, validation.InclusiveRangeError(0, 255))
	}
}

func checkFlocker(errs *check.List, s *corev1.FlockerVolumeSource) {
	if s.DatasetName == "" && s.DatasetUUID == "" {
		errs.Required("", "one of datasetName and datasetUUID is required")
	}
	if s.DatasetName != "" && s.DatasetUUID != "" {
		errs.Invalid("", "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(s.DatasetName, "/") {
		errs.Invalid("datasetName", s.DatasetName, "must not contain '/'")
	}
}

func checkQuobyte(errs *check.List, source *corev1.QuobyteVolumeSource) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case source.Registry == "":
		errs.Required("registry", pairs)
	case len(source.Tenant) >= 65:
		errs.Required("tenant", "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(source.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs.Invalid("registry", source.Registry, pairs)
			}
		}
	}
	check.Needs(errs, "volume", source.Volume)
}

func checkFlex(errs *check.List, s *corev1.FlexVolumeSource) {
	check.Needs(errs, "driver", s.Driver)
	from := errs.Len()
	errs.In("options")
	for k := range s.Options {
		domain, _, _ := strings.Cut(k, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			errs.Key(k)
			errs.Invalid("", k, "kubernetes.io and k8s.io namespaces are reserved")
			errs.Out()
		}
	}
	errs.Out()
	errs.Sort(from)
}

func checkAzureDisk(errs *check.List, source *corev1.AzureDiskVolumeSource) {
	check.Needs(errs, "diskName", source.DiskName)
	check.Needs(errs, "diskURI", source.DataDiskURI)
	check.Pointer(errs, "cachingMode", source.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	if source.Kind == nil {
		return
	}
	kinds := []corev1.AzureDataDiskKind{
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk,
	}
	if !slices.Contains(kinds, *source.Kind) {
		check.NotSupported(errs, "kind", *source.Kind, kinds...)
	}
	managed := *source.Kind == corev1.AzureManagedDisk
	if managed && !strings.HasPrefix(source.DataDiskURI, "/subscriptions/") {
		check.NotSupported(errs, "diskURI", source.DataDiskURI,
			"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}")
	}
	if !managed && !strings.HasPrefix(source.DataDiskURI, "https://") {
		check.NotSupported(errs, "diskURI", source.DataDiskURI,
			"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
	}
}
