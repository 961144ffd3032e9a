// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what this machine has. Sizes are bytes.
type Machine struct {
	CPUs      int
	Memory    int64
	Storage   int64
	HugePages map[string]int64 // by page size as in resource names ("2Mi")
	Arch      string
	Kernel    string
	OSImage   string
	MachineID string
	SystemID  string
	BootID    string
	dataDir   string
}

// Inspect looks at the machine. dataDir's file system is the node's storage.
func Inspect(dataDir string) (Machine, error) {
	machine := Machine{
		CPUs:      runtime.NumCPU(),
		Arch:      runtime.GOARCH,
		dataDir:   dataDir,
		HugePages: map[string]int64{},
	}
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return machine, fmt.Errorf("read memory size: %w", err)
	}
	machine.Memory = meminfo(info, "MemTotal")
	var fs unix.Statfs_t
	if err := unix.Statfs(dataDir, &fs); err != nil {
		return machine, fmt.Errorf("look at the file system of %s: %w", dataDir, err)
	}
	machine.Storage = int64(fs.Blocks) * fs.Bsize // sizes of file systems
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return machine, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	machine.Kernel = unix.ByteSliceToString(u.Release[:])
	machine.OSImage = osImage()
	machine.MachineID = line("/etc/machine-id")
	machine.SystemID = line("/sys/class/dmi/id/product_uuid")
	machine.BootID = line("/proc/sys/kernel/random/boot_id")
	pages, _ := os.ReadDir("/sys/kernel/mm/hugepages") // none where the kernel has none
	for _, p := range pages {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(p.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(line("/sys/kernel/mm/hugepages/"+p.Name()+"/nr_hugepages"), 10, 64)
		if err == nil {
			machine.HugePages[resource.NewQuantity(kb<<10, resource.BinarySI).String()] = n * kb << 10
		}
	}
	return machine, nil
}

func line(path string) string {
	b, err := os.ReadFile(path) // fixed paths
	if err != nil {
		return "" // not every machine says
	}
	return strings.TrimSpace(string(b))
}

func osImage() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

// meminfo is a field of /proc/meminfo in bytes.
func meminfo(b []byte, field string) int64 {
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) >= 2 && f[0] == field+":" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}

// Capacity is all that the machine has.
func (m Machine) Capacity(maxPods int) corev1.ResourceList {
	l := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(m.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(m.Storage, resource.DecimalSI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}
	for size, bytes := range m.HugePages {
		l[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	return l
}

// Allocatable is what is left for pods: reserved is for the node itself, and below kept it would evict pods.
func (m Machine) Allocatable(maxPods int, reserved, kept corev1.ResourceList) corev1.ResourceList {
	list := m.Capacity(maxPods)
	sub := func(name corev1.ResourceName, q resource.Quantity) {
		have, ok := list[name]
		if !ok {
			return
		}
		have.Sub(q)
		if have.Sign() < 0 {
			have = *resource.NewQuantity(0, have.Format)
		}
		list[name] = have
	}
	for name, q := range reserved {
		sub(name, q)
	}
	for name, q := range kept {
		sub(name, q)
	}
	for _, bytes := range m.HugePages {
		sub(corev1.ResourceMemory, *resource.NewQuantity(bytes, resource.BinarySI))
	}
	return list
}

func (m Machine) info(version string) corev1.NodeSystemInfo {
	return corev1.NodeSystemInfo{
		MachineID:       m.MachineID,
		SystemUUID:      m.SystemID,
		BootID:          m.BootID,
		KernelVersion:   m.Kernel,
		OSImage:         m.OSImage,
		KubeletVersion:  version,
		OperatingSystem: "linux",
		Architecture:    m.Arch,
	}
}

// pressures are the conditions that say what the node is low on, of those that hold.
func pressures(hold []corev1.NodeConditionType) []corev1.NodeCondition {
	var out []corev1.NodeCondition
	for _, p := range []struct {
		kind           corev1.NodeConditionType
		ifSo, ifNot    string
		soSays, notSay string
	}{
		{
			corev1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
			"kubelet has insufficient memory available", "kubelet has sufficient memory available",
		},
		{
			corev1.NodeDiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "kubelet has disk pressure",
			"kubelet has no disk pressure",
		},
		{
			corev1.NodePIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
			"kubelet has insufficient PID available", "kubelet has sufficient PID available",
		},
	} {
		nodeCondition := corev1.NodeCondition{
			Type:    p.kind,
			Status:  corev1.ConditionFalse,
			Reason:  p.ifNot,
			Message: p.notSay,
		}
		if slices.Contains(hold, p.kind) {
			nodeCondition.Status = corev1.ConditionTrue
			nodeCondition.Reason = p.ifSo
			nodeCondition.Message = p.soSays
		}
		out = append(out, nodeCondition)
	}
	return out
}
