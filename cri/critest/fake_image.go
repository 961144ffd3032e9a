// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (f *Fake) addImageLocked(ref string, size uint64) *runtimeapi.Image {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
	img := &runtimeapi.Image{
		Id:   digest,
		Size: size,
		Uid:  &runtimeapi.Int64Value{},
		Spec: &runtimeapi.ImageSpec{Image: ref},
	}
	name, _, pinned := strings.Cut(ref, "@")
	if pinned {
		img.RepoDigests = []string{ref}
	} else {
		img.RepoTags = []string{tagged(ref)}
		img.RepoDigests = []string{
			strings.TrimSuffix(tagged(name), tagged(name)[strings.LastIndexByte(tagged(name), ':'):]) + "@" + digest,
		}
	}
	f.images[img.GetId()] = img
	return img
}

// tagged adds :latest to a reference that has neither tag nor digest.
func tagged(ref string) string {
	if strings.Contains(ref, "@") || strings.LastIndexByte(ref, ':') > strings.LastIndexByte(ref, '/') {
		return ref
	}
	return ref + ":latest"
}

func (f *Fake) findImageLocked(ref string) *runtimeapi.Image {
	if img := f.images[ref]; img != nil {
		return img
	}
	for _, img := range f.images {
		if slices.Contains(img.GetRepoTags(), tagged(ref)) || slices.Contains(img.GetRepoDigests(), ref) {
			return img
		}
	}
	return nil
}

// PullImage adds any image, unless FailNext is set.
func (f *Fake) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if err := f.begin(ctx, "PullImage"); err != nil {
		return nil, err
	}
	ref := r.GetImage().GetImage()
	if ref == "" {
		return nil, status.Error(codes.InvalidArgument, "pull image: no image named")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	img := f.findImageLocked(ref)
	if img == nil {
		img = f.addImageLocked(ref, 1<<20)
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.GetId()}, nil
}

// ImageStatus returns an empty response for an absent image, as CRI requires.
func (f *Fake) ImageStatus(
	ctx context.Context, r *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	if err := f.beginRead(ctx, "ImageStatus"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: f.findImageLocked(r.GetImage().GetImage())}, nil
}

// ListImages lists all images, or the one the filter names.
func (f *Fake) ListImages(
	ctx context.Context, r *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	if err := f.beginRead(ctx, "ListImages"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		out := &runtimeapi.ListImagesResponse{}
		if img := f.findImageLocked(ref); img != nil {
			out.Images = append(out.Images, img)
		}
		return out, nil
	}
	return &runtimeapi.ListImagesResponse{Images: sortedValues(f.images)}, nil
}

// RemoveImage removes the image with all its names. An absent image is not an error.
func (f *Fake) RemoveImage(
	ctx context.Context, r *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	if err := f.begin(ctx, "RemoveImage"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if img := f.findImageLocked(r.GetImage().GetImage()); img != nil {
		delete(f.images, img.GetId())
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo reports the sum of the images' sizes.
func (f *Fake) ImageFsInfo(
	ctx context.Context, _ *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	if err := f.beginRead(ctx, "ImageFsInfo"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var used uint64
	for _, img := range f.images {
		used += img.GetSize()
	}
	u := &runtimeapi.FilesystemUsage{
		Timestamp:  f.now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes:  &runtimeapi.UInt64Value{Value: used},
		InodesUsed: &runtimeapi.UInt64Value{Value: uint64(len(f.images))},
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{u},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{u},
	}, nil
}
