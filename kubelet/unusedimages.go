// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/cri"
	"keelson/kubelet/podinfo"
)

// imageAgeInterval is how often old images are looked for.
const imageAgeInterval = 5 * time.Minute

// imageCleaner removes images of which the node has no use.
type imageCleaner struct {
	runtime cri.Client
	workers *workers
	log     *slog.Logger
}

// run removes images that nothing has used for an age, until ctx is done. Uses
// before the kubelet's start are not known, so the age counts from the start at the earliest.
func (c imageCleaner) run(ctx context.Context, age time.Duration) {
	timer := time.NewTicker(min(imageAgeInterval, age))
	defer timer.Stop()
	idle := idleImages{}
	for {
		unused, err := c.unused(ctx)
		if err == nil {
			err = c.remove(ctx, idle.old(unused, time.Now(), age))
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("remove images that are not used", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// idleImages has since when images are not used, by id.
type idleImages map[string]time.Time

// old takes the images that are not used now, and returns those that have not been for an age.
func (idle idleImages) old(unused []*runtimeapi.Image, now time.Time, age time.Duration) []*runtimeapi.Image {
	for id := range idle {
		if !slices.ContainsFunc(unused, func(img *runtimeapi.Image) bool { return img.GetId() == id }) {
			delete(idle, id)
		}
	}
	var out []*runtimeapi.Image
	for _, img := range unused {
		since, ok := idle[img.GetId()]
		if !ok {
			idle[img.GetId()] = now
		} else if now.Sub(since) > age {
			out = append(out, img)
		}
	}
	return out
}

// unused returns the images that no container uses. Those that a pod of the node names are not among them: it may be
// about to start.
func (c imageCleaner) unused(ctx context.Context) ([]*runtimeapi.Image, error) {
	rt := c.runtime
	list, err := rt.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list used images: %w", err)
	}
	images, err := rt.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	used := map[string]bool{}
	for _, user := range list.GetContainers() {
		for _, name := range []string{
			user.GetImage().GetImage(), user.GetImage().GetUserSpecifiedImage(), user.GetImageRef(), user.GetImageId(),
		} {
			used[name] = true
		}
	}
	wanted := map[string]bool{}
	for _, p := range c.workers.All() {
		if podkind.TerminalPhase(p.Status.Phase) {
			continue
		}
		for container := range podinfo.All(p) {
			wanted[container.Image] = true
		}
		for i := range p.Spec.Volumes {
			if v := p.Spec.Volumes[i].Image; v != nil {
				wanted[v.Reference] = true
			}
		}
	}
	for name := range wanted {
		st, err := rt.Image.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err == nil && st.GetImage() != nil {
			used[st.GetImage().GetId()] = true
		}
	}
	var unused []*runtimeapi.Image
	for _, img := range images.GetImages() {
		names := append(append([]string{img.GetId()}, img.GetRepoTags()...), img.GetRepoDigests()...)
		if !img.GetPinned() && !slices.ContainsFunc(names, func(n string) bool { return used[n] }) {
			unused = append(unused, img)
		}
	}
	return unused, nil
}

// remove removes images from the node.
func (c imageCleaner) remove(ctx context.Context, images []*runtimeapi.Image) error {
	var errs []error
	for _, img := range images {
		if _, err := c.runtime.Image.RemoveImage(ctx,
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.GetId()}}); err != nil {
			errs = append(errs, fmt.Errorf("remove unused image %s: %w", img.GetId(), err))
		}
	}
	return errors.Join(errs...)
}
