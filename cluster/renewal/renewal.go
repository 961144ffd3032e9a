// SPDX-License-Identifier: Apache-2.0

// Package renewal keeps the certificates of an API server's process valid while it runs: it renews them, publishes
// changed keys, and warns of those that others must renew (docs/decisions/0183). Package credentials has the keys, and
// package pki the clock; this one connects them with the server.
package renewal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/apiserver"
	"keelson/apiserver/options"
	"keelson/auth/authn"
	"keelson/client"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/membership"
	"keelson/cluster/storage"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/store"
)

// Certificates are those that a server's process has in use.
type Certificates struct {
	Keys *credentials.Keys
	// Node says that the process has a node, too.
	Node bool
	// API and Etcd name files with certificates of the administrator's.
	API  *options.Options
	Etcd *storage.Config
}

// List describes all of them.
func (c Certificates) List() []pki.Info { return pki.All(c.Keys.Leaves(c.Node), c.others) }

// others are those that are not renewed here.
func (c Certificates) others() []pki.Info { return append(c.Keys.Authorities(), c.files()...) }

// files describes the certificates in files that flags name.
func (c Certificates) files() []pki.Info {
	var out []pki.Info
	add := func(name, path string) {
		if path != "" {
			out = append(out, pki.DescribeFile(name, path, pki.ByOwner)...)
		}
	}
	authentication := c.API.Authentication
	add("tls-cert-file", c.API.Serving.CertFile)
	for i, path := range c.API.Serving.SNIFiles() {
		add(fmt.Sprintf("tls-sni-cert-key-%d", i+1), path)
	}
	add("client-ca-file", authentication.ClientCAFile)
	add("requestheader-client-ca-file", authentication.RequestHeader.CAFile)
	add("oidc-ca-file", authentication.OIDC.CAFile)
	add("etcd-cafile", c.Etcd.CAFile)
	add("etcd-certfile", c.Etcd.CertFile)
	return out
}

// Config is what uses the certificates and shows them to others.
type Config struct {
	Certificates
	Dir datadir.Dir
	// URL is that of the server; MergedKubeconfig is a kubeconfig with a copy of the administrator's certificate, or
	// empty.
	URL, MergedKubeconfig string
	Server                *apiserver.Server
	Store                 store.Store
	Tokens                *authn.Tokens
	// Signer may write cluster-info, Events events.
	Signer, Events *client.Client
	Log            *slog.Logger
}

// Run renews the certificates until ctx ends, and warns of those that expire, also by an event about the namespace
// kube-system.
func (c Config) Run(ctx context.Context, ready func()) error {
	events := c.Events.Events("keelson-certificates", "", c.Log)
	about := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	keeper := &pki.Keeper{
		Leaves: c.Keys.Leaves(c.Node),
		Others: c.others,
		Warn: func(_ pki.Info, text string) {
			events.Event(about, corev1.EventTypeWarning, "CertificateExpires", text)
		},
		Log:     c.Log,
		Dir:     c.Dir.Sub("pki"),
		Sources: c.Keys.Sources(),
		Changed: c.publish,
	}
	return run.Together(nil, run.Part{Name: "events", Run: events.Run}, run.Part{
		Name: "renewal",
		Run:  keeper.Run,
	})(ctx, ready)
}

// publish lets the server use its keys as they are now, and publishes them: in the store, to nodes, aggregated servers
// and machines that join, and in the kubeconfigs. Everything is written only if it differs.
func (c Config) publish(ctx context.Context) error {
	if err := c.Keys.UseChanged(c.Tokens, &c.API.Tokens); err != nil {
		return err
	}
	fingerprints, err := c.Keys.ServerFingerprints(&c.API.Tokens)
	if err != nil {
		return err
	}
	// one that fails does not keep the others from what can be published
	errs := []error{credentials.KeepFingerprints(ctx, c.Store, true, fingerprints, c.Log)}
	for _, obj := range append(c.Keys.KubeletClientInfo(), c.Keys.AuthenticationInfo()) {
		if own, ok := obj.(kind.Object); ok {
			errs = append(errs, c.Server.Ensure(ctx, own))
		}
	}
	return errors.Join(append(errs,
		membership.RefreshClusterInfo(ctx, c.Signer, c.Keys.CA),
		c.Keys.WriteKubeconfigs(c.Dir, c.URL, c.MergedKubeconfig))...)
}
