// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"strings"

	"keelson/lib/option"
)

// Serving holds kube-apiserver's flags for serving certificates.
type Serving struct {
	// CertFile and KeyFile are the default certificate; empty: the cluster's own.
	CertFile, KeyFile string
	// SNI are further certificates: "CERT,KEY", or "CERT,KEY:NAME,NAME" for other names than those in the certificate.
	// "*.example.com" matches any name one level below.
	SNI []string
	// Curves are the key exchanges that are taken, by their numbers; none: Go's default.
	Curves []int32
	// StandardHTTP2 uses HTTP/2 of Go's standard library in place of the server's own implementation.
	StandardHTTP2 bool
}

// sniEntry is a parsed SNI entry.
type sniEntry struct {
	cert, key string
	names     []string // none: the names in the certificate
}

func (o *Serving) rows() []option.Row {
	return []option.Row{
		option.New(&o.CertFile, "tls-cert-file", "",
			"`FILE` with the serving certificate (default: issued by the cluster's CA)"),
		option.New(&o.KeyFile, "tls-private-key-file", "", "`FILE` with the private key of the serving certificate"),
		option.Each(&o.SNI, "tls-sni-cert-key",
			"serving certificate `CERT,KEY[:NAMES]` for clients whose SNI matches its names, or NAMES; may be "+
				"repeated"),
		CurvesRow(&o.Curves),
		option.New(&o.StandardHTTP2, "standard-http2-server", false,
			"speak HTTP/2 with the server of Go's standard library, in place of Keelson's own"),
	}
}

func (o *Serving) validate() error {
	_, err := o.parse()
	_, curves := CurveIDs(o.Curves)
	return errors.Join(err, curves)
}

// SNIFiles are the certificate files of SNI.
func (o Serving) SNIFiles() []string {
	list, err := o.parse()
	if err != nil {
		return nil // validated
	}
	out := make([]string, len(list))
	for i, n := range list {
		out[i] = n.cert
	}
	return out
}

func (o Serving) parse() ([]sniEntry, error) {
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	}
	var out []sniEntry
	for _, text := range o.SNI {
		files, names, more := strings.Cut(text, ":")
		cert, key, ok := strings.Cut(files, ",")
		if !ok || cert == "" || key == "" || strings.Contains(key, ",") || more && names == "" {
			return nil, fmt.Errorf("--tls-sni-cert-key %q is not of the form CERT,KEY or CERT,KEY:NAME,NAME", text)
		}
		n := sniEntry{cert: cert, key: key}
		if more {
			n.names = strings.Split(names, ",")
		}
		out = append(out, n)
	}
	return out, nil
}
