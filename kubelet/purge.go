// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/volume"
)

// Purge unmounts what a kubelet mounted below its root directory, for a node that is taken down. Containers must be
// gone.
func Purge(rootDir string) error { return volume.Purge(rootDir) }

// PurgePods ends the pods of a kubelet, for a node that is taken down: those in the runtime that have a directory below
// rootDir. A runtime may have other pods too, which stay.
func PurgePods(ctx context.Context, rt cri.Client, rootDir string) error {
	boxes, err := rt.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for _, podSandbox := range boxes.GetItems() {
		uid := podSandbox.GetLabels()[runtimestate.LabelPodUID]
		if uid == "" || filepath.Base(uid) != uid {
			continue
		}
		if _, err := os.Stat(filepath.Join(rootDir, "pods", uid)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		group.Go(func() error {
			if _, err := rt.Runtime.StopPodSandbox(ctx,
				&runtimeapi.StopPodSandboxRequest{PodSandboxId: podSandbox.GetId()}); err != nil {
				return fmt.Errorf("stop pod %s: %w", podSandbox.GetMetadata().GetName(), err)
			}
			if _, err := rt.Runtime.RemovePodSandbox(ctx,
				&runtimeapi.RemovePodSandboxRequest{PodSandboxId: podSandbox.GetId()}); err != nil {
				return fmt.Errorf("remove pod %s: %w", podSandbox.GetMetadata().GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}
