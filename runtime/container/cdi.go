// SPDX-License-Identifier: Apache-2.0

package container

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"keelson/runtime/fault"
)

// maxCDIDevices bounds the CDI devices of one container.
const maxCDIDevices = 1024

// injector adds the container edits of CDI devices to OCI specs; see Config for its fields.
type injector struct {
	dirs     []string
	hostPath func(string) string
}

// inject adds the container edits of its CDI devices to the OCI spec. The CDI specifications of the machine are read
// each time: a device plugin or DRA driver may have written them a moment before. Only root can write them.
func (in *injector) inject(c *runtimeapi.ContainerConfig, spec *specs.Spec) error {
	var names []string
	for _, d := range c.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	switch {
	case len(names) == 0:
		return nil
	case len(names) > maxCDIDevices:
		return fault.InvalidArgument("%d CDI devices, more than %d", len(names), maxCDIDevices)
	}
	dirs := in.dirs
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	known, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fault.FailedPrecondition("read CDI specifications: %v", err)
	}
	in.resolveMounts(known, names)
	missing, err := known.InjectDevices(spec, names...)
	if len(missing) > 0 {
		var why strings.Builder
		for path, errs := range known.GetErrors() {
			for _, e := range errs {
				why.WriteString("; " + path + ": " + e.Error())
			}
		}
		return fault.FailedPrecondition("unresolvable CDI devices %s: no specification in %s has them%.1000s",
			strings.Join(missing, ", "), strings.Join(dirs, ", "), why.String())
	}
	if err != nil {
		return fault.FailedPrecondition("CDI device injection failed: %v", err)
	}
	return nil
}

// resolveMounts replaces the sources of mounts that the devices' specifications name by hostPath. known is
// this call's own.
func (in *injector) resolveMounts(known *cdi.Cache, names []string) {
	if in.hostPath == nil {
		return
	}
	specifications := map[*cdi.Spec]bool{}
	for _, name := range names {
		d := known.GetDevice(name)
		if d == nil {
			continue // InjectDevices reports it
		}
		mounts := d.ContainerEdits.Mounts
		if whole := d.GetSpec(); !specifications[whole] {
			specifications[whole] = true
			mounts = slices.Concat(mounts, whole.ContainerEdits.Mounts)
		}
		for _, m := range mounts {
			m.HostPath = in.hostPath(m.HostPath)
		}
	}
}
