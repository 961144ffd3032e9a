// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/oci"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
	"keelson/runtime/userns"
)

// readSpecInputs reads the files and kernel state that the spec depends on: the image's users, devices, profiles, the
// PID namespace of a target container.
func (s *Service) readSpecInputs(sb *pods.Sandbox, in *oci.Input) error {
	var err error
	if in.Passwd, err = readInside(in.Rootfs, "etc/passwd"); err != nil {
		return err
	}
	if in.Group, err = readInside(in.Rootfs, "etc/group"); err != nil {
		return err
	}
	sec := in.Container.GetLinux().GetSecurityContext()
	if in.Devices, err = devices(in.Container.GetDevices(), sec.GetPrivileged()); err != nil {
		return err
	}
	if p := oci.LocalhostProfile(sec); p != "" {
		if in.SeccompProfile, err = os.ReadFile(p); err != nil {
			return fault.InvalidArgument("read seccomp profile: %v", err)
		}
	}
	if in.Container, err = resolveMounts(in.Container); err != nil {
		return err
	}
	if err := userns.CheckMounts(sb, in.Container.GetMounts()); err != nil {
		return err
	}
	switch sec.GetNamespaceOptions().GetPid() {
	case runtimeapi.NamespaceMode_POD:
		if at := sb.NS(pods.PIDNamespace); linux.IsNamespace(at) {
			in.Namespaces.PID = at
		}
	case runtimeapi.NamespaceMode_TARGET:
		in.Namespaces.PID, err = s.targetPIDNamespace(sb, sec.GetNamespaceOptions().GetTargetId())
	case runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
	}
	return err
}

// targetPIDNamespace returns the PID namespace of another container of the pod.
func (s *Service) targetPIDNamespace(sb *pods.Sandbox, targetID string) (string, error) {
	c, err := s.table.Container(targetID)
	if err != nil {
		return "", err
	}
	r := c.Record()
	if r.SandboxID != sb.ID {
		return "", fault.InvalidArgument("target container %s is not in pod sandbox %s", targetID, sb.ID)
	}
	if r.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return "", fault.FailedPrecondition("target container %s is not running", targetID)
	}
	return shim.PIDNamespaceOf(r.ID), nil
}
