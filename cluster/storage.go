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
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"keelson/auth"
	"keelson/cluster/datadir"
	"keelson/event/eventlog"
	"keelson/lib/connlimit"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/store"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/etcdapi"
)

// EtcdConfig names the etcd that holds the objects in place of the embedded store.
type EtcdConfig struct {
	// Servers are client URLs; none: the embedded store.
	Servers                   []string
	CAFile, CertFile, KeyFile string
	// QuotaBytes bounds what the embedded store holds; 0: by memory and disk (defaultQuota), negative: not at all.
	QuotaBytes int64
}

func (e EtcdConfig) validate() error {
	var errs []error
	secret := e.CAFile != "" || e.CertFile != "" || e.KeyFile != ""
	for _, s := range e.Servers {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "" || u.Path != "" || u.Scheme != "http" && u.Scheme != "https":
			errs = append(errs, fmt.Errorf("etcd server %q is not of the form http://HOST:PORT or https://HOST:PORT",
				s))
		case u.Scheme == "http" && secret:
			errs = append(errs, fmt.Errorf("etcd server %s: certificates need an https URL", s))
		}
	}
	if len(e.Servers) > 0 && e.QuotaBytes != 0 {
		errs = append(errs,
			errors.New("--quota-backend-bytes bounds the embedded store: with --etcd-servers give it to etcd"))
	}
	if len(e.Servers) == 0 && secret {
		errs = append(errs, errors.New("certificates for etcd are given, but no etcd servers"))
	}
	if (e.CertFile == "") != (e.KeyFile == "") {
		errs = append(errs, errors.New("the certificate for etcd and its key belong together: one is missing"))
	}
	return errors.Join(errs...)
}

func (e EtcdConfig) open(ctx context.Context, log *slog.Logger) (*etcd.Store, error) {
	secret, err := etcd.TLS(e.CAFile, e.CertFile, e.KeyFile)
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Options{Servers: e.Servers, TLS: secret, Log: log})
}

// openStore opens the configured store for a server. It returns an error if the directory uses another store, or the
// store another cluster's keys: no part runs yet then.
func openStore(
	ctx context.Context, e EtcdConfig, dir datadir.Dir, own serverKeys, log *slog.Logger, acceptLoss bool,
) (store.Store, error) {
	log = log.With(eventlog.Key, eventlog.Store)
	if len(e.Servers) > 0 {
		st, err := e.open(ctx, log)
		if err != nil {
			return nil, err
		}
		return checked(st, st.Close, func() error { return enterEtcd(ctx, st, e.Servers, dir, own, log) })
	}
	st, err := openQuota(dir, log, acceptLoss, e.quota(dir))
	if err != nil {
		return nil, err
	}
	return checked(st, st.Close, func() error { return enterEmbedded(ctx, st, dir, own, log) })
}

// checked returns st, or closes it if check fails.
func checked(st store.Store, end func() error, check func() error) (store.Store, error) {
	if err := check(); err != nil {
		return nil, errors.Join(err, end())
	}
	return st, nil
}

func enterEtcd(
	ctx context.Context, st *etcd.Store, servers []string, dir datadir.Dir, own serverKeys, log *slog.Logger,
) error {
	id := datadir.EtcdStore(st.Cluster())
	if err := dir.SameStore(servers, id); err != nil {
		return err
	}
	used, err := dir.StoreUsed()
	if err != nil {
		return err
	}
	if err := keepFingerprints(ctx, st, used == id, own, log); err != nil {
		return fmt.Errorf("etcd at %s: %w", strings.Join(servers, ","), err)
	}
	return dir.UseStore(id)
}

func enterEmbedded(ctx context.Context, st store.Store, dir datadir.Dir, own serverKeys, log *slog.Logger) error {
	known := datadir.Exists(dir.Sub(datadir.StoreCreatedFile))
	if err := keepFingerprints(ctx, st, known, own, log); err != nil {
		return fmt.Errorf("store in %s: %w", dir.Sub("store"), err)
	}
	if !known {
		if err := pki.WriteFile(dir.Sub(datadir.StoreCreatedFile), []byte("this directory has an embedded store\n"),
			0o600); err != nil {
			return err
		}
	}
	return dir.UseStore(datadir.EmbeddedStore) // of a directory that has no record yet
}

// openEmbedded opens the store of the data directory, or creates it at the first start. It fails if acknowledged writes
// are missing, unless acceptLoss.
func openEmbedded(dir datadir.Dir, log *slog.Logger, acceptLoss bool) (*embed.Store, error) {
	return openQuota(dir, log, acceptLoss, 0)
}

// openQuota is openEmbedded for a server, which creates objects: quota bounds them, unless it is 0.
func openQuota(dir datadir.Dir, log *slog.Logger, acceptLoss bool, quota int64) (*embed.Store, error) {
	st, err := embed.Open(embed.Options{
		Dir:            dir.Sub("store"),
		Log:            log,
		Quota:          quota,
		MustExist:      datadir.Exists(dir.Sub(datadir.StoreCreatedFile)),
		AcceptDataLoss: acceptLoss,
	})
	var lost *embed.DataLossError
	switch {
	case errors.As(err, &lost) && lost.Unreadable:
		return nil, fmt.Errorf("%w; put the files back, or restore a backup (docs/store.md)", err)
	case errors.As(err, &lost):
		return nil, fmt.Errorf("%w; put the files back, restore a backup, or go on without these writes by "+
			"--accept-data-loss (docs/store.md)", err)
	}
	return st, err
}

// etcdTLS requires a client certificate of the cluster's CA for system:masters: the etcd API may read and write every
// key.
func (k *keys) etcdTLS() *tls.Config {
	conf := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: k.server.Serve,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		NextProtos:     []string{"h2"},
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) == 0 || !slices.Contains(c.PeerCertificates[0].Subject.Organization,
				auth.Masters) {
				return errors.New("the certificate is not one of " + auth.Masters)
			}
			return nil
		},
	}
	outer := conf.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := conf.Clone()
		now.ClientCAs = k.ca.Pool()
		return now, nil
	}
	return outer
}

// etcdHandshake limits the TLS handshake of an etcd client.
const etcdHandshake = 10 * time.Second

// authTracking tells connlimit which connections have authenticated.
type authTracking struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (r authTracking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := r.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		ctx := connlimit.Context(context.Background(), raw)
		// etcdTLS lets nobody else in
		connlimit.Identify(ctx, connlimit.Owner{Name: auth.Masters, Rank: connlimit.Admin})
	}
	return c, info, err
}

// Clone implements credentials.TransportCredentials.
func (r authTracking) Clone() credentials.TransportCredentials {
	return authTracking{r.TransportCredentials.Clone()}
}

// serveEtcd returns the part that serves the etcd API over st.
func (c *Cluster) serveEtcd(st store.Store) run.Func {
	return func(ctx context.Context, ready func()) error {
		server := grpc.NewServer(append(etcdapi.ServerOptions(),
			grpc.Creds(authTracking{credentials.NewTLS(c.keys.etcdTLS())}), grpc.ConnectionTimeout(etcdHandshake))...)
		api := etcdapi.New(st, etcdapi.Options{
			URL: c.EtcdURL(),
			Dir: string(c.dir),
			Log: c.log.With(eventlog.Key, eventlog.Store),
		})
		api.Register(server)
		group, ctx := errgroup.WithContext(ctx)
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		group.Go(func() error { return api.Run(ctx) })
		group.Go(func() error {
			if err := server.Serve(connlimit.New(c.etcd, c.shares.Other)); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve clients of etcd: %w", err)
			}
			return nil
		})
		ready()
		return group.Wait()
	}
}
