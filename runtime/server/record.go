// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/record"
)

// message stores a CRI message in a JSON file, as protobuf's JSON.
type message[T proto.Message] struct{ v T }

// MarshalJSON writes the message as protobuf's JSON.
func (m message[T]) MarshalJSON() ([]byte, error) { return protojson.Marshal(m.v) }

// UnmarshalJSON reads it and ignores fields of later versions.
func (m *message[T]) UnmarshalJSON(b []byte) error {
	m.v = m.v.ProtoReflect().New().Interface().(T) // a message's own type
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m.v)
}

const (
	sandboxFile   = "sandbox.json"
	containerFile = "container.json"
	specFile      = "spec.sealed" // see sealed.go
	oldSpecFile   = "spec.json"   // of earlier versions
)

// sandboxRecord is the file of a sandbox.
type sandboxRecord struct {
	ID      string                                `json:"id"`
	Config  message[*runtimeapi.PodSandboxConfig] `json:"config"`
	Handler string                                `json:"handler,omitempty"`
	Created time.Time                             `json:"created"`
	// Ready is false until the sandbox is complete, and again once it is stopped.
	Ready bool `json:"ready"`
	// Complete: RunPodSandbox succeeded. Incomplete sandboxes are removed at the next start.
	Complete bool         `json:"whole"`
	IPs      []netip.Addr `json:"ips,omitempty"`
	Hostname string       `json:"hostname"`
}

// sandbox is one pod sandbox. Stop and Remove hold op for writing, calls that need the sandbox to exist hold it for
// reading; mu guards the record.
type sandbox struct {
	id  string
	dir string
	op  sync.RWMutex

	mu  sync.Mutex
	rec sandboxRecord
	cpu sample
}

func (sb *sandbox) record() sandboxRecord {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.rec
}

// update changes the record on disk and then in memory.
func (sb *sandbox) update(change func(*sandboxRecord)) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	next := sb.rec
	change(&next)
	if err := writeRecord(filepath.Join(sb.dir, sandboxFile), next); err != nil {
		return err
	}
	sb.rec = next
	return nil
}

func (r *sandboxRecord) options() *runtimeapi.NamespaceOption {
	return r.Config.v.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("pod sandbox %s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// containerRecord is the file of a container.
type containerRecord struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandboxID"`
	// Config is without environment, command and arguments, which may have values of Secrets.
	Config    message[*runtimeapi.ContainerConfig]         `json:"config"`
	ImageID   string                                       `json:"imageID"`
	ImageRef  string                                       `json:"imageRef"`
	LogPath   string                                       `json:"logPath,omitempty"`
	User      message[*runtimeapi.LinuxContainerUser]      `json:"user"`
	Resources message[*runtimeapi.LinuxContainerResources] `json:"resources"`
	// ImageMounts are the ids of the snapshots of image volumes.
	ImageMounts []string  `json:"imageMounts,omitempty"`
	StopSignal  string    `json:"stopSignal,omitempty"` // the image's
	CgroupPath  string    `json:"cgroupPath"`
	Created     time.Time `json:"created"`
	// Complete: CreateContainer succeeded.
	Complete bool      `json:"whole"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	ExitCode int32     `json:"exitCode"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
}

func (r *containerRecord) state() runtimeapi.ContainerState {
	switch {
	case !r.Finished.IsZero():
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case !r.Started.IsZero():
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return runtimeapi.ContainerState_CONTAINER_CREATED
}

// container is one container. Start and Remove hold op; mu guards the record.
type container struct {
	id     string
	dir    string
	op     sync.Mutex
	exited chan struct{} // closed when the exit is recorded

	mu   sync.Mutex
	rec  containerRecord
	cpu  sample
	disk diskSample
}

func (c *container) record() containerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// update changes the record on disk and then in memory.
func (c *container) update(change func(*containerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.rec.state()
	next := c.rec
	change(&next)
	err := writeRecord(filepath.Join(c.dir, containerFile), next)
	if err != nil && next.state() == was {
		return err
	}
	// The new record is used even if it could not be written: an exit has happened, and the supervisor has it on disk
	// as well.
	c.rec = next
	if next.state() == runtimeapi.ContainerState_CONTAINER_EXITED && was != next.state() {
		close(c.exited)
	}
	return err
}

func containerName(sandboxID string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("container %s_%d of pod sandbox %s", m.GetName(), m.GetAttempt(), sandboxID)
}

// writeRecord writes v to the file and a copy of it, so that one of them may get damaged (see lib/record).
func writeRecord(path string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return record.Write(path, body)
}

func decodeSandbox(id string, body []byte) (sandboxRecord, error) {
	var r sandboxRecord
	if err := json.Unmarshal(body, &r); err != nil {
		return sandboxRecord{}, err
	}
	if r.ID != id || r.Config.v.GetMetadata() == nil {
		return sandboxRecord{}, fmt.Errorf("it belongs to pod sandbox %q, or has no metadata", r.ID)
	}
	return r, nil
}

func decodeContainer(id string, body []byte) (containerRecord, error) {
	var r containerRecord
	if err := json.Unmarshal(body, &r); err != nil {
		return containerRecord{}, err
	}
	if r.ID != id || r.SandboxID == "" || r.Config.v.GetMetadata() == nil {
		return containerRecord{}, fmt.Errorf("it belongs to container %q, or has no pod sandbox or metadata", r.ID)
	}
	return r, nil
}

// newID returns 256 random bits in hex, the usual form of container ids.
func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
