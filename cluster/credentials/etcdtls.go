// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"

	"keelson/auth"
)

// EtcdTLS requires a client certificate of the cluster's CA for system:masters: the etcd API may read and write every
// key.
func (k *Keys) EtcdTLS() *tls.Config {
	conf := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: k.Server.Serve,
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
		now.ClientCAs = k.CA.Pool()
		return now, nil
	}
	return outer
}

// AdmitEtcd verifies the certificates of a connection of EtcdTLS for a call, by the CAs of now: the key that has signed
// them may have been replaced.
func (k *Keys) AdmitEtcd(shown []*x509.Certificate) error {
	_, ok, err := k.Clients.User(shown)
	if err == nil && !ok {
		err = errors.New("the certificate names no user")
	}
	return err
}
