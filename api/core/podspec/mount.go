// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/internal/check"
)

// volume finds a well-formed volume of the pod by name.
func (c *Checker) volume(name string) *corev1.Volume {
	for i := range c.spec.Volumes {
		if v := &c.spec.Volumes[i]; v.Name == name && name != "" && !c.badVolumes[i] {
			return v
		}
	}
	return nil
}

func (c *Checker) mounts(ctr *corev1.Container) {
	var paths check.Set
	c.In("volumeMounts")
	for i := range ctr.VolumeMounts {
		volumeMount := &ctr.VolumeMounts[i]
		volume := c.volume(volumeMount.Name)
		c.Index(i)
		if volumeMount.Name == "" {
			c.Required("name", "")
		}
		if volume == nil {
			c.NotFound("name", volumeMount.Name)
		}
		if volumeMount.MountPath == "" {
			c.Required("mountPath", "")
		}
		if !paths.Add(volumeMount.MountPath) {
			c.Invalid("mountPath", volumeMount.MountPath, "must be unique")
		}
		for j := range ctr.VolumeDevices {
			if ctr.VolumeDevices[j].Name == volumeMount.Name {
				c.Invalid("name", volumeMount.Name, "must not already exist in volumeDevices")
			}
			if ctr.VolumeDevices[j].DevicePath == volumeMount.MountPath {
				c.Invalid("mountPath", volumeMount.MountPath, "must not already exist as a path in volumeDevices")
			}
		}
		if volumeMount.SubPathExpr != "" && volumeMount.SubPath != "" {
			c.Invalid("subPathExpr", volumeMount.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
		}
		c.bindOptions(volumeMount, volume)
		c.Out()
		// These are reported at the list, without an index, as Kubernetes does.
		c.descending("subPath", volumeMount.SubPath)
		c.descending("subPathExpr", volumeMount.SubPathExpr)
		c.propagation(volumeMount, ctr)
		c.recursiveReadOnly(volumeMount)
	}
	c.Out()
}

func (c *Checker) bindOptions(m *corev1.VolumeMount, v *corev1.Volume) {
	if len(m.BindMountOptions) == 0 {
		return
	}
	if v != nil && v.Image != nil {
		c.Forbidden("bindMountOptions", "not allowed in image volume sources")
	}
	valid := []string{"nodev", "noexec", "nosuid"}
	var seen check.Set
	c.In("bindMountOptions")
	for i, o := range m.BindMountOptions {
		c.Index(i)
		if !slices.Contains(valid, o) {
			check.NotSupported(c.List, "", o, valid...)
		}
		if !seen.Add(o) {
			c.Duplicate("", o)
		}
		c.Out()
	}
	c.Out()
}

func (c *Checker) propagation(m *corev1.VolumeMount, ctr *corev1.Container) {
	check.Pointer(c.List, "mountPropagation", m.MountPropagation,
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	sc := ctr.SecurityContext
	privileged := sc != nil && sc.Privileged != nil && *sc.Privileged
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		c.Forbidden("mountPropagation", "Bidirectional mount propagation is available only to privileged containers")
	}
}

func (c *Checker) recursiveReadOnly(volumeMount *corev1.VolumeMount) {
	if volumeMount.RecursiveReadOnly == nil {
		return
	}
	switch *volumeMount.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !volumeMount.ReadOnly {
			c.Forbidden("recursiveReadOnly", "may only be specified when readOnly is true")
		}
		if volumeMount.MountPropagation != nil && *volumeMount.MountPropagation != corev1.MountPropagationNone {
			c.Forbidden("recursiveReadOnly", "may only be specified when mountPropagation is None or not specified")
		}
	default:
		check.NotSupported(c.List, "recursiveReadOnly", *volumeMount.RecursiveReadOnly,
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	}
}

func (c *Checker) devices(ctr *corev1.Container) {
	var paths, names check.Set
	c.In("volumeDevices")
	for i := range ctr.VolumeDevices {
		volumeDevice := &ctr.VolumeDevices[i]
		v := c.volume(volumeDevice.Name)
		c.Index(i)
		if volumeDevice.Name == "" {
			c.Required("name", "")
		}
		if volumeDevice.Name != "" && !names.Add(volumeDevice.Name) {
			c.Invalid("name", volumeDevice.Name, "must be unique")
		}
		if v == nil {
			c.NotFound("name", volumeDevice.Name)
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			c.Invalid("name", volumeDevice.Name,
				"can only use volume source type of PersistentVolumeClaim or Ephemeral for "+
					"block mode")
		}
		if volumeDevice.DevicePath == "" {
			c.Required("devicePath", "")
		}
		if paths.Has(volumeDevice.DevicePath) {
			c.Invalid("devicePath", volumeDevice.DevicePath, "must be unique")
		}
		if hasBackstep(volumeDevice.DevicePath) {
			c.Invalid("devicePath", volumeDevice.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths.Add(volumeDevice.DevicePath)
		}
		for j := range ctr.VolumeMounts {
			if ctr.VolumeMounts[j].Name == volumeDevice.Name {
				c.Invalid("name", volumeDevice.Name, "must not already exist in volumeMounts")
			}
			if ctr.VolumeMounts[j].MountPath == volumeDevice.DevicePath {
				c.Invalid("devicePath", volumeDevice.DevicePath, "must not already exist as a path in volumeMounts")
			}
		}
		c.Out()
	}
	c.Out()
}

func hasBackstep(p string) bool {
	if !strings.Contains(p, "..") {
		return false
	}
	return slices.Contains(strings.Split(p, "/"), "..")
}

// noBacksteps wants a path without "..".
func (c *Checker) noBacksteps(child, p string) {
	if hasBackstep(p) {
		c.Invalid(child, p, "must not contain '..'")
	}
}

// descending wants a relative path without "..".
func (c *Checker) descending(child, p string) {
	if path.IsAbs(p) {
		c.Invalid(child, p, "must be a relative path")
	}
	c.noBacksteps(child, p)
}

// localPath is descending for the names of files that the kubelet writes beside its own, which start with "..".
func (c *Checker) localPath(child, p string) {
	c.descending(child, p)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") {
		c.Invalid(child, p, "must not start with '..'")
	}
}

// mode wants permission bits.
func (c *Checker) mode(child string, m *int32) {
	if m != nil && (*m < 0 || *m > 0o777) {
		c.Invalid(child, *m, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}
