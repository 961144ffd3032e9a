// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"crypto"
	"errors"
	"fmt"

	certv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"

	"keelson/cluster/datadir"
	"keelson/controllers/certificates"
	"keelson/controllers/framework"
	"keelson/lib/option"
	"keelson/pki"
)

// Signing holds kube-controller-manager's flags for signing keys. The zero value uses the keys of the data directory,
// if it has any.
type Signing struct {
	// TokenKeyFile holds the key that signs service-account tokens in secrets.
	TokenKeyFile string
	// RootCAFile is the CA bundle by which pods verify the API server; empty: the kubeconfig's.
	RootCAFile string
	// All signs for every signer name. By holds a CA per signer name; if one is set, signers without one sign nothing.
	All AuthorityFiles
	By  map[string]*AuthorityFiles
}

// AuthorityFiles are the certificate and key files of a CA.
type AuthorityFiles struct{ Cert, Key string }

// signerFlags are the middle parts of the flags --cluster-signing-X-cert-file and -key-file.
var signerFlags = []struct{ signer, middle string }{
	{certv1.KubeletServingSignerName, "kubelet-serving-"},
	{certv1.KubeAPIServerClientKubeletSignerName, "kubelet-client-"},
	{certv1.KubeAPIServerClientSignerName, "kube-apiserver-client-"},
	{certificates.LegacyUnknown, "legacy-unknown-"},
}

// Rows are the options of the signing keys.
func (o *Signing) Rows() []option.Row {
	rows := []option.Row{
		option.New(&o.TokenKeyFile, "service-account-private-key-file", "",
			"`FILE` with the key that signs the tokens "+
				"in secrets (default: the one in the data directory; where there is none, such secrets stay empty)"),
		option.New(&o.RootCAFile, "root-ca-file", "",
			"`FILE` with the authorities that pods trust the API server by (default: those of the kubeconfig)"),
		option.New(&o.All.Cert, "cluster-signing-cert-file", "", "sign approved certificate requests by the authority "+
			"in `FILE` (default: that of the data directory; where there is none, nothing is signed)"),
		option.New(&o.All.Key, "cluster-signing-key-file", "", "`FILE` with its key"),
	}
	o.By = map[string]*AuthorityFiles{}
	for _, f := range signerFlags {
		files := &AuthorityFiles{}
		o.By[f.signer] = files
		rows = append(rows,
			option.New(&files.Cert, "cluster-signing-"+f.middle+"cert-file", "",
				"sign those of "+f.signer+" by the authority in `FILE`, in place of --cluster-signing-cert-file; "+
					"signers without one sign nothing then"),
			option.New(&files.Key, "cluster-signing-"+f.middle+"key-file", "", "`FILE` with its key"))
	}
	return rows
}

func (f AuthorityFiles) none() bool { return f == AuthorityFiles{} }

// check reads the files as for each certificate. middle is the middle part of their flags.
func (f AuthorityFiles) check(middle string) error {
	if f.none() {
		return nil
	}
	cert := "--cluster-signing-" + middle + "cert-file"
	key := "--cluster-signing-" + middle + "key-file"
	if f.Cert == "" || f.Key == "" {
		return fmt.Errorf("%s and %s must be given together", cert, key)
	}
	if _, err := pki.ReadAuthority(f.Cert, f.Key); err != nil {
		return fmt.Errorf("%s, %s: %w", cert, key, err)
	}
	return nil
}

// Validate returns one sentence for each error.
func (o Signing) Validate() error {
	errs := []error{o.All.check("")}
	for _, f := range signerFlags {
		files := o.By[f.signer]
		if files == nil || files.none() {
			continue
		}
		if !o.All.none() {
			errs = append(errs,
				fmt.Errorf("--cluster-signing-cert-file is for all signers, --cluster-signing-%scert-file for one: "+
					"give the one or the other", f.middle))
		}
		errs = append(errs, files.check(f.middle))
	}
	return errors.Join(errs...)
}

// authorities are the CAs that the flags name; nil: none.
func (o Signing) authorities() map[string]func() (*pki.Authority, error) {
	var out map[string]func() (*pki.Authority, error)
	for _, f := range signerFlags {
		files := o.All
		if one := o.By[f.signer]; one != nil && !one.none() {
			files = *one
		}
		if files.none() {
			continue
		}
		if out == nil {
			out = map[string]func() (*pki.Authority, error){}
		}
		out[f.signer] = func() (*pki.Authority, error) { return pki.ReadAuthority(files.Cert, files.Key) }
	}
	return out
}

// Signers are the keys that the flags name, else those of the data directory. A machine without an API server has none
// there.
func (o Signing) Signers(dir datadir.Dir, ofKubeconfig framework.Bundle) (s Signers, err error) {
	s.RootCA = ofKubeconfig
	if file := o.RootCAFile; file != "" {
		pem, err := pki.ReadAuthorities(file, "--root-ca-file")
		if err != nil {
			return s, err
		}
		s.RootCA = framework.FixedBundle(pem)
	}
	if datadir.Exists(dir.Sub("pki")) {
		if err := s.own(dir); err != nil {
			return s, err
		}
	}
	if named := o.authorities(); named != nil {
		s.Authorities = named
	}
	if o.TokenKeyFile != "" {
		signer, err := pki.TokenSigner(o.TokenKeyFile)
		if err != nil {
			return s, fmt.Errorf("--service-account-private-key-file: %w", err)
		}
		s.Tokens = pki.FixedTokenKeys(signer).Signer
	}
	return s, nil
}

// own reads the keys from the data directory.
func (s *Signers) own(dir datadir.Dir) error {
	ids, err := openIdentities(dir)
	if err != nil {
		return err
	}
	keys, err := ids.tokenKeysIfAny()
	if err != nil {
		return err
	}
	if keys != nil {
		s.Tokens = func() crypto.Signer {
			_, _ = keys.Refresh() // the previous key stays
			return keys.Signer()
		}
	}
	ca, err := ids.authorityIfAny("ca")
	if err != nil || ca == nil {
		return err
	}
	s.Authorities = map[string]func() (*pki.Authority, error){}
	for _, name := range certificates.Names() {
		s.Authorities[name] = func() (*pki.Authority, error) {
			_, _ = ca.Refresh() // the previous key stays
			return ca, nil
		}
	}
	return nil
}

// RootCA is the CA bundle of a kubeconfig.
func RootCA(to *rest.Config) ([]byte, error) {
	c := rest.CopyConfig(to)
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, fmt.Errorf("read the server's authority: %w", err)
	}
	return c.CAData, nil
}

// Signers are the controllers' signing keys, and the CAs by which pods verify the API server. The first two may be nil.
type Signers struct {
	Tokens      func() crypto.Signer
	Authorities map[string]func() (*pki.Authority, error)
	RootCA      framework.Bundle
}
