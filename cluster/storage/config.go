// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"keelson/lib/option"
	"keelson/store/etcd"
)

// Rows are the options of the etcd client.
func (e *Config) Rows() []option.Row {
	return option.In("Etcd", []option.Row{
		option.New(&e.Servers, "etcd-servers", nil,
			"keep the objects in the etcd at `URL`,... in place of the embedded store"),
		option.New(&e.CAFile, "etcd-cafile", "", "PEM `FILE` with the certificate authority of etcd's servers"),
		option.New(&e.CertFile, "etcd-certfile", "", "certificate to show to etcd, in `FILE`"),
		option.New(&e.KeyFile, "etcd-keyfile", "", "key of --etcd-certfile, in `FILE`"),
	}...)
}

// AcceptDataLossRow is the option of commands that open the embedded store.
func AcceptDataLossRow(accept *bool) option.Row {
	return option.New(accept, "accept-data-loss", false,
		"go on if the embedded store lacks writes that it had acknowledged")
}

// Config names the etcd that holds the objects in place of the embedded store.
type Config struct {
	// Servers are client URLs; none: the embedded store.
	Servers                   []string
	CAFile, CertFile, KeyFile string
	// QuotaBytes bounds what the embedded store holds; 0: by memory and disk (defaultQuota), negative: not at all.
	QuotaBytes int64
}

// Validate returns all errors of the settings.
func (e Config) Validate() error {
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

// Open connects to etcd.
func (e Config) Open(ctx context.Context, log *slog.Logger) (*etcd.Store, error) {
	secret, err := etcd.TLS(e.CAFile, e.CertFile, e.KeyFile)
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Options{Servers: e.Servers, TLS: secret, Log: log})
}
