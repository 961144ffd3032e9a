// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/client/servers"
	"keelson/lib/linux"
	"keelson/lib/run"
)

// followKubeconfig returns a client configuration that shows the client certificate in the kubeconfig at path, and run,
// which takes over another one when the file changes: the API server writes it again when it renews the certificate.
// Other credentials, and files that the kubeconfig names, are the client library's; run is nil then.
func followKubeconfig(
	path string, all *servers.Servers, log *slog.Logger,
) (to *rest.Config, run run.Func, err error) {
	of, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if len(of.CertData) == 0 {
		to, err = all.REST(of)
		return to, nil, err
	}
	var current atomic.Pointer[tls.Certificate]
	read := func(c *rest.Config) error {
		pair, err := tls.X509KeyPair(c.CertData, c.KeyData)
		if err != nil {
			return fmt.Errorf("client certificate of kubeconfig %s: %w", path, err)
		}
		current.Store(&pair)
		return nil
	}
	if err := read(of); err != nil {
		return nil, nil, err
	}
	to = rest.CopyConfig(of)
	conf, err := rest.TLSConfigFor(rest.AnonymousClientConfig(of))
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if conf == nil { // it names no CA: those of the machine verify the server
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return current.Load(), nil
	}
	to.TLSClientConfig = rest.TLSClientConfig{}
	conns := all.Transport(conf)
	to.Transport = conns
	last := of.CertData
	changed := func() {
		next, err := clientcmd.BuildConfigFromFlags("", path)
		switch {
		case err != nil:
			log.Warn("read the kubeconfig again, the previous certificate stays in use", "err", err)
			return
		case string(next.CertData) == string(last):
			return
		}
		if err := read(next); err != nil {
			log.Warn("read the kubeconfig again, the previous certificate stays in use", "err", err)
			return
		}
		last = next.CertData
		log.Info("client certificate renewed", "kubeconfig", path)
		conns.CloseAll() // the connections made from now on show the new one
	}
	return to, func(ctx context.Context, ready func()) error {
		ready()
		return linux.WatchFile(ctx, path, changed)
	}, nil
}
