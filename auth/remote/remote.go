// SPDX-License-Identifier: Apache-2.0

// Package remote calls webhook services outside of the cluster: it posts a review to the URL in a kubeconfig, reads the
// answer and caches it. The webhook authenticator, the webhook authorizer and admission's image policy use it. It knows
// nothing of the content of a review.
package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/lru"

	"keelson/lib/webhookurl"
)

const (
	timeout = 30 * time.Second
	// Tries is the maximum number of requests to a failing service.
	Tries       = 5
	firstRetry  = 500 * time.Millisecond
	longestBody = 1 << 20
	remembered  = 8192
)

// Hook is one webhook service.
type Hook struct {
	url    string
	client *http.Client
	// answers caches responses by request.
	answers *lru.Cache
	now     func() time.Time
	// retry is the wait before the second try; each further wait is half as long again.
	retry time.Duration
}

// AnswerError is an HTTP error response of the service.
type AnswerError struct {
	Code   int
	Status string // "503 Service Unavailable"
}

func (e *AnswerError) Error() string { return "it answers " + e.Status }

type answer struct {
	body []byte
	end  time.Time
}

// Via configures the connections to services. The zero value is client-go's default, without metrics.
type Via struct {
	// Dial opens connections, as net.Dialer.DialContext does; nil: client-go's dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Observe wraps the transport to services of a kind, such as "authorization webhook"; nil: no wrapper.
	Observe func(kind string, rt http.RoundTripper) http.RoundTripper
	// Retry is the wait before the second try of a request; 0: half a second.
	Retry time.Duration
}

// Client returns an HTTP client for the service in cfg, which is of a kind.
func (v Via) Client(cfg *rest.Config, kind string) (*http.Client, error) {
	cfg.Dial = v.Dial
	if v.Observe != nil {
		cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return v.Observe(kind, rt) })
	}
	return rest.HTTPClientFor(cfg)
}

// New reads the kubeconfig file: the cluster of its current context is the service, the user is our credential. Without
// a file it uses the in-cluster configuration. limit is the timeout of one request; 0: 30 s. kind is passed to
// via.Observe.
func New(kubeconfig, kind string, limit time.Duration, via Via) (*Hook, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig == "" {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("read webhook configuration %s: %w", kubeconfig, err)
	}
	cfg.Timeout = limit
	if limit == 0 {
		cfg.Timeout = timeout
	}
	client, err := via.Client(cfg, kind)
	if err != nil {
		return nil, fmt.Errorf("webhook configuration %s: %w", kubeconfig, err)
	}
	endpoint, err := webhookurl.Clean(cfg.Host + cfg.APIPath)
	if err != nil {
		return nil, fmt.Errorf("webhook configuration %s: %w", kubeconfig, err)
	}
	return &Hook{
		url:     endpoint,
		client:  client,
		answers: lru.New(remembered),
		now:     time.Now,
		retry:   cmp.Or(via.Retry, firstRetry),
	}, nil
}

// Ask posts question and decodes the response into it. keep returns how long the response is cached for the same
// question. A failing service is retried.
func (h *Hook) Ask(ctx context.Context, question, into any, keep func() time.Duration) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("ask webhook %s: %w", h.url, err)
	}
	if known, ok := h.answers.Get(string(body)); ok {
		if a, ok := known.(answer); ok && h.now().Before(a.end) {
			return json.Unmarshal(a.body, into)
		}
	}
	got, err := h.post(ctx, body)
	if err != nil {
		return fmt.Errorf("ask webhook %s: %w", h.url, err)
	}
	if err := json.Unmarshal(got, into); err != nil {
		return fmt.Errorf("answer of webhook %s: %w", h.url, err)
	}
	if life := keep(); life > 0 {
		h.answers.Add(string(body), answer{got, h.now().Add(life)})
	}
	return nil
}

func (h *Hook) post(ctx context.Context, body []byte) ([]byte, error) {
	wait := h.retry
	for try := 1; ; try++ {
		got, again, err := h.once(ctx, body)
		if err == nil || !again || try == Tries {
			return got, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
		wait += wait / 2
	}
}

func (h *Hook) once(ctx context.Context, body []byte) (got []byte, again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, ctx.Err() == nil, err
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read
	got, err = io.ReadAll(io.LimitReader(resp.Body, longestBody))
	if err != nil {
		return nil, true, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests,
			&AnswerError{resp.StatusCode, resp.Status}
	}
	return got, false, nil
}
