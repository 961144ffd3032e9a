// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/internal/check"
)

func (c *containers) mounts(ctr *corev1.Container) {
	var paths check.Set
	c.In("volumeMounts")
	for i := range ctr.VolumeMounts {
		volumeMount := &ctr.VolumeMounts[i]
		volume := c.volumes.find(volumeMount.Name)
		c.Index(i)
		check.Needs(c.List, "name", volumeMount.Name)
		if volume == nil {
			c.NotFound("name", volumeMount.Name)
		}
		check.Needs(c.List, "mountPath", volumeMount.MountPath)
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
		checkBindOptions(c.List, volumeMount, volume)
		c.Out()
		// These are reported at the list, without an index, as Kubernetes does.
		checkDescending(c.List, "subPath", volumeMount.SubPath)
		checkDescending(c.List, "subPathExpr", volumeMount.SubPathExpr)
		checkPropagation(c.List, volumeMount, ctr)
		checkRecursiveReadOnly(c.List, volumeMount)
	}
	c.Out()
}

func checkBindOptions(errs *check.List, m *corev1.VolumeMount, v *corev1.Volume) {
	if len(m.BindMountOptions) == 0 {
		return
	}
	if v != nil && v.Image != nil {
		errs.Forbidden("bindMountOptions", "not allowed in image volume sources")
	}
	valid := []string{"nodev", "noexec", "nosuid"}
	var seen check.Set
	errs.In("bindMountOptions")
	for i, o := range m.BindMountOptions {
		errs.Index(i)
		if !slices.Contains(valid, o) {
			check.NotSupported(errs, "", o, valid...)
		}
		if !seen.Add(o) {
			errs.Duplicate("", o)
		}
		errs.Out()
	}
	errs.Out()
}

func checkPropagation(errs *check.List, m *corev1.VolumeMount, ctr *corev1.Container) {
	check.Pointer(errs, "mountPropagation", m.MountPropagation,
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	sc := ctr.SecurityContext
	privileged := sc != nil && sc.Privileged != nil && *sc.Privileged
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		errs.Forbidden("mountPropagation", "Bidirectional mount propagation is available only to privileged containers")
	}
}

func checkRecursiveReadOnly(errs *check.List, volumeMount *corev1.VolumeMount) {
	if volumeMount.RecursiveReadOnly == nil {
		return
	}
	switch *volumeMount.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !volumeMount.ReadOnly {
			errs.Forbidden("recursiveReadOnly", "may only be specified when readOnly is true")
		}
		if volumeMount.MountPropagation != nil && *volumeMount.MountPropagation != corev1.MountPropagationNone {
			errs.Forbidden("recursiveReadOnly", "may only be specified when mountPropagation is None or not specified")
		}
	default:
		check.NotSupported(errs, "recursiveReadOnly", *volumeMount.RecursiveReadOnly,
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	}
}

func (c *containers) devices(ctr *corev1.Container) {
	var paths, names check.Set
	c.In("volumeDevices")
	for i := range ctr.VolumeDevices {
		volumeDevice := &ctr.VolumeDevices[i]
		v := c.volumes.find(volumeDevice.Name)
		c.Index(i)
		check.Needs(c.List, "name", volumeDevice.Name)
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
		check.Needs(c.List, "devicePath", volumeDevice.DevicePath)
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

// NoBacksteps wants a path without "..".
func NoBacksteps(errs *check.List, child, p string) {
	if hasBackstep(p) {
		errs.Invalid(child, p, "must not contain '..'")
	}
}

// checkDescending wants a relative path without "..".
func checkDescending(errs *check.List, child, p string) {
	if path.IsAbs(p) {
		errs.Invalid(child, p, "must be a relative path")
	}
	NoBacksteps(errs, child, p)
}

// checkLocalPath is checkDescending for names of files that the kubelet writes next to its own, which start with "..".
func checkLocalPath(errs *check.List, child, p string) {
	checkDescending(errs, child, p)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") {
		errs.Invalid(child, p, "must not start with '..'")
	}
}

// checkMode wants permission bits.
func checkMode(errs *check.List, child string, m *int32) {
	if m != nil && (*m < 0 || *m > 0o777) {
		errs.Invalid(child, *m, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}
