// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	registrationv1 "k8s.io/api/admissionregistration/v1"

	"keelson/lib/webhookurl"
)

// Resolver returns host:port of an endpoint for a Service's port.
type Resolver func(ctx context.Context, namespace, name string, port int32) (string, error)

// Errors of NewReviewer.
var (
	ErrNoCertificate = errors.New("unable to load root certificates: unable to parse bytes as PEM block")
	ErrNoTarget      = errors.New("webhook configuration must have either service or URL")
)

// Reviewer posts reviews to a webhook. The caller makes the client, which may add credentials to the transport.
type Reviewer struct {
	Endpoint  string
	Transport *http.Transport
}

// NewReviewer returns a reviewer for a webhook.
func (e *Egress) NewReviewer(config *registrationv1.WebhookClientConfig, resolve Resolver) (*Reviewer, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := bytes.TrimSpace(config.CABundle); len(ca) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(ca) {
			return nil, ErrNoCertificate
		}
	}
	r := &Reviewer{}
	to := Options{TLS: conf, HTTP2: true}
	switch service := config.Service; {
	case service != nil:
		r.Endpoint = serviceURL(service)
		to.Target = Backend
		to.Resolve = func(ctx context.Context) (string, error) {
			return resolve(ctx, service.Namespace, service.Name, ServicePort(service))
		}
	case config.URL != nil:
		endpoint, err := webhookurl.Clean(*config.URL)
		if err != nil {
			return nil, err
		}
		r.Endpoint = endpoint
		to.Target = Configured
	default:
		return nil, ErrNoTarget
	}
	r.Transport = e.Transport(to)
	return r, nil
}

// ServicePort is the port of a webhook's Service.
func ServicePort(s *registrationv1.ServiceReference) int32 {
	if s.Port == nil {
		return 443
	}
	return *s.Port
}

// serviceURL names the Service as its certificate does; the dialer resolves it to an endpoint.
func serviceURL(s *registrationv1.ServiceReference) string {
	u := url.URL{
		Scheme: "https",
		Host:   net.JoinHostPort(s.Name+"."+s.Namespace+".svc", strconv.Itoa(int(ServicePort(s)))),
	}
	if s.Path != nil {
		u.Path = "/" + strings.TrimPrefix(*s.Path, "/")
	}
	return u.String()
}

// NoRedirects is the policy of clients that follow no redirects.
func NoRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Answer is a webhook's answer to a review.
type Answer struct {
	Code   int
	Status string // with the code
	Header http.Header
	Body   []byte
}

// Review posts a review and returns the answer, of whose body it reads up to most bytes. With an error and an answer,
// the body could not be read.
func Review(
	ctx context.Context, client *http.Client, endpoint string, review []byte, most int64,
) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(review))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", "kube-apiserver-admission")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	return &Answer{Code: resp.StatusCode, Status: resp.Status, Header: resp.Header, Body: body}, err
}
