// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"path/filepath"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/oci"
)

// Sandbox is one pod sandbox. Make it with Table.NewSandbox.
type Sandbox struct {
	ID  string
	Dir string
	// Op serializes what is done to the sandbox; see the package's locks.
	Op sync.RWMutex
	// CPU is the processor time of the pod's cgroup at the last reading.
	CPU Rate

	mu  sync.Mutex
	rec SandboxRecord
}

// Record returns a copy of the record. Its messages are shared and must not be changed.
func (sb *Sandbox) Record() SandboxRecord {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.rec
}

// Update changes the record on disk and then in memory.
func (sb *Sandbox) Update(change func(*SandboxRecord)) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	next := sb.rec
	change(&next)
	if err := writeRecord(filepath.Join(sb.Dir, sandboxFile), next); err != nil {
		return err
	}
	sb.rec = next
	return nil
}

// PIDNamespace is the PID namespace that the pod's containers share.
const PIDNamespace linux.Namespace = "pid"

// NS returns the path at which a namespace of the pod is held; of "" the directory of them all.
func (sb *Sandbox) NS(kind linux.Namespace) string { return filepath.Join(sb.Dir, "ns", string(kind)) }

// Shm returns where the pod's shared memory is mounted.
func (sb *Sandbox) Shm() string { return filepath.Join(sb.Dir, "shm") }

// HolderID is the supervisor's name for the first process of the pod's PID namespace; SandboxOfHolder returns the id of
// the sandbox again.
func (sb *Sandbox) HolderID() string { return holderPrefix + sb.ID }

// holderPrefix begins the names of holders.
const holderPrefix = "hold-"

// Options returns which namespaces the pod shares with the host.
func (r *SandboxRecord) Options() *runtimeapi.NamespaceOption {
	return r.Config.V.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// OwnNamespaces returns the kinds of namespaces that the sandbox does not share with the host.
func (r *SandboxRecord) OwnNamespaces() []linux.Namespace {
	var out []linux.Namespace
	if r.Options().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		out = append(out, linux.NetworkNamespace, linux.UTSNamespace)
	}
	if r.Options().GetIpc() != runtimeapi.NamespaceMode_NODE {
		out = append(out, linux.IPCNamespace)
	}
	return out
}

// HeldNamespaces returns the kinds of all namespaces that are held by mounts below the sandbox's directory.
func (r *SandboxRecord) HeldNamespaces() []linux.Namespace {
	out := r.OwnNamespaces()
	if r.Options().GetPid() == runtimeapi.NamespaceMode_POD {
		out = append(out, PIDNamespace)
	}
	if r.HasUserNamespace() {
		out = append(out, linux.UserNamespace)
	}
	return out
}

// HasUserNamespace reports whether the pod has its own user namespace.
func (r *SandboxRecord) HasUserNamespace() bool {
	o := r.Options()
	// Without options the pod uses the host's user namespace; with options, the mode's zero value is POD.
	return o.GetUsernsOptions() != nil && o.GetUsernsOptions().GetMode() != runtimeapi.NamespaceMode_NODE
}

// IDMaps returns the mappings of the pod's user namespace.
func (r *SandboxRecord) IDMaps() linux.IDMaps {
	u := r.Options().GetUsernsOptions()
	return linux.IDMaps{UIDs: idMaps(u.GetUids()), GIDs: idMaps(u.GetGids())}
}

func idMaps(all []*runtimeapi.IDMapping) []linux.IDMap {
	out := make([]linux.IDMap, 0, len(all))
	for _, m := range all {
		out = append(out, linux.IDMap{Inside: m.GetContainerId(), Outside: m.GetHostId(), Length: m.GetLength()})
	}
	return out
}

// Files returns the files that every container of the pod has, and the pod's shared memory.
func (sb *Sandbox) Files() oci.PodFiles {
	f := oci.PodFiles{
		Hosts:      filepath.Join(sb.Dir, "hosts"),
		ResolvConf: filepath.Join(sb.Dir, "resolv.conf"),
		Hostname:   filepath.Join(sb.Dir, "hostname"),
		Shm:        sb.Shm(),
	}
	r := sb.Record()
	if r.Options().GetIpc() == runtimeapi.NamespaceMode_NODE {
		f.Shm = "/dev/shm"
	}
	return f
}

// Namespaces returns the namespaces that the pod's containers join.
func (sb *Sandbox) Namespaces() oci.Namespaces {
	var n oci.Namespaces
	r := sb.Record()
	if r.HasUserNamespace() {
		n.User = sb.NS(linux.UserNamespace)
	}
	for _, k := range r.OwnNamespaces() {
		switch k {
		case linux.NetworkNamespace:
			n.Network = sb.NS(k)
		case linux.IPCNamespace:
			n.IPC = sb.NS(k)
		case linux.UTSNamespace:
			n.UTS = sb.NS(k)
		}
	}
	return n
}

// State returns the state in CRI's words.
func (r *SandboxRecord) State() runtimeapi.PodSandboxState {
	if r.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// Status returns the sandbox as PodSandboxStatus and events describe it.
func (sb *Sandbox) Status() *runtimeapi.PodSandboxStatus {
	record := sb.Record()
	net := &runtimeapi.PodSandboxNetworkStatus{}
	for i, ip := range record.IPs {
		switch {
		case !record.Ready: // its addresses may belong to another pod by now
		case i == 0:
			net.Ip = ip.String()
		default:
			net.AdditionalIps = append(net.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	opts := record.Options()
	if opts == nil {
		opts = &runtimeapi.NamespaceOption{}
	}
	return &runtimeapi.PodSandboxStatus{
		Id:             record.ID,
		Metadata:       record.Config.V.GetMetadata(),
		State:          record.State(),
		CreatedAt:      record.Created.UnixNano(),
		Network:        net,
		Linux:          &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: opts}},
		Labels:         record.Config.V.GetLabels(),
		Annotations:    record.Config.V.GetAnnotations(),
		RuntimeHandler: record.Handler,
	}
}

// SandboxName is the name that only one sandbox may have at a time.
func SandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("pod sandbox %s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}
