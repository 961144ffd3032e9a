// SPDX-License-Identifier: Apache-2.0

package csitest

import (
	"context"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeStageVolume binds a volume to the staging path.
func (d *Driver) NodeStageVolume(
	ctx context.Context, r *csiapi.NodeStageVolumeRequest,
) (*csiapi.NodeStageVolumeResponse, error) {
	if err := d.record(ctx, "NodeStageVolume", r.GetVolumeId(), r); err != nil {
		return nil, err
	}
	src, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	dst, err := d.real(r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	return &csiapi.NodeStageVolumeResponse{}, d.bind(src, dst, false)
}

// NodeUnstageVolume undoes NodeStageVolume.
func (d *Driver) NodeUnstageVolume(
	ctx context.Context, r *csiapi.NodeUnstageVolumeRequest,
) (*csiapi.NodeUnstageVolumeResponse, error) {
	if err := d.record(ctx, "NodeUnstageVolume", r.GetVolumeId(), r); err != nil {
		return nil, err
	}
	dst, err := d.real(r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	return &csiapi.NodeUnstageVolumeResponse{}, unbind(dst)
}

// NodePublishVolume binds what is staged, or the volume, to the pod's path.
func (d *Driver) NodePublishVolume(
	ctx context.Context, request *csiapi.NodePublishVolumeRequest,
) (*csiapi.NodePublishVolumeResponse, error) {
	if err := d.record(ctx, "NodePublishVolume", request.GetVolumeId(), request); err != nil {
		return nil, err
	}
	src, err := d.volume(request.GetVolumeId())
	if d.can(csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) &&
		request.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" {
		if src, err = d.real(request.GetStagingTargetPath()); err == nil && d.Mounts && !mounted(src) {
			err = status.Errorf(codes.FailedPrecondition, "%s is not staged", request.GetVolumeId())
		}
	}
	if err != nil {
		return nil, err
	}
	dst, err := d.real(request.GetTargetPath())
	if err != nil {
		return nil, err
	}
	return &csiapi.NodePublishVolumeResponse{}, d.bind(src, dst, request.GetReadonly())
}

// NodeUnpublishVolume undoes NodePublishVolume.
func (d *Driver) NodeUnpublishVolume(
	ctx context.Context, r *csiapi.NodeUnpublishVolumeRequest,
) (*csiapi.NodeUnpublishVolumeResponse, error) {
	if err := d.record(ctx, "NodeUnpublishVolume", r.GetVolumeId(), r); err != nil {
		return nil, err
	}
	dst, err := d.real(r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	return &csiapi.NodeUnpublishVolumeResponse{}, unbind(dst)
}

// NodeExpandVolume changes nothing: a directory has no size.
func (d *Driver) NodeExpandVolume(
	ctx context.Context, r *csiapi.NodeExpandVolumeRequest,
) (*csiapi.NodeExpandVolumeResponse, error) {
	return &csiapi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()},
		d.record(ctx, "NodeExpandVolume", r.GetVolumeId(), r)
}

// NodeGetVolumeStats says that a volume has 1000 bytes, of which 400 are used.
func (d *Driver) NodeGetVolumeStats(
	ctx context.Context, request *csiapi.NodeGetVolumeStatsRequest,
) (*csiapi.NodeGetVolumeStatsResponse, error) {
	return &csiapi.NodeGetVolumeStatsResponse{Usage: []*csiapi.VolumeUsage{
		{
			Unit:      csiapi.VolumeUsage_BYTES,
			Total:     1000,
			Available: 600,
			Used:      400,
		},
		{
			Unit:      csiapi.VolumeUsage_INODES,
			Total:     100,
			Available: 97,
			Used:      3,
		},
	}}, d.record(ctx, "NodeGetVolumeStats", request.GetVolumeId(), request)
}
