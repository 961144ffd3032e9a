// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/runtime/fault"
	"keelson/runtime/image"
	"keelson/runtime/image/manifest"
	"keelson/runtime/image/registry"
	"keelson/runtime/podnet"
)

// images is CRI's image service over the image store. Server has it as a part, because CRI serves both services on one
// socket. It has no lock and no record: the store has.
type images struct {
	runtimeapi.UnimplementedImageServiceServer

	store *image.Store
	marks *event.Recorder
}

// PullImage pulls an image if it is not present. Progress is reported as marks of the pod that needs it.
func (s *images) PullImage(
	ctx context.Context, request *runtimeapi.PullImageRequest,
) (*runtimeapi.PullImageResponse, error) {
	ref := request.GetImage().GetImage()
	if ref == "" {
		return nil, fault.InvalidArgument("pull image: no image named")
	}
	var auth *registry.Auth
	if a := request.GetAuth(); a != nil {
		auth = &registry.Auth{
			Username:      a.GetUsername(),
			Password:      a.GetPassword(),
			Auth:          a.GetAuth(),
			ServerAddress: a.GetServerAddress(),
			IdentityToken: a.GetIdentityToken(),
			RegistryToken: a.GetRegistryToken(),
		}
	}
	img, err := s.store.Pull(ctx, image.Request{
		Ref:      ref,
		Auth:     auth,
		Tenant:   request.GetSandboxConfig().GetMetadata().GetNamespace(),
		Progress: s.progress(request),
	})
	if err != nil {
		return nil, fault.Status(addImportHint(err))
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
}

// addImportHint adds to a network error how to get an image without reaching its registry.
func addImportHint(err error) error {
	if !registry.Unreachable(err) {
		return err
	}
	return fmt.Errorf("%w (its registry cannot be reached: import the image with `keelson image import FILE`, or "+
		"name another place with --image-mirror HOST=URL)", err)
}

// progressInterval is the minimum time between two marks of one pull.
const progressInterval = 500 * time.Millisecond

// progress returns the progress callback of a pull; nil when the pull is not for a pod.
func (s *images) progress(request *runtimeapi.PullImageRequest) image.Progress {
	pod := request.GetSandboxConfig().GetMetadata()
	if pod.GetUid() == "" {
		return nil
	}
	begin := time.Now()
	var last time.Time
	return func(done, total int64) {
		now := time.Now()
		if done < total && now.Sub(last) < progressInterval {
			return
		}
		last = now
		s.marks.Emit(event.Event{
			Step:      event.StepImage,
			Component: "runtime",
			At:        begin,
			Took:      now.Sub(begin),
			Subject:   podnet.Subject(pod),
			Detail:    &event.Image{Image: request.GetImage().GetImage(), Bytes: done, Total: total},
		})
	}
}

// ListImages lists images, or the one that the filter names.
func (s *images) ListImages(
	_ context.Context, r *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	out := &runtimeapi.ListImagesResponse{}
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		if img, ok := s.store.Get(ref); ok {
			out.Images = append(out.Images, criImage(img))
		}
		return out, nil
	}
	for _, img := range s.store.List() {
		out.Images = append(out.Images, criImage(img))
	}
	return out, nil
}

// ImageStatus returns no image for an absent one; CRI defines that as no error.
func (s *images) ImageStatus(
	_ context.Context, r *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	out := &runtimeapi.ImageStatusResponse{}
	if img, ok := s.store.Get(r.GetImage().GetImage()); ok {
		out.Image = criImage(img)
		if r.GetVerbose() {
			out.Info = map[string]string{"config": strings.Join(append(img.Config.Entrypoint, img.Config.Cmd...), " ")}
		}
	}
	return out, nil
}

func criImage(img image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id:          img.ID,
		RepoTags:    img.RepoTags,
		RepoDigests: img.RepoDigests,
		Size:        uint64(max(0, img.Size)),
		Pinned:      img.Pinned,
	}
	name, _, _ := strings.Cut(img.Config.User, ":")
	if uid, err := strconv.ParseInt(name, 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else if name != "" {
		out.Username = name
	} else {
		out.Uid = &runtimeapi.Int64Value{}
	}
	return out
}

// RemoveImage removes an image and all its names. An absent one is not an error; the built-in image stays.
func (s *images) RemoveImage(
	ctx context.Context, r *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	ref := r.GetImage().GetImage()
	img, ok := s.store.Get(ref)
	if !ok {
		return &runtimeapi.RemoveImageResponse{}, nil
	}
	err := s.store.Remove(ctx, img.ID)
	if err != nil && !errors.Is(err, manifest.ErrNotFound) {
		return nil, fault.Wrap(err, "remove image %s", ref)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo returns the disk usage of images and containers.
func (s *images) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	u, err := s.store.FsInfo()
	if err != nil {
		return nil, fault.Wrap(err, "image file system")
	}
	now := time.Now()
	fs := &runtimeapi.FilesystemUsage{
		Timestamp:  now.UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: u.Dir},
		UsedBytes:  &runtimeapi.UInt64Value{Value: uint64(max(0, u.Bytes))},
		InodesUsed: &runtimeapi.UInt64Value{Value: uint64(max(0, u.Inodes))},
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{fs},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{fs},
	}, nil
}
