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
func (c *Checker) legacyVolume(volume *corev1.Volume, in func(set bool, child string) bool) {
	volumeSource := &volume.VolumeSource
	for _, source := range []struct {
		set   bool
		child string
		check func()
	}{
		{volumeSource.GitRepo != nil, "gitRepo", func() { c.gitRepo(volumeSource.GitRepo) }},
		{
			volumeSource.GCEPersistentDisk != nil, "persistentDisk", func() {
				c.disk("pdName", volumeSource.GCEPersistentDisk.PDName, volumeSource.GCEPersistentDisk.Partition)
			},
		},
		{
			volumeSource.AWSElasticBlockStore != nil, "awsElasticBlockStore", func() {
				c.disk("volumeID", volumeSource.AWSElasticBlockStore.VolumeID,
					volumeSource.AWSElasticBlockStore.Partition)
			},
		},
		{volumeSource.NFS != nil, "nfs", func() { c.nfs(volumeSource.NFS) }},
		{volumeSource.ISCSI != nil, "iscsi", func() { c.iscsi(volumeSource.ISCSI) }},
		{
			volumeSource.Glusterfs != nil, "glusterfs", func() {
				c.requiredNames("endpoints", volumeSource.Glusterfs.EndpointsName, "path", volumeSource.Glusterfs.Path)
			},
		},
		{volumeSource.Flocker != nil, "flocker", func() { c.flocker(volumeSource.Flocker) }},
		{volumeSource.RBD != nil, "rbd", func() {
			c.monitors(volumeSource.RBD.CephMonitors)
			c.requiredName("image", volumeSource.RBD.RBDImage)
		}},
		{volumeSource.Cinder != nil, "cinder", func() {
			c.requiredName("volumeID", volumeSource.Cinder.VolumeID)
			c.secretRef(volumeSource.Cinder.SecretRef)
		}},
		{volumeSource.CephFS != nil, "cephfs", func() { c.monitors(volumeSource.CephFS.Monitors) }},
		{volumeSource.Quobyte != nil, "quobyte", func() { c.quobyte(volumeSource.Quobyte) }},
		{volumeSource.FC != nil, "fc", func() { c.fibre(volumeSource.FC) }},
		{volumeSource.FlexVolume != nil, "flexVolume", func() { c.flex(volumeSource.FlexVolume) }},
		{
			volumeSource.AzureFile != nil, "azureFile", func() {
				c.requiredNames("secretName", volumeSource.AzureFile.SecretName, "shareName",
					volumeSource.AzureFile.ShareName)
			},
		},
		{
			volumeSource.VsphereVolume != nil, "vsphereVolume", func() {
				c.requiredName("volumePath", volumeSource.VsphereVolume.VolumePath)
			},
		},
		{
			volumeSource.PhotonPersistentDisk != nil, "photonPersistentDisk", func() {
				c.requiredName("pdID", volumeSource.PhotonPersistentDisk.PdID)
			},
		},
		{
			volumeSource.PortworxVolume != nil, "portworxVolume", func() {
				c.requiredName("volumeID", volumeSource.PortworxVolume.VolumeID)
			},
		},
		{volumeSource.AzureDisk != nil, "azureDisk", func() { c.azureDisk(volumeSource.AzureDisk) }},
		{volumeSource.StorageOS != nil, "storageos", func() { c.storageOS(volumeSource.StorageOS) }},
		{volumeSource.ScaleIO != nil, "scaleIO", func() {
			c.requiredNames("gateway", volumeSource.ScaleIO.Gateway, "system", volumeSource.ScaleIO.System,
				"volumeName",
				volumeSource.ScaleIO.VolumeName)
		}},
	} {
		if in(source.set, source.child) {
			source.check()
			c.Out()
		}
	}
	if volumeSource.ISCSI != nil && volumeSource.ISCSI.InitiatorName != nil &&
		len(volume.Name)+1+len(volumeSource.ISCSI.TargetPortal) > 64 {
		c.Invalid("name", volume.Name,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if "+
				"iscsi.initiatorName is specified.")
	}
}

// requiredNames wants a value for each child.
func (c *Checker) requiredNames(childrenAndValues ...string) {
	for i := 0; i+1 < len(childrenAndValues); i += 2 {
		c.requiredName(childrenAndValues[i], childrenAndValues[i+1])
	}
}

func (c *Checker) gitRepo(s *corev1.GitRepoVolumeSource) {
	c.requiredName("repository", s.Repository)
	c.descending("directory", s.Directory)
}

