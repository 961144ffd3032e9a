// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// maxCDIDevices bounds what one container may name.
const maxCDIDevices = 1024

// inject gives a container what the machine's CDI specifications say of the devices that it names. They are read anew each time: whoever
// prepares devices has just written them. Only root can.
func (s *Server) inject(c *runtimeapi.ContainerConfig, spec *specs.Spec) error {
	var names []string
	for _, d := range c.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	switch {
	case len(names) == 0:
		return nil
	case len(names) > maxCDIDevices:
		return badRequest("%d CDI devices, more than %d", len(names), maxCDIDevices)
	}
	dirs := s.cfg.CDIDirs
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	known, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return refused("read CDI specifications: %v", err)
	}
	missing, err := known.InjectDevices(spec, names...)
	if len(missing) > 0 {
		why := ""
		for path, errs := range known.GetErrors() {
			for _, e := range errs {
				why += "; " + path + ": " + e.Error()
			}
		}
		return refused("unresolvable CDI devices %s: no specification in %s has them%.1000s", strings.Join(missing, ", "), strings.Join(dirs, ", "), why)
	}
	if err != nil {
		return refused("CDI device injection failed: %v", err)
	}
	return nil
}
