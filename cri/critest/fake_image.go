// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images are the images of the runtime.
type images struct {
	runtimeapi.UnimplementedImageServiceServer

	script *script

	mu   sync.Mutex
	byID map[string]*runtimeapi.Image
}

func (i *images) addLocked(ref string, size uint64) *runtimeapi.Image {
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
	i.byID[img.GetId()] = img
	return img
}

// tagged adds :latest to a reference that has neither tag nor digest.
func tagged(ref string) string {
	if strings.Contains(ref, "@") || strings.LastIndexByte(ref, ':') > strings.LastIndexByte(ref, '/') {
		return ref
	}
	return ref + ":latest"
}

// find returns the image with an id or name; nil: there is none.
func (i *images) find(ref string) *runtimeapi.Image {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.findLocked(ref)
}

func (i *images) findLocked(ref string) *runtimeapi.Image {
	if img := i.byID[ref]; img != nil {
		return img
	}
	for _, img := range i.byID {
		if slices.Contains(img.GetRepoTags(), tagged(ref)) || slices.Contains(img.GetRepoDigests(), ref) {
			return img
		}
	}
	return nil
}

// PullImage adds any image, unless FailNext is set.
func (i *images) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if err := i.script.begin(ctx, "PullImage"); err != nil {
		return nil, err
	}
	ref := r.GetImage().GetImage()
	if ref == "" {
		return nil, status.Error(codes.InvalidArgument, "pull image: no image named")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	img := i.findLocked(ref)
	if img == nil {
		img = i.addLocked(ref, 1<<20)
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.GetId()}, nil
}

// ImageStatus returns an empty response for an absent image, as CRI requires.
func (i *images) ImageStatus(
	ctx context.Context, r *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	if err := i.script.beginRead(ctx, "ImageStatus"); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: i.findLocked(r.GetImage().GetImage())}, nil
}

// ListImages lists all images, or the one the filter names.
func (i *images) ListImages(
	ctx context.Context, r *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	if err := i.script.beginRead(ctx, "ListImages"); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		out := &runtimeapi.ListImagesResponse{}
		if img := i.findLocked(ref); img != nil {
			out.Images = append(out.Images, img)
		}
		return out, nil
	}
	return &runtimeapi.ListImagesResponse{Images: sortedValues(i.byID)}, nil
}

// RemoveImage removes the image with all its names. An absent image is not an error.
func (i *images) RemoveImage(
	ctx context.Context, r *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	if err := i.script.begin(ctx, "RemoveImage"); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if img := i.findLocked(r.GetImage().GetImage()); img != nil {
		delete(i.byID, img.GetId())
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo reports the sum of the images' sizes.
func (i *images) ImageFsInfo(
	ctx context.Context, _ *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	if err := i.script.beginRead(ctx, "ImageFsInfo"); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var used uint64
	for _, img := range i.byID {
		used += img.GetSize()
	}
	u := &runtimeapi.FilesystemUsage{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes:  &runtimeapi.UInt64Value{Value: used},
		InodesUsed: &runtimeapi.UInt64Value{Value: uint64(len(i.byID))},
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{u},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{u},
	}, nil
}

// AddImage adds an image.
func (i *images) AddImage(ref string, size uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.addLocked(ref, size)
}
