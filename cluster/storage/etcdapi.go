// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"keelson/auth"
	"keelson/lib/connlimit"
	"keelson/lib/run"
	"keelson/store"
	"keelson/store/etcdapi"
)

// etcdHandshake limits the TLS handshake of an etcd client.
const etcdHandshake = 10 * time.Second

// authTracking reports to connlimit which connections have authenticated.
type authTracking struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (r authTracking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := r.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		ctx := connlimit.Context(context.Background(), raw)
		// EtcdAPI.TLS admits no other clients
		connlimit.Identify(ctx, connlimit.Owner{Name: auth.Masters, Rank: connlimit.Admin})
	}
	return c, info, err
}

// Clone implements credentials.TransportCredentials.
func (r authTracking) Clone() credentials.TransportCredentials {
	return authTracking{r.TransportCredentials.Clone()}
}

// EtcdAPI is where and how the etcd API is served.
type EtcdAPI struct {
	Listener net.Listener
	// Share is how many connections it may have.
	Share int
	// TLS must admit only members of system:masters.
	TLS *tls.Config
	// Admit verifies the certificates of a connection for each call.
	Admit func(shown []*x509.Certificate) error
	// URL is the address that clients get, Dir the data directory that they see.
	URL, Dir string
	Log      *slog.Logger
}

// admit rejects a call on a connection whose certificate is no longer good.
func (e EtcdAPI) admit(ctx context.Context) error {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "the connection is unknown")
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return status.Error(codes.Unauthenticated, "the connection has no client certificate")
	}
	if err := e.Admit(info.State.PeerCertificates); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}

func (e EtcdAPI) admitCall(
	ctx context.Context, rq any, _ *grpc.UnaryServerInfo, call grpc.UnaryHandler,
) (any, error) {
	if err := e.admit(ctx); err != nil {
		return nil, err
	}
	return call(ctx, rq)
}

func (e EtcdAPI) admitStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, call grpc.StreamHandler) error {
	if err := e.admit(stream.Context()); err != nil {
		return err
	}
	return call(srv, stream)
}

// Serve returns the part that serves the etcd API over st.
func (e EtcdAPI) Serve(st store.Store) run.Func {
	return func(ctx context.Context, ready func()) error {
		server := grpc.NewServer(append(etcdapi.ServerOptions(),
			grpc.Creds(authTracking{credentials.NewTLS(e.TLS)}), grpc.ConnectionTimeout(etcdHandshake),
			grpc.UnaryInterceptor(e.admitCall), grpc.StreamInterceptor(e.admitStream))...)
		api := etcdapi.New(st, etcdapi.Options{URL: e.URL, Dir: e.Dir, Log: e.Log})
		api.Register(server)
		group, ctx := errgroup.WithContext(ctx)
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		group.Go(func() error { return api.Run(ctx) })
		group.Go(func() error {
			if err := server.Serve(connlimit.New(e.Listener, e.Share)); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve clients of etcd: %w", err)
			}
			return nil
		})
		ready()
		return group.Wait()
	}
}
