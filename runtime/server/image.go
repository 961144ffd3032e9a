// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/mark"
	"keelson/runtime/image"
)

// PullImage makes an image present. Its progress is told by marks of the pod it is for.
func (s *Server) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := r.GetImage().GetImage()
	if ref == "" {
		return nil, badRequest("pull image: no image named")
	}
	var auth *image.Auth
	if a := r.GetAuth(); a != nil {
		auth = &image.Auth{
			Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(), ServerAddress: a.GetServerAddress(),
			IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken(),
		}
	}
	img, err := s.cfg.Images.Pull(ctx, ref, auth, s.progress(r))
	if err != nil {
		return nil, codedErr(wayOut(err))
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
}

// wayOut adds what helps where no registry can be reached, as on a machine without a way out.
func wayOut(err error) error {
	if _, ok := errors.AsType[*net.OpError](err); !ok {
		if _, ok := errors.AsType[*net.DNSError](err); !ok {
			return err
		}
	}
	return fmt.Errorf("%w (its registry cannot be reached: import the image with `keelson image import FILE`, or name another place with --image-mirror HOST=URL)", err)
}

// progressStep is the least time between two marks of one pull.
const progressStep = 500 * time.Millisecond

// progress returns what tells of a pull's progress; nil when the pull is for no pod.
func (s *Server) progress(r *runtimeapi.PullImageRequest) image.Progress {
	pod := r.GetSandboxConfig().GetMetadata()
	if pod.GetUid() == "" {
		return nil
	}
	begin := time.Now()
	var last time.Time
	return func(done, total int64) {
		now := time.Now()
		if done < total && now.Sub(last) < progressStep {
			return
		}
		last = now
		s.cfg.Marks.Emit(mark.Mark{
			Step: mark.StepImage, Component: "runtime", At: begin, Took: now.Sub(begin), Subject: subject(pod),
			Detail: &mark.Image{Image: r.GetImage().GetImage(), Bytes: done, Total: total},
		})
	}
}

// ListImages lists images, or the one that the filter names.
func (s *Server) ListImages(_ context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	out := &runtimeapi.ListImagesResponse{}
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		if img, ok := s.cfg.Images.Get(ref); ok {
			out.Images = append(out.Images, criImage(img))
		}
		return out, nil
	}
	for _, img := range s.cfg.Images.List() {
		out.Images = append(out.Images, criImage(img))
	}
	return out, nil
}

// ImageStatus answers with nothing for an absent image.
func (s *Server) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	out := &runtimeapi.ImageStatusResponse{}
	if img, ok := s.cfg.Images.Get(r.GetImage().GetImage()); ok {
		out.Image = criImage(img)
		if r.GetVerbose() {
			out.Info = map[string]string{"config": strings.Join(append(img.Config.Entrypoint, img.Config.Cmd...), " ")}
		}
	}
	return out, nil
}

func criImage(img image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id: img.ID, RepoTags: img.RepoTags, RepoDigests: img.RepoDigests, Size: uint64(max(0, img.Size)), Pinned: img.Pinned,
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

// RemoveImage removes an image by any of its names, with all of them. An absent one is removed already; the built-in one stays.
func (s *Server) RemoveImage(ctx context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	ref := r.GetImage().GetImage()
	img, ok := s.cfg.Images.Get(ref)
	if !ok {
		return &runtimeapi.RemoveImageResponse{}, nil
	}
	err := s.cfg.Images.Remove(ctx, img.ID)
	if err != nil && !errors.Is(err, image.ErrNotFound) {
		return nil, act(err, "remove image %s", ref)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo tells what images and containers take up.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	u, err := s.cfg.Images.FsInfo()
	if err != nil {
		return nil, act(err, "image file system")
	}
	now := time.Now()
	fs := &runtimeapi.FilesystemUsage{
		Timestamp: now.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: u.Dir},
		UsedBytes: value(uint64(max(0, u.Bytes))), InodesUsed: value(uint64(max(0, u.Inodes))),
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems: []*runtimeapi.FilesystemUsage{fs}, ContainerFilesystems: []*runtimeapi.FilesystemUsage{fs},
	}, nil
}
