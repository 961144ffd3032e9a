// SPDX-License-Identifier: Apache-2.0

// Package etcdapi speaks etcd's v3 API over a store.Store, so that etcdctl and
// whatever else reads etcd can look at, copy and repair a cluster's objects.
// cluster serves it behind certificates; it does no authorization of its own.
//
// What it does: ranges at any revision, watches, puts, deletions of single keys,
// transactions that only read and those of one write under one condition on the
// same key (which is what Kubernetes and key-by-key copies use), compaction,
// status, the member list. Everything else answers Unimplemented and says why.
//
// What differs from etcd: the store keeps a key's latest revision only, so
// create_revision and version are 0, but for an event that created the key; a
// prev_kv has a value and no revision; and keys hold no zero byte.
package etcdapi

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/store"
)

// MaxRequest is the greatest request that is taken.
const MaxRequest = 16 << 20

// memberID is the one member's, and the cluster's, name.
const memberID = 0x6b65656c736f6e // "keelson"

// apiVersion is the version of etcd whose API this is.
const apiVersion = "3.5.0"

// Register adds the services over st to s. Watches end with ctx; url is where clients find the server.
func Register(ctx context.Context, s *grpc.Server, st store.Store, url string) {
	pb.RegisterKVServer(s, &kv{st: st})
	pb.RegisterWatchServer(s, &watch{st: st, done: ctx.Done()})
	pb.RegisterMaintenanceServer(s, &maintenance{st: st})
	pb.RegisterClusterServer(s, &members{st: st, url: url})
}

func header(rev int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: memberID, MemberId: memberID, Revision: rev, RaftTerm: 1}
}

// answer gives an error of the store its meaning for a client of etcd.
func answer(err error) error {
	var sick *store.UnavailableError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.Is(err, store.ErrFuture):
		return rpctypes.ErrGRPCFutureRev
	case errors.As(err, &sick) && sick.Full:
		return rpctypes.ErrGRPCNoSpace
	case errors.As(err, &sick), errors.Is(err, store.ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

func unimplemented(why string) error { return status.Error(codes.Unimplemented, "keelson: "+why) }

func toEtcd(kv store.KV) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(kv.Key), Value: kv.Value, ModRevision: kv.Revision}
}

type maintenance struct {
	pb.UnimplementedMaintenanceServer
	st store.Store
}

// Status is part of the Maintenance service. The sizes are not known.
func (m *maintenance) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	rev, err := m.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	r := &pb.StatusResponse{
		Header: header(rev), Version: apiVersion, Leader: memberID, RaftTerm: 1,
		RaftIndex: uint64(rev), RaftAppliedIndex: uint64(rev),
	}
	if err := m.st.Health(ctx); err != nil {
		r.Errors = append(r.Errors, err.Error())
	}
	return r, nil
}

// Alarm is part of the Maintenance service: it tells that the disk is full, and takes no orders.
func (m *maintenance) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action != pb.AlarmRequest_GET {
		return nil, unimplemented("alarms follow the disk, they cannot be set or disarmed")
	}
	rev, err := m.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	out := &pb.AlarmResponse{Header: header(rev)}
	if sick := (*store.UnavailableError)(nil); errors.As(m.st.Health(ctx), &sick) && sick.Full {
		out.Alarms = append(out.Alarms, &pb.AlarmMember{MemberID: memberID, Alarm: pb.AlarmType_NOSPACE})
	}
	return out, nil
}

// Snapshot is part of the Maintenance service.
func (m *maintenance) Snapshot(*pb.SnapshotRequest, grpc.ServerStreamingServer[pb.SnapshotResponse]) error {
	return unimplemented("the store has no bbolt file to hand out: `keelson backup FILE` writes a backup, `keelson migrate --to=etcd` fills an etcd")
}

type members struct {
	pb.UnimplementedClusterServer
	st  store.Store
	url string
}

// MemberList is part of the Cluster service.
func (m *members) MemberList(ctx context.Context, _ *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	rev, err := m.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	return &pb.MemberListResponse{
		Header:  header(rev),
		Members: []*pb.Member{{ID: memberID, Name: "keelson", ClientURLs: []string{m.url}}},
	}, nil
}
