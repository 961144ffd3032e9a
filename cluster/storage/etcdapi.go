// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

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
	// URL is the address that clients get, Dir the data directory that they see.
	URL, Dir string
	Log      *slog.Logger
}

// Serve returns the part that serves the etcd API over st.
func (e EtcdAPI) Serve(st store.Store) run.Func {
	return func(ctx context.Context, ready func()) error {
		server := grpc.NewServer(append(etcdapi.ServerOptions(),
			grpc.Creds(authTracking{credentials.NewTLS(e.TLS)}), grpc.ConnectionTimeout(etcdHandshake))...)
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
