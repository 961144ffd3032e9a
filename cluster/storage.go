// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"keelson/auth"
	"keelson/lib/connlimit"
	"keelson/lib/deeds"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/store"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/etcdapi"
)

// EtcdConfig says which etcd holds the objects in place of the embedded store.
type EtcdConfig struct {
	// Servers are client URLs; none: the embedded store.
	Servers                   []string
	CAFile, CertFile, KeyFile string
}

func (e EtcdConfig) validate() error {
	var errs []error
	secret := e.CAFile != "" || e.CertFile != "" || e.KeyFile != ""
	for _, s := range e.Servers {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "" || u.Path != "" || u.Scheme != "http" && u.Scheme != "https":
			errs = append(errs, fmt.Errorf("etcd server %q is not of the form http://HOST:PORT or https://HOST:PORT", s))
		case u.Scheme == "http" && secret:
			errs = append(errs, fmt.Errorf("etcd server %s: certificates need an https URL", s))
		}
	}
	if len(e.Servers) == 0 && secret {
		errs = append(errs, errors.New("certificates for etcd are given, but no etcd servers"))
	}
	if (e.CertFile == "") != (e.KeyFile == "") {
		errs = append(errs, errors.New("the certificate for etcd and its key belong together: one is missing"))
	}
	return errors.Join(errs...)
}

func (e EtcdConfig) open(ctx context.Context, log *slog.Logger) (store.Store, error) {
	secret, err := etcd.TLS(e.CAFile, e.CertFile, e.KeyFile)
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Options{Servers: e.Servers, TLS: secret, Log: log})
}

// openStore opens the store that the configuration asks for.
func openStore(ctx context.Context, e EtcdConfig, dir DataDir, log *slog.Logger, acceptLoss bool) (store.Store, error) {
	log = log.With(deeds.Key, deeds.Store)
	if len(e.Servers) > 0 {
		return e.open(ctx, log)
	}
	return openEmbedded(dir, log, acceptLoss)
}

// storeNote is there once the directory has held an embedded store: one that is gone since is not made anew silently.
const storeNote = "store-created"

// openEmbedded opens the store of the data directory, or makes it if there never was one. It refuses to go on without writes that were
// acknowledged unless acceptLoss.
func openEmbedded(dir DataDir, log *slog.Logger, acceptLoss bool) (*embed.Store, error) {
	noted := exists(dir.Sub(storeNote))
	st, err := embed.Open(embed.Options{Dir: dir.Sub("store"), Log: log, MustExist: noted, AcceptDataLoss: acceptLoss})
	var lost *embed.DataLossError
	switch {
	case errors.As(err, &lost) && lost.Unreadable:
		return nil, fmt.Errorf("%w; put the files back, or restore a backup (docs/store.md)", err)
	case errors.As(err, &lost):
		return nil, fmt.Errorf("%w; put the files back, restore a backup, or go on without these writes by --accept-data-loss (docs/store.md)", err)
	case err != nil:
		return nil, err
	}
	if !noted {
		if err := errors.Join(pki.WriteFile(dir.Sub(storeNote), []byte("this directory has an embedded store\n"), 0o600), syncDir(string(dir))); err != nil {
			return nil, errors.Join(err, st.Close())
		}
	}
	return st, nil
}

// etcdTLS lets in who shows a certificate of ours that names system:masters: every key is theirs to read and write.
func (k *keys) etcdTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{k.server},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    k.ca.Pool(),
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) == 0 || !slices.Contains(c.PeerCertificates[0].Subject.Organization, auth.Masters) {
				return errors.New("the certificate is not one of " + auth.Masters)
			}
			return nil
		},
	}
}

// etcdHandshake is how long a client of etcd's API may take for its handshake.
const etcdHandshake = 10 * time.Second

// reaching tells connlimit of clients that have shown their certificates.
type reaching struct {
	credentials.TransportCredentials
}

// ServerHandshake is the handshake of one connection.
func (r reaching) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := r.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		connlimit.Reach(connlimit.Context(context.Background(), raw), connlimit.Authenticated)
	}
	return c, info, err
}

// Clone is for grpc.
func (r reaching) Clone() credentials.TransportCredentials {
	return reaching{r.TransportCredentials.Clone()}
}

// serveEtcd is the part that speaks etcd's API over st.
func (c *Cluster) serveEtcd(st store.Store) run.Func {
	return func(ctx context.Context, ready func()) error {
		s := grpc.NewServer(append(etcdapi.ServerOptions(), grpc.Creds(reaching{credentials.NewTLS(c.keys.etcdTLS())}), grpc.ConnectionTimeout(etcdHandshake))...)
		api := etcdapi.New(st, etcdapi.Options{URL: c.EtcdURL(), Dir: string(c.dir), Log: c.log.With(deeds.Key, deeds.Store)})
		api.Register(s)
		g, ctx := errgroup.WithContext(ctx)
		stop := context.AfterFunc(ctx, s.Stop)
		defer stop()
		g.Go(func() error { return api.Run(ctx) })
		g.Go(func() error {
			if err := s.Serve(connlimit.New(c.etcd, c.shares.Other)); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve clients of etcd: %w", err)
			}
			return nil
		})
		ready()
		return g.Wait()
	}
}
