// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// awaitAttached waits until the server knows that the node uses the volume, and that a controller has attached it. It
// returns what attaching said.
func (m *Mounter) awaitAttached(ctx context.Context, j *job) (map[string]string, error) {
	wctx, cancel := context.WithTimeout(ctx, m.attachWithin)
	defer cancel()
	name := j.unique()
	for {
		m.mu.Lock()
		news := m.news
		m.mu.Unlock()
		if attachedTo(m.cfg.Node(), name) {
			break
		}
		select {
		case <-news:
			continue
		case <-wctx.Done():
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if m.exhausted(ctx, j) {
			return nil, &Error{Err: &LimitError{Volume: j.Name}}
		}
		return nil, &Error{
			//nolint:staticcheck // as Kubernetes words it
			Err: fmt.Errorf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], "+
				"failed to process volumes=[]: %w",
				j.Name, j.Name, wctx.Err()),
		}
	}
	id := j.use.AttachmentID
	fail := func(err error) error {
		return &Error{j.op("WaitForAttach", "WaitForAttach"), j.name, err}
	}
	attachment, err := m.cfg.API.StorageV1().VolumeAttachments().Get(ctx, id, metav1.GetOptions{})
	if err != nil {
		return nil, fail(fmt.Errorf("volume %s has GET error for volume attachment %s: %w", j.handle, id, err))
	}
	switch {
	case attachment.Spec.Attacher != j.driver.name || attachment.Spec.NodeName != m.cfg.NodeName:
		return nil, fail(fmt.Errorf("volume attachment %s is for %s on %s", id, attachment.Spec.Attacher,
			attachment.Spec.NodeName))
	case attachment.DeletionTimestamp != nil:
		return nil, fail(fmt.Errorf("volume %s has been detached", j.handle))
	case !attachment.Status.Attached && attachment.Status.AttachError != nil:
		return nil, fail(fmt.Errorf("%s", attachment.Status.AttachError.Message))
	case !attachment.Status.Attached:
		return nil,
			fail(fmt.Errorf("volume attachment %s is not attached at %s", id, time.Now().UTC().Format(time.RFC3339)))
	}
	return attachment.Status.AttachmentMetadata, nil
}

// attachedTo reports whether the node is known to use a volume, and has it attached.
func attachedTo(n *corev1.Node, name corev1.UniqueVolumeName) bool {
	return n != nil && slices.Contains(n.Status.VolumesInUse, name) &&
		slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == name })
}
