// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// Reader wraps the transport of the client of a simulation. It passes only GET requests, and reports the first
// forbidden one: informers would retry it forever without an error for the user.
//
// SchedulingPolicies that may not be read are left out, and the answer has a note.
type Reader struct {
	forbidden chan error
	policies  atomic.Bool // may not be read
}

// NewReader returns a Reader for one call of WhatIf.
func NewReader() *Reader { return &Reader{forbidden: make(chan error, 1)} }

// Wrap returns a transport that checks the requests.
func (r *Reader) Wrap(rt http.RoundTripper) http.RoundTripper { return readOnlyTransport{rt, r} }

type readOnlyTransport struct {
	http.RoundTripper
	*Reader
}

var errReadOnly = errors.New("what-if changes nothing")

// The paths of the policies' CustomResourceDefinition and of the policies.
const (
	crdPath    = "/apis/apiextensions.k8s.io/"
	policyPath = "/apis/scheduling.keelson.dev/"
)

// maxRefusal is the limit for the body of a refusal, in bytes.
const maxRefusal = 64 << 10

func (r readOnlyTransport) RoundTrip(rq *http.Request) (*http.Response, error) {
	if rq.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s: %w", rq.Method, rq.URL.Path, errReadOnly)
	}
	rs, err := r.RoundTripper.RoundTrip(rq)
	// who may not watch may list
	if err != nil || rs.StatusCode != http.StatusForbidden || rq.URL.Query().Has("watch") {
		return rs, err
	}
	if strings.HasPrefix(rq.URL.Path, crdPath) || strings.HasPrefix(rq.URL.Path, policyPath) {
		r.policies.Store(true)
		return rs, nil
	}
	text, err := io.ReadAll(io.LimitReader(rs.Body, maxRefusal))
	if err := errors.Join(err, rs.Body.Close()); err != nil {
		return nil, err
	}
	rs.Body = io.NopCloser(bytes.NewReader(text))
	select {
	case r.forbidden <- refusal(rq.URL.Path, text):
	default: // one is enough
	}
	return rs, nil
}

// refusal returns the API server's message, which names the missing permission.
func refusal(path string, text []byte) error {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if status, ok := obj.(*metav1.Status); err == nil && ok {
		return apierrors.FromObject(status)
	}
	return fmt.Errorf("%s is forbidden", path)
}
