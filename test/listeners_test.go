// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// listening are the addresses at which a pod could reach what the processes of a cluster listen on: each port on
// loopback and on every address of this machine.
func listening(t *testing.T, data string) []string {
	t.Helper()
	inodes := map[string]bool{}
	for _, pid := range clusterProcesses(data) {
		fds, _ := filepath.Glob("/proc/" + pid + "/fd/*")
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
				inodes[strings.Trim(to, "socket:[]")] = true
			}
		}
	}
	ports := map[uint64]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !inodes[f[9]] { // 0A: listening
				continue
			}
			_, port, _ := strings.Cut(f[1], ":")
			if p, err := strconv.ParseUint(port, 16, 16); err == nil {
				ports[p] = true
			}
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for p := range ports {
		for _, a := range addrs {
			if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil {
				out = append(out, net.JoinHostPort(ip.String(), strconv.FormatUint(p, 10)))
			}
		}
	}
	return out
}

// clusterProcesses are the ids of the processes whose command line names the data directory: the cluster's and its
// supervisor's.
func clusterProcesses(data string) []string {
	var out []string
	for _, pid := range names("/proc") {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		cmd, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err == nil && strings.Contains(string(cmd), data) {
			out = append(out, pid)
		}
	}
	if b, err := os.ReadFile(filepath.Join(data, "keelson.pid")); err == nil {
		var pid int
		if _, err := fmt.Sscan(string(b), &pid); err == nil {
			out = append(out, strconv.Itoa(pid))
		}
	}
	return out
}
