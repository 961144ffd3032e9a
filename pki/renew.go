// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Renew replaces certificates in dir by new ones with the same names, signed by the CA in dir that signed the old ones,
// and puts them into the kubeconfigs that hold the old ones: NAME.kubeconfig in dir, and those of kubeconfigs, by name.
// No names: all that can be renewed. It returns the new ones.
func Renew(dir string, names []string, kubeconfigs map[string]string) ([]Info, error) {
	all, err := List(dir)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		for _, info := range all {
			if info.Renewal == BySelf {
				names = append(names, info.Name)
			}
		}
	}
	var out []Info
	for _, name := range names {
		i := slices.IndexFunc(all, func(info Info) bool { return info.Name == name })
		if i < 0 {
			return out, fmt.Errorf("there is no certificate %q in %s: `keelson certs` lists them", name, dir)
		}
		var info Info
		switch {
		case all[i].CA:
			info, err = renewAuthority(dir, name)
		case all[i].Renewal == BySelf:
			info, err = renew(dir, name, kubeconfigs[name])
		default:
			return out, fmt.Errorf("certificate %s is not renewed so: its kubelet requests the next one", name)
		}
		if err != nil {
			return out, fmt.Errorf("renew certificate %s: %w", name, err)
		}
		out = append(out, info)
	}
	return out, nil
}

// renew replaces one certificate.
func renew(dir, name, kubeconfig string) (info Info, err error) {
	err = locked(dir, func() error {
		path := filepath.Join(dir, name+".crt")
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		certs, err := Certificates(b)
		if err != nil {
			return err
		}
		authority, err := issuerOf(dir, certs[0])
		if err != nil {
			return err
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		old := certs[0]
		authority.life = old.NotAfter.Sub(Issued(old))
		if endsWith(old, authority.CertPEM()) {
			authority.life = leafLife
		}
		pair, err := authority.issue(&x509.Certificate{
			Subject:     old.Subject,
			ExtKeyUsage: old.ExtKeyUsage,
			DNSNames:    old.DNSNames,
			IPAddresses: old.IPAddresses,
		}, key)
		if err != nil {
			return err
		}
		if err := writePair(dir, name, pair); err != nil {
			return err
		}
		for _, file := range []string{filepath.Join(dir, name+".kubeconfig"), kubeconfig} {
			if err := putIntoKubeconfig(file, b, pair); err != nil {
				return err
			}
		}
		info = DescribeFile(name, path, BySelf)[0]
		return nil
	})
	return info, err
}

// endsWith reports whether a certificate lives only as long as one of these of its CA.
func endsWith(c *x509.Certificate, authorities []byte) bool {
	all, err := Certificates(authorities)
	return err == nil && slices.ContainsFunc(all, func(ca *x509.Certificate) bool {
		return !c.NotAfter.Before(ca.NotAfter)
	})
}

// renewAuthority issues a certificate for the key of a CA that lives as long as a new CA. The file holds it and the
// first one: clients that have only that one trust what is issued from now on until it expires, and Fingerprint and
// OriginalAuthority stay.
func renewAuthority(dir, name string) (info Info, err error) {
	err = locked(dir, func() error {
		authority, err := Open(dir, name)
		if err != nil {
			return err
		}
		step, err := StepOf(dir, name)
		if err == nil && step != StepNone {
			err = fmt.Errorf("its key is being replaced: finish that first (`keelson certs rotate %s`)", name)
		}
		if err != nil {
			return err
		}
		now := authority.now()
		old, key := authority.Signer()
		next, err := sign(&x509.Certificate{
			Subject:               old.Subject,
			SubjectKeyId:          old.SubjectKeyId,
			NotBefore:             authorityFrom,
			NotAfter:              now.Add(caLife),
			KeyUsage:              old.KeyUsage,
			BasicConstraintsValid: true,
			IsCA:                  true,
		}, old, key, key, now)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, name+".crt")
		both := slices.Concat(next.CertPEM, OriginalAuthority(authority.CertPEM()))
		if err := WriteFile(path, both, 0o644); err != nil {
			return err
		}
		info = DescribeFile(name, path, ByCommand)[0]
		return nil
	})
	return info, err
}

// OriginalAuthority is the first certificate of a CA that was renewed with the same key, and text itself otherwise.
func OriginalAuthority(text []byte) []byte {
	certs, err := Certificates(text)
	last := bytes.LastIndex(text, []byte("-----BEGIN"))
	if err != nil || last < 0 || !bytes.Equal(certs[0].RawSubjectPublicKeyInfo,
		certs[len(certs)-1].RawSubjectPublicKeyInfo) || len(certs) < 2 {
		return text
	}
	return text[last:]
}

// ReplaceAuthority puts another CA bundle into a kubeconfig, for each of its clusters.
func ReplaceAuthority(path string, ca []byte) error {
	return editClusters(path, func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = ca })
}

// ReplaceServer replaces the URL of the API server in a kubeconfig.
func ReplaceServer(path, url string) error {
	return editClusters(path, func(c *clientcmdapi.Cluster) { c.Server = url })
}

func editClusters(path string, edit func(*clientcmdapi.Cluster)) error {
	have, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	for _, c := range have.Clusters {
		edit(c)
	}
	b, err := clientcmd.Write(*have)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return WriteFile(path, b, 0o600)
}

// issuerOf opens the CA in dir that signed a certificate.
func issuerOf(dir string, c *x509.Certificate) (*Authority, error) {
	keys, err := filepath.Glob(filepath.Join(dir, "*.key"))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		name := strings.TrimSuffix(filepath.Base(key), ".key")
		state, err := readState(dir, name)
		if err != nil {
			continue // a key without a certificate, such as that of service-account tokens
		}
		if state.cert.IsCA && c.CheckSignatureFrom(state.cert) == nil {
			return newAuthority(dir, name, leafLife, time.Now, state), nil
		}
	}
	return nil, fmt.Errorf("no certificate authority in %s has signed it: the next start replaces it", dir)
}

// putIntoKubeconfig replaces the client certificate old in a kubeconfig. A file without it, or no file, stays.
func putIntoKubeconfig(path string, old []byte, p Pair) error {
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	have, err := clientcmd.Load(b)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	found := false
	for _, user := range have.AuthInfos {
		if string(user.ClientCertificateData) == string(old) {
			user.ClientCertificateData = p.CertPEM
			user.ClientKeyData = p.KeyPEM
			found = true
		}
	}
	if !found {
		return nil
	}
	if b, err = clientcmd.Write(*have); err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return WriteFile(path, b, 0o600)
}

// FollowKubeconfig replaces the cluster and the user of fresh in the kubeconfig at path, if it has them. Everything
// else stays, and so does a file that is missing or no valid kubeconfig.
func FollowKubeconfig(path string, fresh []byte) error {
	want, err := clientcmd.Load(fresh)
	if err != nil {
		return fmt.Errorf("refresh kubeconfig: %w", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil //nolint:nilerr // its owner has removed it
	}
	have, err := clientcmd.Load(b)
	if err != nil {
		return nil //nolint:nilerr // its owner is at it
	}
	for name, c := range want.Clusters {
		if have.Clusters[name] != nil {
			have.Clusters[name] = c
		}
	}
	for name, u := range want.AuthInfos {
		if have.AuthInfos[name] != nil {
			have.AuthInfos[name] = u
		}
	}
	next, err := clientcmd.Write(*have)
	if err != nil || string(next) == string(b) {
		return err
	}
	return WriteFile(path, next, 0o600)
}
