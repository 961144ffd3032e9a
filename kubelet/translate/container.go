// SPDX-License-Identifier: Apache-2.0

// Package translate converts a pod's specification to CRI messages: sandbox and container configurations, environment,
// resources, security contexts, DNS configuration. The pod workers call it. It reads objects through Sources, and
// volume files for fileKeyRef. It never calls the runtime and changes nothing.
package translate

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/podcgroup"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// ContainerInput has the inputs of a container's configuration besides its pod.
type ContainerInput struct {
	Restart     int
	BackOff     time.Duration // of the next restart; 0: none
	Life        int           // how often all containers of the pod were restarted together before
	Env         map[string]string
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	CDI         []string // names of devices by CDI
	Annotations map[string]string
	ImageRef    string // what the image service knows the image by
	Image       *runtimeapi.Image
	Machine     Machine
	SeccompDir  string // directory of Localhost profiles
	TargetID    string // container whose processes an ephemeral container sees; empty: none
	// Users is the pod's user namespace, for which all mounts are ID-mapped; nil: the host's.
	Users *runtimeapi.UserNamespace
	// Room has the bytes that command and arguments may still have.
	Room *Room
}

// LogPath returns a container's log file, relative to its pod's log directory.
func LogPath(name string, restart int) string {
	return filepath.Join(name, strconv.Itoa(restart)+".log")
}

// PodLogDir returns the pod's log directory below dir, with the name that log collectors expect.
func PodLogDir(dir, namespace, name, uid string) string {
	return filepath.Join(dir, namespace+"_"+name+"_"+uid)
}

// Container returns the configuration of one run of container.
func Container(pod *corev1.Pod, container *corev1.Container, in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	sc, err := containerSecurity(pod, container, in)
	if err != nil {
		return nil, err
	}
	command, err := expandAll("command", container.Command, in)
	if err != nil {
		return nil, err
	}
	args, err := expandAll("args", container.Args, in)
	if err != nil {
		return nil, err
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: container.Name, Attempt: uint32(in.Restart)}, // never negative
		Image:      &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: container.Image},
		Command:    command,
		Args:       args,
		WorkingDir: container.WorkingDir,
		Mounts:     mapped(in.Mounts, in.Users),
		Devices:    in.Devices,
		CDIDevices: cdiDevices(in.CDI),
		Labels: map[string]string{
			runtimestate.LabelPodName:       pod.Name,
			runtimestate.LabelPodNamespace:  pod.Namespace,
			runtimestate.LabelPodUID:        string(pod.UID),
			runtimestate.LabelContainerName: container.Name,
		},
		Annotations: map[string]string{
			runtimestate.AnnotationHash:          podinfo.Hash(container),
			runtimestate.AnnotationResources:     podinfo.ResourcesHash(pod, container),
			runtimestate.AnnotationRestartCount:  strconv.Itoa(in.Restart),
			runtimestate.AnnotationMessagePath:   container.TerminationMessagePath,
			runtimestate.AnnotationMessagePolicy: string(container.TerminationMessagePolicy),
			runtimestate.AnnotationGracePeriod:   strconv.FormatInt(podinfo.GracePeriodSeconds(pod), 10),
		},
		LogPath:   LogPath(container.Name, in.Restart),
		Stdin:     container.Stdin,
		StdinOnce: container.StdinOnce,
		Tty:       container.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       Resources(pod, container, in.Machine),
			SecurityContext: sc,
		},
	}
	if in.BackOff > 0 {
		cfg.Annotations[runtimestate.AnnotationBackOff] = in.BackOff.String()
	}
	if in.Life > 0 {
		cfg.Annotations[runtimestate.AnnotationLife] = strconv.Itoa(in.Life)
	}
	for k, v := range in.Annotations {
		if _, ok := cfg.Annotations[k]; !ok {
			cfg.Annotations[k] = v
		}
	}
	if container.Lifecycle != nil && container.Lifecycle.StopSignal != nil {
		if n, ok := runtimeapi.Signal_value[string(*container.Lifecycle.StopSignal)]; ok {
			cfg.StopSignal = runtimeapi.Signal(n)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(in.Env)) {
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: k, Value: []byte(in.Env[k])})
	}
	return cfg, nil
}

