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

// legacyVolume checks the volume sources that came before CSI, few of which still work. in is volumeSource's.
func (c *Checker) legacyVolume(v *corev1.Volume, in func(set bool, child string) bool) {
	s := &v.VolumeSource
	if in(s.GitRepo != nil, "gitRepo") {
		c.requiredName("repository", s.GitRepo.Repository)
		c.descending("directory", s.GitRepo.Directory)
		c.Out()
	}
	if in(s.GCEPersistentDisk != nil, "persistentDisk") {
		c.requiredName("pdName", s.GCEPersistentDisk.PDName)
		c.partition(s.GCEPersistentDisk.Partition)
		c.Out()
	}
	if in(s.AWSElasticBlockStore != nil, "awsElasticBlockStore") {
		c.requiredName("volumeID", s.AWSElasticBlockStore.VolumeID)
		c.partition(s.AWSElasticBlockStore.Partition)
		c.Out()
	}
	if in(s.NFS != nil, "nfs") {
		c.requiredName("server", s.NFS.Server)
		c.requiredName("path", s.NFS.Path)
		if !path.IsAbs(s.NFS.Path) {
			c.Invalid("path", s.NFS.Path, "must be an absolute path")
		}
		c.Out()
	}
	if in(s.ISCSI != nil, "iscsi") {
		c.iscsi(s.ISCSI)
		c.Out()
	}
	if s.ISCSI != nil && s.ISCSI.InitiatorName != nil && len(v.Name)+1+len(s.ISCSI.TargetPortal) > 64 {
		c.Invalid("name", v.Name, "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
	}
	if in(s.Glusterfs != nil, "glusterfs") {
		c.requiredName("endpoints", s.Glusterfs.EndpointsName)
		c.requiredName("path", s.Glusterfs.Path)
		c.Out()
	}
	if in(s.Flocker != nil, "flocker") {
		c.flocker(s.Flocker)
		c.Out()
	}
	if in(s.RBD != nil, "rbd") {
		if len(s.RBD.CephMonitors) == 0 {
			c.Required("monitors", "")
		}
		c.requiredName("image", s.RBD.RBDImage)
		c.Out()
	}
	if in(s.Cinder != nil, "cinder") {
		c.requiredName("volumeID", s.Cinder.VolumeID)
		c.secretRef(s.Cinder.SecretRef)
		c.Out()
	}
	if in(s.CephFS != nil, "cephfs") {
		if len(s.CephFS.Monitors) == 0 {
			c.Required("monitors", "")
		}
		c.Out()
	}
	c.legacyVolumeMore(s, in)
}

func (c *Checker) legacyVolumeMore(s *corev1.VolumeSource, in func(set bool, child string) bool) {
	if in(s.Quobyte != nil, "quobyte") {
		c.quobyte(s.Quobyte)
		c.Out()
	}
	if in(s.FC != nil, "fc") {
		c.fibre(s.FC)
		c.Out()
	}
	if in(s.FlexVolume != nil, "flexVolume") {
		c.flex(s.FlexVolume)
		c.Out()
	}
	if in(s.AzureFile != nil, "azureFile") {
		c.requiredName("secretName", s.AzureFile.SecretName)
		c.requiredName("shareName", s.AzureFile.ShareName)
		c.Out()
	}
	if in(s.VsphereVolume != nil, "vsphereVolume") {
		c.requiredName("volumePath", s.VsphereVolume.VolumePath)
		c.Out()
	}
	if in(s.PhotonPersistentDisk != nil, "photonPersistentDisk") {
		c.requiredName("pdID", s.PhotonPersistentDisk.PdID)
		c.Out()
	}
	if in(s.PortworxVolume != nil, "portworxVolume") {
		c.requiredName("volumeID", s.PortworxVolume.VolumeID)
		c.Out()
	}
	if in(s.AzureDisk != nil, "azureDisk") {
		c.azureDisk(s.AzureDisk)
		c.Out()
	}
	if in(s.StorageOS != nil, "storageos") {
		c.requiredName("volumeName", s.StorageOS.VolumeName)
		if s.StorageOS.VolumeName != "" {
			c.Label("volumeName", s.StorageOS.VolumeName)
		}
		if s.StorageOS.VolumeNamespace != "" {
			c.Label("volumeNamespace", s.StorageOS.VolumeNamespace)
		}
		c.secretRef(s.StorageOS.SecretRef)
		c.Out()
	}
	if in(s.ScaleIO != nil, "scaleIO") {
		c.requiredName("gateway", s.ScaleIO.Gateway)
		c.requiredName("system", s.ScaleIO.System)
		c.requiredName("volumeName", s.ScaleIO.VolumeName)
		c.Out()
	}
}

func (c *Checker) secretRef(r *corev1.LocalObjectReference) {
	if r != nil && r.Name == "" {
		c.Required("secretRef.name", "")
	}
}

func (c *Checker) partition(n int32) {
	if n < 0 || n > 255 {
		c.Invalid("partition", n, validation.InclusiveRangeError(1, 255))
	}
}

var (
	iqnName = regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`)
	euiName = regexp.MustCompile(`^eui.[[:alnum:]]{16}$`)
	naaName = regexp.MustCompile(`^naa.[[:alnum:]]{32}$`)
)

const noForm = "must be valid format starting with iqn, eui, or naa"

func (c *Checker) iscsi(s *corev1.ISCSIVolumeSource) {
	c.requiredName("targetPortal", s.TargetPortal)
	if s.IQN == "" {
		c.Required("iqn", "")
	} else {
		ISCSIName(c.List, "iqn", s.IQN, noForm)
	}
	if s.Lun < 0 || s.Lun > 255 {
		c.Invalid("lun", s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		c.Required("secretRef", "")
	}
	if s.InitiatorName != nil {
		ISCSIName(c.List, "initiatorname", *s.InitiatorName, noForm)
	}
}

// ISCSIName wants the name of an initiator or a target; detail is what to say of names of no known form.
func ISCSIName(l *check.List, child, name, detail string) {
	var form *regexp.Regexp
	switch {
	case strings.HasPrefix(name, "iqn"):
		form = iqnName
	case strings.HasPrefix(name, "eui"):
		form = euiName
	case strings.HasPrefix(name, "naa"):
		form = naaName
	default:
		l.Invalid(child, name, detail)
		return
	}
	if !form.MatchString(name) {
		l.Invalid(child, name, "must be valid format")
	}
}

func (c *Checker) fibre(s *corev1.FCVolumeSource) {
	if len(s.TargetWWNs) < 1 && len(s.WWIDs) < 1 {
		c.Required("targetWWNs", "must specify either targetWWNs or wwids, but not both")
	}
	if len(s.TargetWWNs) == 0 {
		return
	}
	if len(s.WWIDs) != 0 {
		c.Invalid("targetWWNs", s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if s.Lun == nil {
		c.Required("lun", "lun is required if targetWWNs is specified")
	} else if *s.Lun < 0 || *s.Lun > 255 {
		c.Invalid("lun", *s.Lun, validation.InclusiveRangeError(0, 255))
	}
}

func (c *Checker) flocker(s *corev1.FlockerVolumeSource) {
	if s.DatasetName == "" && s.DatasetUUID == "" {
		c.Required("", "one of datasetName and datasetUUID is required")
	}
	if s.DatasetName != "" && s.DatasetUUID != "" {
		c.Invalid("", "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(s.DatasetName, "/") {
		c.Invalid("datasetName", s.DatasetName, "must not contain '/'")
	}
}

func (c *Checker) quobyte(s *corev1.QuobyteVolumeSource) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case s.Registry == "":
		c.Required("registry", pairs)
	case len(s.Tenant) >= 65:
		c.Required("tenant", "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(s.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				c.Invalid("registry", s.Registry, pairs)
			}
		}
	}
	c.requiredName("volume", s.Volume)
}

func (c *Checker) flex(s *corev1.FlexVolumeSource) {
	c.requiredName("driver", s.Driver)
	from := c.Len()
	c.In("options")
	for k := range s.Options {
		domain, _, _ := strings.Cut(k, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			c.Key(k)
			c.Invalid("", k, "kubernetes.io and k8s.io namespaces are reserved")
			c.Out()
		}
	}
	c.Out()
	c.Sort(from)
}

func (c *Checker) azureDisk(s *corev1.AzureDiskVolumeSource) {
	c.requiredName("diskName", s.DiskName)
	c.requiredName("diskURI", s.DataDiskURI)
	check.Pointer(c.List, "cachingMode", s.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	if s.Kind == nil {
		return
	}
	kinds := []corev1.AzureDataDiskKind{corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk}
	if !slices.Contains(kinds, *s.Kind) {
		check.NotSupported(c.List, "kind", *s.Kind, kinds...)
	}
	managed := *s.Kind == corev1.AzureManagedDisk
	if managed && !strings.HasPrefix(s.DataDiskURI, "/subscriptions/") {
		check.NotSupported(c.List, "diskURI", s.DataDiskURI,
			"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}")
	}
	if !managed && !strings.HasPrefix(s.DataDiskURI, "https://") {
		check.NotSupported(c.List, "diskURI", s.DataDiskURI, "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
	}
}
