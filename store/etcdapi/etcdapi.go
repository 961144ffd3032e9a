// SPDX-License-Identifier: Apache-2.0

// Package etcdapi speaks etcd's v3 API over a store.Store, so that etcdctl and
// whatever else reads etcd can look at, copy and repair a cluster's objects, and
// a stock Kubernetes API server can keep its objects here. cluster serves it
// behind certificates; it does no authorization of its own.
//
// What it does: ranges at any revision, also as streams, watches, puts, deletions of single keys,
// transactions of one write (and any reads) under conditions on the key that is
// written, compaction, leases, snapshots, status, hashes, the member list.
// Everything else answers Unimplemented and says why.
//
// What differs from etcd: the prev_kv of an event has no mod_revision; create_revision
// and version are 0 where the store does not know them; keys hold no zero byte;
// granting a lease and using it takes revisions, for leases are keys under
// "keelson/leases/".
package etcdapi

import (
	"context"
	"errors"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"keelson/store"
)

const (
	// maxRequest is the greatest request that is taken, in bytes.
	maxRequest = 16 << 20
	// handshake is how long a client has until its connection stands.
	handshake = 30 * time.Second
	// calm is how often a client may ask whether the server is there, as in etcd: API servers ask twice a minute.
	calm = 5 * time.Second
)

// ServerOptions are how a gRPC server for this API takes connections, but for their credentials.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest), grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: calm}),
	}
}

// memberID is the one member's, and the cluster's, name.
const memberID = 0x6b65656c736f6e // "keelson"

// Version is the version of etcd whose API this is. From 3.5.13 on API servers rely on the order of progress and
// events.
const Version = "3.5.21"

// Options say how the store is served. Only URL is required.
type Options struct {
	// URL is where clients find the server.
	URL string
	// Dir is where a snapshot is put together before it is sent (empty: the system's place for temporary files).
	Dir string
	Log *slog.Logger
	// ProgressEvery is how often a watch that asks for progress learns of it while nothing happens (default 5 s).
	ProgressEvery time.Duration
}

// Server is etcd's API over one store. New starts nothing: Run does.
type Server struct {
	st     store.Store
	o      Options
	leases *leases
	done   chan struct{} // closed when Run ends
}

// New makes a server over st.
func New(st store.Store, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ProgressEvery == 0 {
		o.ProgressEvery = 5 * time.Second
	}
	s := &Server{st: st, o: o, done: make(chan struct{})}
	s.leases = newLeases(s)
	return s
}

// Register adds the services to g.
func (s *Server) Register(g *grpc.Server) {
	pb.RegisterKVServer(g, &kv{s: s, st: s.st})
	pb.RegisterWatchServer(g, &watch{s: s})
	pb.RegisterLeaseServer(g, &leaseServer{l: s.leases})
	pb.RegisterMaintenanceServer(g, &maintenance{s: s, st: s.st})
	pb.RegisterClusterServer(g, &members{st: s.st, url: s.o.URL})
}

// Run lets leases expire until ctx ends. Watches end with it.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.done)
	return s.leases.run(ctx)
}

func header(rev int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{
		ClusterId: memberID,
		MemberId:  memberID,
		Revision:  rev,
		RaftTerm:  1,
	}
}

// answer gives an error of the store its meaning for a client of etcd.
func answer(err error) error {
	var fault *store.UnavailableError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.Is(err, store.ErrFuture):
		return rpctypes.ErrGRPCFutureRev
	case errors.Is(err, store.ErrNoSpace), errors.As(err, &fault) && fault.Full:
		return rpctypes.ErrGRPCNoSpace
	case errors.As(err, &fault), errors.Is(err, store.ErrClosed):
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
