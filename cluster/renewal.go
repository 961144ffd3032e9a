// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/cluster/credentials"
	"keelson/cluster/membership"
	"keelson/cluster/version"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/store"
)

// certificates describes the certificates that this process has in use.
func (c *Cluster) certificates() []pki.Info {
	return pki.All(c.keys.Leaves(c.cfg.realNode()), c.otherCertificates)
}

// newKeeper returns the keeper of the certificates that this process has in use (docs/decisions/0183). changed
// publishes new ones, warn is called for those that expire.
func (c *Cluster) newKeeper(changed func(context.Context) error, warn func(pki.Info, string)) *pki.Keeper {
	k := &pki.Keeper{
		Leaves: c.keys.Leaves(c.cfg.realNode()),
		Others: c.otherCertificates,
		Warn:   warn,
		Log:    c.log.With(eventlog.Key, eventlog.Certificates),
	}
	if c.dir != "" { // the clusters of tests have no directory
		k.Dir = c.dir.Sub("pki")
		k.Sources = c.keys.Sources()
		k.Changed = changed
	}
	return k
}

// otherCertificates describes those that the keeper does not renew.
func (c *Cluster) otherCertificates() []pki.Info {
	return append(c.keys.Authorities(), c.cfg.ownersFiles()...)
}

// useChangedKeys lets the server use its keys as they are now, and publishes them: in the store, to nodes, aggregated
// servers and machines that join, and in the kubeconfigs. Everything is written only if it differs.
func (c *Cluster) useChangedKeys(ctx context.Context, made assembled, st store.Store) error {
	if err := c.keys.UseChanged(made.tokens, &c.cfg.API.Tokens); err != nil {
		return err
	}
	keys, err := c.keys.ServerFingerprints(&c.cfg.API.Tokens)
	if err != nil {
		return err
	}
	errs := []error{credentials.KeepFingerprints(ctx, st, true, keys, c.log)}
	for _, obj := range append(c.keys.KubeletClientInfo(), c.keys.AuthenticationInfo()) {
		if own, ok := obj.(kind.Object); ok {
			errs = append(errs, made.server.Ensure(ctx, own))
		}
	}
	signer := inProcess(made.server, authn.ServiceAccountUser(metav1.NamespaceSystem, "bootstrap-signer", "",
		auth.InProcess), "keelson-certificates/"+version.Kubernetes)
	return errors.Join(append(errs,
		membership.RefreshClusterInfo(ctx, signer, c.keys.CA),
		c.keys.WriteKubeconfigs(c.dir, c.URL(), c.cfg.MergedKubeconfig))...)
}

// ownersFiles describes the certificates in files that flags name.
func (c Config) ownersFiles() []pki.Info {
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

// certificates is the role that renews the certificates and warns of those that expire, also by an event about the
// namespace kube-system.
func (s *site) certificates() (run.Func, error) {
	cl := s.connect(user("system:kube-controller-manager"), "keelson-certificates/"+version.Kubernetes)
	events := cl.Events("keelson-certificates", "", s.log.With(eventlog.Key, eventlog.Certificates))
	about := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	keeper := s.server.c.newKeeper(func(ctx context.Context) error {
		return s.server.c.useChangedKeys(ctx, s.server.assembled, s.server.store)
	}, func(_ pki.Info, text string) {
		events.Event(about, corev1.EventTypeWarning, "CertificateExpires", text)
	})
	return run.Together(nil, run.Part{Name: "events", Run: events.Run}, run.Part{Name: "renewal", Run: keeper.Run}), nil
}
