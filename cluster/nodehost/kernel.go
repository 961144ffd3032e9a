// SPDX-License-Identifier: Apache-2.0

// Package nodehost is what a machine needs to be a node, except for the agents that run there: the rights of the
// process, the container runtime with its pod network or CNI plugins, the ranges of pod addresses, the machine's own
// name and addresses, and the removal of all of this from the kernel. It knows the data directory, and has no client of
// an API server except in AskPodCIDRs.
package nodehost

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MayBeNode returns why this process cannot make the machine a node; nothing is changed before it is called.
func MayBeNode() error {
	if os.Getuid() != 0 {
		return errors.New("a node mounts file systems and makes networks, which only root may: run the command as root")
	}
	return Missing()
}

// Missing explains in a sentence what this process or machine lacks for a real node; nil: nothing is known to be
// missing. The part that needs a feature reports what shows only in use, such as missing overlay mounts.
func Missing() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("a real node needs /proc: %w", err)
	}
	if missing := missingCapabilities(string(status)); len(missing) > 0 {
		return fmt.Errorf("a real node needs %s, which this process does not have even as root: give it to it, or "+
			"run as another user for a fake node",
			strings.Join(missing, " and "))
	}
	if _, err := os.Stat("/sys/fs/cgroup"); err != nil {
		return errors.New("a real node needs control groups at /sys/fs/cgroup, where nothing is mounted: mount them, " +
			"or run as another user for a fake node")
	}
	return nil
}

// missingCapabilities reads the content of /proc/PID/status. If it cannot be parsed, none is missing.
func missingCapabilities(status string) []string {
	_, rest, _ := strings.Cut(status, "\nCapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	have, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return nil
	}
	var missing []string
	for _, c := range []struct {
		bit  uint
		name string
	}{
		{unix.CAP_SYS_ADMIN, "the right to mount (CAP_SYS_ADMIN)"},
		{unix.CAP_NET_ADMIN, "the right to make networks (CAP_NET_ADMIN)"},
	} {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}
