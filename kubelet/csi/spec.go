// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	volumeapi "keelson/api/core/volume"
)

// Request is a volume of a pod: a claim's PersistentVolume, or an inline volume.
type Request struct {
	Pod      *corev1.Pod
	Name     string // the volume's name in the pod
	Claim    *corev1.PersistentVolumeClaim
	PV       *corev1.PersistentVolume
	Inline   *corev1.CSIVolumeSource
	ReadOnly bool
}

// spec is a request in CSI's terms.
type spec struct {
	key
	Request
	name       string // in paths and messages: the PersistentVolume's, or the volume's name in the pod
	block      bool
	fsType     string
	attributes map[string]string
	options    []string
	modes      []corev1.PersistentVolumeAccessMode
}

const (
	// mountsOf is the directory of a pod's CSI volumes, devicesOf that of its block volumes.
	mountsOf  = "volumes/kubernetes.io~csi"
	devicesOf = "volumeDevices/kubernetes.io~csi"
	staging   = "plugins/kubernetes.io/csi"
	// blockRecords holds the records of staged block volumes, whose target may be a directory or a file.
	blockRecords = "volumeDevices/records"
)

func specOf(request Request) (*spec, error) {
	s := &spec{Request: request}
	switch {
	case request.Inline != nil:
		s.name = request.Name
		s.driver = request.Inline.Driver
		s.handle = inlineHandle(string(request.Pod.UID), request.Name)
		s.attributes = request.Inline.VolumeAttributes
		s.modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		if request.Inline.FSType != nil {
			s.fsType = *request.Inline.FSType
		}
	case request.PV != nil && request.PV.Spec.CSI != nil:
		src := request.PV.Spec.CSI
		s.name = request.PV.Name
		s.driver = src.Driver
		s.handle = src.VolumeHandle
		s.attributes = src.VolumeAttributes
		s.fsType = src.FSType
		s.modes = request.PV.Spec.AccessModes
		s.options = request.PV.Spec.MountOptions
		s.block = request.PV.Spec.VolumeMode != nil && *request.PV.Spec.VolumeMode == corev1.PersistentVolumeBlock
	default:
		return nil, errors.New("it is not a volume of a CSI driver")
	}
	for _, part := range []string{s.name, s.driver, string(request.Pod.UID)} {
		if part == "" || part == "." || part == ".." || filepath.Base(part) != part {
			return nil, fmt.Errorf("%q cannot be part of a path", part)
		}
	}
	return s, nil
}

// inlineHandle is the volume handle of an inline (ephemeral) volume.
func inlineHandle(uid, name string) string {
	sum := sha256.Sum256([]byte(uid + name))
	return "csi-" + hex.EncodeToString(sum[:])
}

func (s *spec) record(node string, attached bool) record {
	r := record{
		SpecVolID:    s.name,
		VolumeHandle: s.handle,
		DriverName:   s.driver,
		NodeName:     node,
		Mode:         string(s.lifecycle()),
		Block:        s.block,
	}
	if attached {
		r.AttachmentID = attachmentID(s.key, node)
	}
	return r
}

func (s *spec) lifecycle() storagev1.VolumeLifecycleMode {
	if s.Inline != nil {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// op is the operation's name in events.
func (s *spec) op(mount, block string) string {
	if s.block {
		return "MapVolume." + block
	}
	return "MountVolume." + mount
}

// unique is the volume's name in the node's status (volumesInUse, volumesAttached).
func (k key) unique() corev1.UniqueVolumeName { return volumeapi.UniqueName(k.driver, k.handle) }

// attachmentID is the name of the VolumeAttachment that the controller creates.
func attachmentID(k key, node string) string {
	sum := sha256.Sum256([]byte(k.handle + k.driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// stagedAt returns the directory of a staged volume, relative to the kubelet's; target is the staging path.
func (k key) stagedAt(block bool, name string) (dir, target string) {
	if block {
		return filepath.Join(staging, blockRecords, name), filepath.Join(staging, "volumeDevices/staging", name)
	}
	sum := sha256.Sum256([]byte(k.handle))
	dir = filepath.Join(staging, k.driver, hex.EncodeToString(sum[:]))
	return dir, filepath.Join(dir, "globalmount")
}

// publishedAt returns the directory of a pod's record, relative to the kubelet's; target is the path for
// NodePublishVolume.
func publishedAt(uid string, block bool, name string) (dir, target string) {
	if block {
		return filepath.Join("pods", uid, devicesOf, name), filepath.Join(staging, "volumeDevices/publish", name, uid)
	}
	dir = filepath.Join("pods", uid, mountsOf, name)
	return dir, filepath.Join(dir, "mount")
}

// PublishedAt returns the path of a pod's volume, relative to the kubelet's directory. name is the PersistentVolume's,
// or for an inline volume its name in the pod.
func PublishedAt(uid, name string) string {
	_, target := publishedAt(uid, false, name)
	return target
}

// capability returns the VolumeCapability of the pod's use. group is for drivers that apply fsGroup themselves.
func (s *spec) capability(d *driver, group string) *csiapi.VolumeCapability {
	c := &csiapi.VolumeCapability{AccessMode: &csiapi.VolumeCapability_AccessMode{Mode: s.access(d)}}
	if s.block {
		c.AccessType = &csiapi.VolumeCapability_Block{Block: &csiapi.VolumeCapability_BlockVolume{}}
		return c
	}
	c.AccessType = &csiapi.VolumeCapability_Mount{Mount: &csiapi.VolumeCapability_MountVolume{
		FsType:           s.fsType,
		MountFlags:       s.options,
		VolumeMountGroup: group,
	}}
	return c
}

func (s *spec) access(d *driver) csiapi.VolumeCapability_AccessMode_Mode {
	mode := corev1.ReadWriteOnce
	if len(s.modes) > 0 {
		mode = s.modes[0]
	}
	finer := d.can(csiapi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	switch {
	case mode == corev1.ReadOnlyMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == corev1.ReadWriteMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == corev1.ReadWriteOnce && finer:
		return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == corev1.ReadWriteOncePod && finer:
		return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	}
	return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// ownedByGroup reports whether the kubelet sets the owner of the volume's files to the pod's fsGroup.
func (s *spec) ownedByGroup(o *storagev1.CSIDriver) bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if o != nil && o.Spec.FSGroupPolicy != nil {
		policy = *o.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.FileFSGroupPolicy:
		return true
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
	}
	return s.fsType != "" && slices.ContainsFunc(s.modes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
	})
}