func (c *Checker) disk(child, name string, partition int32) {
	c.requiredName(child, name)
	if partition < 0 || partition > 255 {
		c.Invalid("partition", partition, validation.InclusiveRangeError(1, 255))
	}
}

func (c *Checker) nfs(s *corev1.NFSVolumeSource) {
	c.requiredNames("server", s.Server, "path", s.Path)
	if !path.IsAbs(s.Path) {
		c.Invalid("path", s.Path, "must be an absolute path")
	}
}

func (c *Checker) monitors(list []string) {
	if len(list) == 0 {
		c.Required("monitors", "")
	}
}

func (c *Checker) storageOS(s *corev1.StorageOSVolumeSource) {
	c.requiredName("volumeName", s.VolumeName)
	if s.VolumeName != "" {
		c.Label("volumeName", s.VolumeName)
	}
	if s.VolumeNamespace != "" {
		c.Label("volumeNamespace", s.VolumeNamespace)
	}
	c.secretRef(s.SecretRef)
}

func (c *Checker) secretRef(r *corev1.LocalObjectReference) {
	if r != nil && r.Name == "" {
		c.Required("secretRef.name", "")
	}
}

var (
	iqnName = regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`)
	euiName = regexp.MustCompile(`^eui.[[:alnum:]]{16}$`)
	naaName = regexp.MustCompile(`^naa.[[:alnum:]]{32}$`)
)

const noForm = "must be valid format starting with iqn, eui, or naa"

func (c *Checker) iscsi(source *corev1.ISCSIVolumeSource) {
	c.requiredName("targetPortal", source.TargetPortal)
	if source.IQN == "" {
		c.Required("iqn", "")
	} else {
		ISCSIName(c.List, "iqn", source.IQN, noForm)
	}
	if source.Lun < 0 || source.Lun > 255 {
		c.Invalid("lun", source.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (source.DiscoveryCHAPAuth || source.SessionCHAPAuth) && source.SecretRef == nil {
		c.Required("secretRef", "")
	}
	if source.InitiatorName != nil {
		ISCSIName(c.List, "initiatorname", *source.InitiatorName, noForm)
	}
}

// ISCSIName wants the name of an initiator or a target; detail is what to say of names of no known form.
func ISCSIName(errs *check.List, child, name, detail string) {
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

func (c *Checker) fibre(fcVolumeSource *corev1.FCVolumeSource) {
	if len(fcVolumeSource.TargetWWNs) < 1 && len(fcVolumeSource.WWIDs) < 1 {
		c.Required("targetWWNs", "must specify either targetWWNs or wwids, but not both")
	}
	if len(fcVolumeSource.TargetWWNs) == 0 {
		return
	}
	if len(fcVolumeSource.WWIDs) != 0 {
		c.Invalid("targetWWNs", fcVolumeSource.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if fcVolumeSource.Lun == nil {
		c.Required("lun", "lun is required if targetWWNs is specified")
	} else if *fcVolumeSource.Lun < 0 || *fcVolumeSource.Lun > 255 {
		c.Invalid("lun", *fcVolumeSource.Lun, validation.InclusiveRangeError(0, 255))
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

func (c *Checker) quobyte(source *corev1.QuobyteVolumeSource) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case source.Registry == "":
		c.Required("registry", pairs)
	case len(source.Tenant) >= 65:
		c.Required("tenant", "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(source.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				c.Invalid("registry", source.Registry, pairs)
			}
		}
	}
	c.requiredName("volume", source.Volume)
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

func (c *Checker) azureDisk(source *corev1.AzureDiskVolumeSource) {
	c.requiredName("diskName", source.DiskName)
	c.requiredName("diskURI", source.DataDiskURI)
	check.Pointer(c.List, "cachingMode", source.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	if source.Kind == nil {
		return
	}
	kinds := []corev1.AzureDataDiskKind{
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk,
	}
	if !slices.Contains(kinds, *source.Kind) {
		check.NotSupported(c.List, "kind", *source.Kind, kinds...)
	}
	managed := *source.Kind == corev1.AzureManagedDisk
	if managed && !strings.HasPrefix(source.DataDiskURI, "/subscriptions/") {
		check.NotSupported(c.List, "diskURI", source.DataDiskURI,
			"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}")
	}
	if !managed && !strings.HasPrefix(source.DataDiskURI, "https://") {
		check.NotSupported(c.List, "diskURI", source.DataDiskURI,
			"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
	}
}