func cdiDevices(names []string) []*runtimeapi.CDIDevice {
	var out []*runtimeapi.CDIDevice
	for _, name := range names {
		out = append(out, &runtimeapi.CDIDevice{Name: name})
	}
	return out
}

// mapped adds the ID mappings of the pod's user namespace to the mounts. So a file has the same owner on disk and in
// the pod.
func mapped(mounts []*runtimeapi.Mount, users *runtimeapi.UserNamespace) []*runtimeapi.Mount {
	if users == nil {
		return mounts
	}
	for _, m := range mounts {
		m.UidMappings = users.GetUids()
		m.GidMappings = users.GetGids()
	}
	return mounts
}

// expandAll returns the words of a field with their names replaced.
func expandAll(field string, words []string, in ContainerInput) ([]string, error) {
	if words == nil {
		return nil, nil
	}
	get := func(name string) (string, bool) {
		v, ok := in.Env[name]
		return v, ok
	}
	out := make([]string, len(words))
	for i, w := range words {
		var err error
		if out[i], err = Expand(w, maxString-1, get); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w, the kernel's limit", field, i, err)
		}
		if err := in.Room.take(len(out[i]) + perString); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const (
	period    = 100_000 // µs; the default of kernel and kubelet
	minQuota  = 1_000
	minShares = 2
	maxShares = 262_144
)

func shares(milli int64) int64 {
	return min(max(milli*1024/1000, minShares), maxShares)
}

func quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, minQuota)
}

// PodLimits returns the limits of a pod's cgroup: its shares by all that the pod requests, and what limits the pod as a
// whole, with its overhead.
func PodLimits(pod *corev1.Pod) podcgroup.Limits {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := podcgroup.Limits{Shares: shares(requests.Cpu().MilliValue())}
	if whole := pod.Spec.Resources; whole != nil {
		if cpu := whole.Limits.Cpu().MilliValue(); cpu > 0 {
			limits.Quota = quota(cpu + pod.Spec.Overhead.Cpu().MilliValue())
		}
		if memory := whole.Limits.Memory().Value(); memory > 0 {
			limits.Memory = memory + pod.Spec.Overhead.Memory().Value()
		}
	}
	return limits
}

// Machine is what the resources of containers depend on besides their pods. The zero value is an unknown machine.
type Machine struct {
	Memory int64 // in bytes, for the OOM score
	// PageSizes are those of its huge pages, as in resource names ("2Mi").
	PageSizes []string
	// GroupKill: a container that exhausts its memory loses all its processes, not one of them. That is Kubernetes'
	// default (singleProcessOOMKill) where cgroups have version 2; others cannot do it.
	GroupKill bool
}

// Resources returns the resources of a container's cgroup.
func Resources(pod *corev1.Pod, container *corev1.Container, machine Machine) *runtimeapi.LinuxContainerResources {
	cpu := container.Resources.Requests.Cpu()
	if cpu.IsZero() {
		cpu = container.Resources.Limits.Cpu()
	}
	limits := podinfo.Limits(pod, container)
	out := &runtimeapi.LinuxContainerResources{
		CpuPeriod:          period,
		CpuShares:          shares(cpu.MilliValue()),
		CpuQuota:           quota(limits.Cpu().MilliValue()),
		MemoryLimitInBytes: limits.Memory().Value(),
		OomScoreAdj:        oomScore(pod, container, machine.Memory),
		HugepageLimits:     hugePages(limits, machine.PageSizes),
	}
	if machine.GroupKill {
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

// hugePages returns a limit for each size of the machine's huge pages: a container without a limit, in a pod without
// one, gets none of them.
func hugePages(limits corev1.ResourceList, sizes []string) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	for _, size := range sizes {
		page, err := resource.ParseQuantity(size)
		if err != nil {
			continue // node.Machine makes no such size
		}
		limit := limits[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)]
		out = append(out, &runtimeapi.HugepageLimit{PageSize: pageSize(page.Value()), Limit: uint64(limit.Value())})
	}
	return out
}

