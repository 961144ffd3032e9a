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
	for _, source := range []struct {
		set   bool
		child string
		check func()
	}{
		{s.GitRepo != nil, "gitRepo", func() { c.gitRepo(s.GitRepo) }},
		{
			s.GCEPersistentDisk != nil, "persistentDisk", func() {
				c.disk("pdName", s.GCEPersistentDisk.PDName, s.GCEPersistentDisk.Partition)
			},
		},
		{
			s.AWSElasticBlockStore != nil, "awsElasticBlockStore", func() {
				c.disk("volumeID", s.AWSElasticBlockStore.VolumeID, s.AWSElasticBlockStore.Partition)
			},
		},
		{s.NFS != nil, "nfs", func() { c.nfs(s.NFS) }},
		{s.ISCSI != nil, "iscsi", func() { c.iscsi(s.ISCSI) }},
		{
			s.Glusterfs != nil, "glusterfs", func() {
				c.requiredNames("endpoints", s.Glusterfs.EndpointsName, "path", s.Glusterfs.Path)
			},
		},
		{s.Flocker != nil, "flocker", func() { c.flocker(s.Flocker) }},
		{s.RBD != nil, "rbd", func() {
			c.monitors(s.RBD.CephMonitors)
			c.requiredName("image", s.RBD.RBDImage)
		}},
		{s.Cinder != nil, "cinder", func() {
			c.requiredName("volumeID", s.Cinder.VolumeID)
			c.secretRef(s.Cinder.SecretRef)
		}},
		{s.CephFS != nil, "cephfs", func() { c.monitors(s.CephFS.Monitors) }},
		{s.Quobyte != nil, "quobyte", func() { c.quobyte(s.Quobyte) }},
		{s.FC != nil, "fc", func() { c.fibre(s.FC) }},
		{s.FlexVolume != nil, "flexVolume", func() { c.flex(s.FlexVolume) }},
		{
			s.AzureFile != nil, "azureFile", func() {
				c.requiredNames("secretName", s.AzureFile.SecretName, "shareName", s.AzureFile.ShareName)
			},
		},
		{s.VsphereVolume != nil, "vsphereVolume", func() { c.requiredName("volumePath", s.VsphereVolume.VolumePath) }},
		{
			s.PhotonPersistentDisk != nil, "photonPersistentDisk", func() {
				c.requiredName("pdID", s.PhotonPersistentDisk.PdID)
			},
		},
		{s.PortworxVolume != nil, "portworxVolume", func() { c.requiredName("volumeID", s.PortworxVolume.VolumeID) }},
		{s.AzureDisk != nil, "azureDisk", func() { c.azureDisk(s.AzureDisk) }},
		{s.StorageOS != nil, "storageos", func() { c.storageOS(s.StorageOS) }},
		{s.ScaleIO != nil, "scaleIO", func() {
			c.requiredNames("gateway", s.ScaleIO.Gateway, "system", s.ScaleIO.System, "volumeName",
				s.ScaleIO.VolumeName)
		}},
	} {
		if in(source.set, source.child) {
			source.check()
			c.Out()
		}
	}
	if s.ISCSI != nil && s.ISCSI.InitiatorName != nil && len(v.Name)+1+len(s.ISCSI.TargetPortal) > 64 {
		c.Invalid("name", v.Name, "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if "+
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
	kinds := []corev1.AzureDataDiskKind{
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk,
	}
	if !slices.Contains(kinds, *s.Kind) {
		check.NotSupported(c.List, "kind", *s.Kind, kinds...)
	}
	managed := *s.Kind == corev1.AzureManagedDisk
	if managed && !strings.HasPrefix(s.DataDiskURI, "/subscriptions/") {
		check.NotSupported(c.List, "diskURI", s.DataDiskURI,
			"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}")
	}
	if !managed && !strings.HasPrefix(s.DataDiskURI, "https://") {
		check.NotSupported(c.List, "diskURI", s.DataDiskURI,
			"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
	}
}
