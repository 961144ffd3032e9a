// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Info describes a certificate for people.
type Info struct {
	Name    string   `json:"name"`
	File    string   `json:"file,omitempty"`
	Subject string   `json:"subject"`
	Groups  []string `json:"groups,omitempty"`
	// Names are the DNS names and addresses.
	Names   []string  `json:"names,omitempty"`
	Issuer  string    `json:"issuer"`
	CA      bool      `json:"ca,omitempty"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	// Renewal is who renews it, and how.
	Renewal Renewal `json:"renewal"`
	// Renews is when it is renewed by itself.
	Renews *time.Time `json:"renews,omitempty"`
	// Problem is why the file cannot be read, or what is wrong with the certificate.
	Problem string `json:"problem,omitempty"`
}

// Renewal is how a certificate is renewed.
type Renewal string

// How certificates are renewed.
const (
	// BySelf: the running cluster renews it, `keelson certs renew` at once.
	BySelf Renewal = "self"
	// ByRequest: the node's kubelet requests the next one.
	ByRequest Renewal = "request"
	// ByCommand: an authority, which `keelson certs renew NAME` renews.
	ByCommand Renewal = "command"
	// ByOwner: who has put the file there replaces it.
	ByOwner Renewal = "owner"
)

// Describe describes a certificate. path may be empty.
func Describe(name, path string, c *x509.Certificate, how Renewal) Info {
	info := Info{
		Name:    name,
		File:    path,
		Subject: c.Subject.CommonName,
		Groups:  c.Subject.Organization,
		Names:   slices.Clone(c.DNSNames),
		Issuer:  c.Issuer.CommonName,
		CA:      c.IsCA,
		Issued:  Issued(c).UTC(),
		Expires: c.NotAfter.UTC(),
		Renewal: how,
	}
	for _, ip := range c.IPAddresses {
		if !slices.Contains(info.Names, ip.String()) { // a certificate may name an address twice
			info.Names = append(info.Names, ip.String())
		}
	}
	if how == BySelf {
		at := renewAt(c).UTC()
		info.Renews = &at
	}
	return info
}

// Certificates parses all certificates in PEM; there must be at least one.
func Certificates(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there is no certificate")
	}
	return out, nil
}

// DescribeFile describes the certificates in a PEM file: the first one of a chain, all of a list of authorities. An
// unreadable file has a Problem.
func DescribeFile(name, path string, how Renewal) []Info {
	b, err := os.ReadFile(path)
	var certs []*x509.Certificate
	if err == nil {
		certs, err = Certificates(b)
	}
	if err != nil {
		return []Info{{
			Name:    name,
			File:    path,
			Renewal: how,
			Problem: err.Error(),
		}}
	}
	if !certs[0].IsCA {
		certs = certs[:1]
	}
	out := make([]Info, len(certs))
	for i, c := range certs {
		out[i] = Describe(name, path, c, how)
		if i > 0 {
			out[i].Name = fmt.Sprintf("%s-%d", name, i+1)
		}
	}
	return out
}

// currentPEM is the end of the names of a kubelet's certificate files.
const currentPEM = "-current.pem"

// List describes the certificates in a directory of this package, those that expire first at first.
func List(dir string) ([]Info, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		return nil, err
	}
	var out []Info
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".crt")
		found := DescribeFile(name, path, BySelf)[0]
		if found.CA {
			found.Renewal = ByCommand
			found.Renews = nil
		}
		out = append(out, found)
	}
	if files, err = filepath.Glob(filepath.Join(dir, "*"+currentPEM)); err != nil {
		return nil, err
	}
	for _, path := range files {
		out = append(out, DescribeFile(strings.TrimSuffix(filepath.Base(path), currentPEM), path, ByRequest)...)
	}
	SortInfos(out)
	return out, nil
}

// SortInfos sorts by the day on which the certificates end, then by name: those that were issued by one start stay in
// one order.
func SortInfos(list []Info) {
	const day = 24 * time.Hour
	slices.SortStableFunc(list, func(a, b Info) int {
		return cmp.Or(a.Expires.Truncate(day).Compare(b.Expires.Truncate(day)), strings.Compare(a.Name, b.Name))
	})
}

// How long before its end a certificate is reported. A certificate that renews itself has not been renewed then.
const (
	soon   = 14 * 24 * time.Hour
	soonCA = 90 * 24 * time.Hour
)

// Warns is when people are warned: some days before the end, but only in the last fifth of the life.
func (i Info) Warns() time.Time {
	before := soon
	if i.CA {
		before = soonCA
	}
	return i.Expires.Add(-min(before, i.Expires.Sub(i.Issued)/5))
}

// Warning says in a sentence what is wrong at a time, and what to do; empty: nothing is.
func (i Info) Warning(now time.Time) string {
	switch {
	case i.Problem != "":
		return fmt.Sprintf("certificate %s cannot be read: %s", i.Name, i.Problem)
	case now.Before(i.Warns()):
		return ""
	}
	when := fmt.Sprintf("expires in %s", text(i.Expires.Sub(now)))
	if now.After(i.Expires) {
		when = fmt.Sprintf("expired %s ago", text(now.Sub(i.Expires)))
	}
	return fmt.Sprintf("certificate %s %s (%s): %s", i.Name, when, i.Expires.Format(time.RFC3339), i.Remedy())
}

// Remedy says how the certificate is renewed.
func (i Info) Remedy() string {
	switch i.Renewal {
	case BySelf:
		return "it should have been renewed, the log says why it was not; or run `keelson certs renew " + i.Name + "`"
	case ByRequest:
		return "the kubelet's request has not been signed: look at `keelson kubectl get csr`"
	case ByCommand:
		return "run `keelson certs renew " + i.Name + "` (docs/certificates.md)"
	case ByOwner:
	}
	return "put a new one into " + i.File
}

// text is a duration in days, or exactly if it is short.
func text(d time.Duration) string {
	if days := int(d.Hours() / 24); days >= 2 {
		return fmt.Sprintf("%d days", days)
	}
	return d.Round(time.Second).String()
}
