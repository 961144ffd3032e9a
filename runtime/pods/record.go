// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/record"
)

// Message stores a CRI message in a JSON file, as protobuf's JSON.
type Message[T proto.Message] struct{ V T }

// MarshalJSON writes the message as protobuf's JSON.
func (m Message[T]) MarshalJSON() ([]byte, error) { return protojson.Marshal(m.V) }

// UnmarshalJSON reads it and ignores fields of later versions.
func (m *Message[T]) UnmarshalJSON(b []byte) error {
	m.V = m.V.ProtoReflect().New().Interface().(T) // a message's own type
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m.V)
}

// The names of records. Versions of the runtime share them: what they mean never changes.
const (
	sandboxFile   = "sandbox.json"
	containerFile = "container.json"
)

// SandboxRecord is the file of a sandbox.
type SandboxRecord struct {
	ID      string                                `json:"id"`
	Config  Message[*runtimeapi.PodSandboxConfig] `json:"config"`
	Handler string                                `json:"handler,omitempty"`
	Created time.Time                             `json:"created"`
	// Ready is false until the sandbox is complete, and again once it is stopped.
	Ready bool `json:"ready"`
	// Complete: RunPodSandbox succeeded. Incomplete sandboxes are removed at the next start.
	Complete bool         `json:"whole"`
	IPs      []netip.Addr `json:"ips,omitempty"`
	Hostname string       `json:"hostname"`
}

// ContainerRecord is the file of a container.
type ContainerRecord struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandboxID"`
	// Config is without environment, command and arguments, which may have values of Secrets; see WithoutEnvironment.
	Config    Message[*runtimeapi.ContainerConfig]         `json:"config"`
	ImageID   string                                       `json:"imageID"`
	ImageRef  string                                       `json:"imageRef"`
	LogPath   string                                       `json:"logPath,omitempty"`
	User      Message[*runtimeapi.LinuxContainerUser]      `json:"user"`
	Resources Message[*runtimeapi.LinuxContainerResources] `json:"resources"`
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

// WithoutEnvironment returns a configuration without environment, command and arguments, which nothing needs after
// the spec is made. The rest is shared with cfg.
func WithoutEnvironment(cfg *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	if cfg == nil {
		return nil
	}
	out := &runtimeapi.ContainerConfig{}
	cfg.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch field.Name() {
		case "envs", "command", "args":
		default:
			out.ProtoReflect().Set(field, v)
		}
		return true
	})
	return out
}

// writeRecord writes v to the file and a copy of it, so that one of them may get damaged (see lib/record).
func writeRecord(path string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return record.Write(path, body)
}

func decodeSandbox(id string, body []byte) (SandboxRecord, error) {
	var r SandboxRecord
	if err := json.Unmarshal(body, &r); err != nil {
		return SandboxRecord{}, err
	}
	if r.ID != id || r.Config.V.GetMetadata() == nil {
		return SandboxRecord{}, fmt.Errorf("it belongs to pod sandbox %q, or has no metadata", r.ID)
	}
	return r, nil
}

func decodeContainer(id string, body []byte) (ContainerRecord, error) {
	var r ContainerRecord
	if err := json.Unmarshal(body, &r); err != nil {
		return ContainerRecord{}, err
	}
	if r.ID != id || r.SandboxID == "" || r.Config.V.GetMetadata() == nil {
		return ContainerRecord{}, fmt.Errorf("it belongs to container %q, or has no pod sandbox or metadata", r.ID)
	}
	return r, nil
}
