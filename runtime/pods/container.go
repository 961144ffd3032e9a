// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container is one container. Make it with Table.NewContainer.
type Container struct {
	ID  string
	Dir string
	// Op serializes what is done to the container; see the package's locks.
	Op sync.Mutex
	// CPU and Disk are the last readings of the container's usage.
	CPU  Rate
	Disk Disk

	exited chan struct{} // closed when the exit is recorded

	mu  sync.Mutex
	rec ContainerRecord
}

// Exited is closed when the container's end is recorded.
func (c *Container) Exited() <-chan struct{} { return c.exited }

// Record returns a copy of the record. Its messages are shared and must not be changed.
func (c *Container) Record() ContainerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// Update changes the record on disk and then in memory.
func (c *Container) Update(change func(*ContainerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.rec.State()
	next := c.rec
	change(&next)
	err := writeRecord(filepath.Join(c.Dir, containerFile), next)
	if err != nil && next.State() == was {
		return err
	}
	// The new record is used even if it could not be written: an exit has happened, and the supervisor has it on disk
	// as well.
	c.rec = next
	if next.State() == runtimeapi.ContainerState_CONTAINER_EXITED && was != next.State() {
		close(c.exited)
	}
	return err
}

// State returns the state in CRI's words.
func (r *ContainerRecord) State() runtimeapi.ContainerState {
	switch {
	case !r.Finished.IsZero():
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case !r.Started.IsZero():
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return runtimeapi.ContainerState_CONTAINER_CREATED
}

// Running reports whether the container has started and not ended.
func (r *ContainerRecord) Running() bool {
	return r.State() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Status returns the container as ContainerStatus and events describe it.
func (c *Container) Status() *runtimeapi.ContainerStatus {
	record := c.Record()
	cfg := record.Config.V
	return &runtimeapi.ContainerStatus{
		Id:          record.ID,
		Metadata:    cfg.GetMetadata(),
		State:       record.State(),
		CreatedAt:   nanos(record.Created),
		StartedAt:   nanos(record.Started),
		FinishedAt:  nanos(record.Finished),
		ExitCode:    record.ExitCode,
		Image:       record.Image(),
		ImageRef:    record.ImageRef,
		ImageId:     record.ImageID,
		Reason:      record.Reason,
		Message:     record.Message,
		Labels:      cfg.GetLabels(),
		Annotations: cfg.GetAnnotations(),
		Mounts:      cfg.GetMounts(),
		LogPath:     record.LogPath,
		Resources:   &runtimeapi.ContainerResources{Linux: record.Resources.V},
		User:        &runtimeapi.ContainerUser{Linux: record.User.V},
		StopSignal:  record.reportedSignal(),
	}
}

// Image returns the image name that the user gave.
func (r *ContainerRecord) Image() *runtimeapi.ImageSpec {
	spec := r.Config.V.GetImage()
	if u := spec.GetUserSpecifiedImage(); u != "" {
		return &runtimeapi.ImageSpec{Image: u, UserSpecifiedImage: u, Annotations: spec.GetAnnotations()}
	}
	return spec
}

// nanos returns 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// ContainerName is the name that only one container may have at a time.
func ContainerName(sandboxID string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("container %s_%d of pod sandbox %s", m.GetName(), m.GetAttempt(), sandboxID)
}
