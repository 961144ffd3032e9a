// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"keelson/store"
	"keelson/store/etcdfile"
)

type maintenance struct {
	pb.UnimplementedMaintenanceServer
	s  *Server
	st store.Store
}

// Status is part of the Maintenance service. Where the store does not say its size, Errors say why.
func (m *maintenance) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	rev, err := m.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	statusResponse := &pb.StatusResponse{
		Header:           header(rev),
		Version:          Version,
		Leader:           memberID,
		RaftTerm:         1,
		RaftIndex:        uint64(rev),
		RaftAppliedIndex: uint64(rev),
	}
	if statusResponse.DbSize, err = m.st.Size(ctx); err != nil {
		statusResponse.Errors = append(statusResponse.Errors, err.Error())
	}
	statusResponse.DbSizeInUse = statusResponse.DbSize
	if err := m.st.Health(ctx); err != nil {
		statusResponse.Errors = append(statusResponse.Errors, err.Error())
	}
	return statusResponse, nil
}

// Alarm is part of the Maintenance service: it reports that the disk is full, and takes no orders.
func (m *maintenance) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action != pb.AlarmRequest_GET {
		return nil, unimplemented("alarms follow the disk, they cannot be set or disarmed")
	}
	rev, err := m.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	out := &pb.AlarmResponse{Header: header(rev)}
	if fault := (*store.UnavailableError)(nil); errors.As(m.st.Health(ctx), &fault) && fault.Full {
		out.Alarms = append(out.Alarms, &pb.AlarmMember{MemberID: memberID, Alarm: pb.AlarmType_NOSPACE})
	}
	return out, nil
}

// everything is the span of all keys.
var everything = span{"", "\x00"}

// hash sums all keys as of revision rev (0: now), and returns the revision. It is the same for stores with the same
// content at the same revisions; etcd's own sums are made of its history and differ.
func (m *maintenance) hash(ctx context.Context, rev int64) (uint32, int64, error) {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	at, err := scan(ctx, m.st, everything, rev, func(kv store.KV) bool {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(kv.Revision))
		_, _ = sum.Write(n[:])
		_, _ = sum.Write([]byte(kv.Key))
		_, _ = sum.Write([]byte{0})
		_, _ = sum.Write(kv.Value)
		return true
	})
	return sum.Sum32(), at, answer(err)
}

// Hash is part of the Maintenance service.
func (m *maintenance) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	sum, rev, err := m.hash(ctx, 0)
	if err != nil {
		return nil, err
	}
	return &pb.HashResponse{Header: header(rev), Hash: sum}, nil
}

// HashKV is part of the Maintenance service.
func (m *maintenance) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	sum, rev, err := m.hash(ctx, r.Revision)
	if err != nil {
		return nil, err
	}
	latest, err := m.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	return &pb.HashKVResponse{Header: header(latest), Hash: sum, HashRevision: rev}, nil
}

// Snapshot is part of the Maintenance service: a file as an etcd of its own would have it, of all keys as of one
// revision, and then its checksum, for which etcdctl looks.
func (m *maintenance) Snapshot(_ *pb.SnapshotRequest, g grpc.ServerStreamingServer[pb.SnapshotResponse]) error {
	ctx := g.Context()
	file, rev, size, err := etcdfile.Make(m.s.o.Dir, func(put func(store.KV) error) (int64, error) {
		var failed error
		rev, err := scan(ctx, m.st, everything, 0, func(kv store.KV) bool {
			failed = put(kv)
			return failed == nil
		})
		return rev, errors.Join(err, failed)
	})
	if err != nil {
		return answer(fmt.Errorf("make a snapshot: %w", err))
	}
	defer func() { _ = file.Close() }() // it has no name any more
	sum := sha256.New()
	buf := make([]byte, 64<<10)
	for left := size; left > 0; {
		n, err := io.ReadFull(file, buf[:min(left, int64(len(buf)))])
		if err != nil {
			return answer(fmt.Errorf("read a snapshot: %w", err))
		}
		left -= int64(n)
		_, _ = sum.Write(buf[:n])
		if err := g.Send(&pb.SnapshotResponse{
			Header: header(rev),
			Blob:   buf[:n],
			RemainingBytes: uint64(left) +
				sha256.Size,
		}); err != nil {
			return err
		}
	}
	return g.Send(&pb.SnapshotResponse{Header: header(rev), Blob: sum.Sum(nil)})
}

// Defragment is part of the Maintenance service.
func (m *maintenance) Defragment(context.Context, *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	return nil, unimplemented("the store gives space back by itself")
}

// MoveLeader is part of the Maintenance service.
func (m *maintenance) MoveLeader(context.Context, *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	return nil, unimplemented("there is one member only")
}

// Downgrade is part of the Maintenance service.
func (m *maintenance) Downgrade(context.Context, *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, unimplemented("the version is not etcd's own")
}
