// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"keelson/lib/dial"
	"keelson/runtime/image/manifest"
)

// answerError is an error of a request to a registry. Its text has no part of the answer, which may be the page of a
// service that the pod's owner cannot reach: pods' events show errors. The cause is there for errors.Is and errors.As.
type answerError struct {
	kind  error // ErrNotFound, ErrUnauthorized, ErrUnavailable, ErrInvalid or another of ours; may be nil
	text  string
	cause error
}

func (e *answerError) Error() string {
	return e.text
}

func (e *answerError) Unwrap() []error {
	var out []error
	for _, err := range []error{e.kind, e.cause} {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

// ErrUnreachable marks an error of a helper process for which Unreachable returns true.
var ErrUnreachable = errors.New("unreachable")

// Unreachable reports whether an error says that a registry could not be reached at all.
func Unreachable(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	_, ok := errors.AsType[*net.DNSError](err)
	return ok || errors.Is(err, ErrUnreachable)
}

// describeAnswer returns the error of a request as an answerError. Errors that are ours already stay as they are. host
// is the registry's.
func describeAnswer(host string, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*answerError](err); ok {
		if cause := transportError(err); cause != nil && own.cause == nil { // HTTPS failed, and HTTP is refused
			return &answerError{
				kind: manifest.ErrUnavailable,
				text: fmt.Sprintf("%v: %s: %.300s (%s)", manifest.ErrUnavailable, host, printable(cause.Error()),
					own.text),
				cause: cause,
			}
		}
		return own
	}
	// A loopback registry is also tried without TLS: an untrusted certificate is the better reason then.
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if te, ok := errors.AsType[*transport.Error](err); ok && !untrusted {
		return describeStatus(host, te)
	}
	if refused, ok := errors.AsType[*dial.RefusedError](err); ok {
		return &answerError{
			text:  fmt.Sprintf("%s leads to where no registry may lead: %v", host, refused),
			cause: refused,
		}
	}
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	for _, own := range []error{errSlow, errStalled, errConnectionLost} {
		if errors.Is(err, own) {
			return &answerError{
				kind:  manifest.ErrUnavailable,
				text:  fmt.Sprintf("%v: %s: %v", manifest.ErrUnavailable, host, own),
				cause: own,
			}
		}
	}
	if cause := transportError(err); cause != nil {
		return &answerError{
			kind: manifest.ErrUnavailable,
			text: fmt.Sprintf("%v: %s: %.300s", manifest.ErrUnavailable, host,
				printable(cause.Error())),
			cause: cause,
		}
	}
	return &answerError{
		text: host + " answers in a way that is not understood or not allowed (redirect, authentication, or " +
			"compression)",
	}
}

// transportError returns the error below err that the network, TLS or HTTP made, without the URL of the request; nil
// when there is none.
func transportError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return cert
	}
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return record
	}
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return alert
	}
	for _, known := range []error{
		http.ErrSchemeMismatch, io.ErrUnexpectedEOF, io.EOF, syscall.ECONNRESET, syscall.EPIPE,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	var timeout interface {
		error
		Timeout() bool
	}
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errSlow
	}
	return nil
}

// printable returns s without control and other characters that no message needs.
func printable(s string) string {
	out := []byte(s)
	for i, c := range out {
		if c < ' ' || c > '~' {
			out[i] = '?'
		}
	}
	return string(out)
}

// describeStatus describes a registry's refusal, with the messages of docker and containerd, by its status and its
// codes alone.
func describeStatus(host string, te *transport.Error) error {
	answer := fmt.Sprintf("%s answers %d %s", host, te.StatusCode, http.StatusText(te.StatusCode))
	says := func(kind error, text string) error {
		return &answerError{kind: kind, text: fmt.Sprintf("%s: %v: %s", text, kind, answer), cause: te}
	}
	for _, d := range te.Errors {
		switch d.Code {
		case transport.ManifestUnknownErrorCode:
			return says(manifest.ErrNotFound, "manifest unknown")
		case transport.BlobUnknownErrorCode:
			return says(manifest.ErrNotFound, "blob unknown to registry")
		case transport.NameUnknownErrorCode:
			return says(manifest.ErrNotFound, "repository name not known to registry")
		case transport.DeniedErrorCode:
			return says(manifest.ErrUnauthorized, "denied: requested access to the resource is denied, the repository "+
				"does not exist or may require authorization")
		case transport.TooManyRequestsErrorCode:
			return says(manifest.ErrUnavailable, "too many requests")
		}
	}
	switch {
	case te.StatusCode == http.StatusNotFound && te.Request != nil && strings.Contains(te.Request.URL.Path, "/blobs/"):
		return says(manifest.ErrNotFound, "blob unknown to registry")
	case te.StatusCode == http.StatusNotFound:
		return says(manifest.ErrNotFound, "manifest unknown")
	case te.StatusCode == http.StatusUnauthorized, te.StatusCode == http.StatusForbidden:
		return says(manifest.ErrUnauthorized, "authorization failed")
	case te.StatusCode == http.StatusTooManyRequests:
		return says(manifest.ErrUnavailable, "too many requests")
	case te.StatusCode >= 500:
		return &answerError{
			kind:  manifest.ErrUnavailable,
			text:  fmt.Sprintf("%v: %s", manifest.ErrUnavailable, answer),
			cause: te,
		}
	}
	return &answerError{text: answer, cause: te}
}