// pageSize returns a size in the kernel's words for cgroups: 64KB, 2MB, 1GB.
func pageSize(bytes int64) string {
	unit := 0
	for bytes >= 1024 && bytes%1024 == 0 && unit < 3 {
		bytes /= 1024
		unit++
	}
	return strconv.FormatInt(bytes, 10) + []string{"B", "KB", "MB", "GB"}[unit]
}

// oomScore returns oom_score_adj: the larger the memory request relative to the node, the later the container is
// killed. Pods that the node itself needs are killed last, by their class and not by their priority alone. A sidecar is
// not killed before the main containers (KEP-753), and what a pod requests beyond its containers counts for each of
// them in equal parts (KEP-2837).
func oomScore(p *corev1.Pod, container *corev1.Container, memoryBytes int64) int64 {
	if podinfo.Critical(p) && p.Spec.PriorityClassName == "system-node-critical" {
		return -997
	}
	switch podinfo.QOS(p) {
	case corev1.PodQOSGuaranteed:
		return -997
	case corev1.PodQOSBestEffort:
		return 1000
	case corev1.PodQOSBurstable:
	}
	if memoryBytes <= 0 {
		return 999
	}
	request := container.Resources.Requests.Memory().Value()
	if podinfo.Sidecar(container) {
		request = max(request, leastRequest(p.Spec.Containers))
	}
	adj := 1000 - 1000*(request+beyondContainers(p))/memoryBytes
	return min(max(adj, 3), 999)
}

// leastRequest returns the smallest memory request of some containers.
func leastRequest(containers []corev1.Container) int64 {
	var out int64
	for i := range containers {
		if request := containers[i].Resources.Requests.Memory().Value(); i == 0 || request < out {
			out = request
		}
	}
	return out
}

// beyondContainers returns each container's part of the memory that a pod requests beyond its containers' requests.
func beyondContainers(p *corev1.Pod) int64 {
	if p.Spec.Resources == nil || p.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	requested := resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{})
	left := p.Spec.Resources.Requests.Memory().Value() - requested.Memory().Value()
	return left / int64(len(p.Spec.Containers)+len(p.Spec.InitContainers))
}

// PodResources are the resources of a pod's sandbox: the sums over the pod's containers, for runtimes with sandboxes of
// a fixed size (VMs).
func PodResources(p *corev1.Pod) *runtimeapi.LinuxContainerResources {
	var req, quotaMilli, mem int64
	limited := true
	memLimited := true
	for c, k := range podinfo.All(p) {
		if k != podinfo.Main && k != podinfo.SideCar {
			continue
		}
		req += c.Resources.Requests.Cpu().MilliValue()
		quotaMilli += c.Resources.Limits.Cpu().MilliValue()
		mem += c.Resources.Limits.Memory().Value()
		limited = limited && !c.Resources.Limits.Cpu().IsZero()
		memLimited = memLimited && !c.Resources.Limits.Memory().IsZero()
	}
	if all := p.Spec.Resources; all != nil { // what the pod itself says counts more than its containers
		req = cmp.Or(all.Requests.Cpu().MilliValue(), req)
		if cpu := all.Limits.Cpu(); !cpu.IsZero() {
			quotaMilli = cpu.MilliValue()
			limited = true
		}
		if memory := all.Limits.Memory(); !memory.IsZero() {
			mem = memory.Value()
			memLimited = true
		}
	}
	r := &runtimeapi.LinuxContainerResources{CpuPeriod: period, CpuShares: shares(req)}
	if limited {
		r.CpuQuota = quota(quotaMilli)
	}
	if memLimited {
		r.MemoryLimitInBytes = mem
	}
	return r
}

// ErrNonRoot is the error of a container that would run as root though runAsNonRoot is set.
func ErrNonRoot(p *corev1.Pod, c *corev1.Container, why string) error {
	return fmt.Errorf("container has runAsNonRoot and %s (pod: %q, container: %s)", why, podinfo.FullName(p), c.Name)
}

func wrap64(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: min(max(*v, 0), math.MaxUint32)}
}
