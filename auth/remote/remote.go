// SPDX-License-Identifier: Apache-2.0

// Package remote asks a service outside of the cluster to judge: it posts a review
// and reads the answer, at the exact address that a kubeconfig names, and remembers
// answers for a while. The webhook authenticator and authorizer use it, and admission's image policy. It knows
// nothing of what is judged.
package remote

import (
	"bytes"
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
)

const (
	timeout = 30 * time.Second
	// Tries is how often a service that fails is asked.
	Tries       = 5
	firstRetry  = 500 * time.Millisecond
	longestBody = 1 << 20
	remembered  = 8192
)

// Hook is one service.
type Hook struct {
	url    string
	client *http.Client
	// answers by question, until their time is up.
	answers *lru.Cache
	now     func() time.Time
	// Retry goes before the second question; half as much more before each that follows.
	Retry time.Duration
}

// AnswerError is an answer that is none, by its HTTP status.
type AnswerError struct {
	Code   int
	Status string // "503 Service Unavailable"
}

func (e *AnswerError) Error() string { return "it answers " + e.Status }

type answer struct {
	body []byte
	end  time.Time
}

// Via is how services are reached. The zero value is client-go's own way, which nothing observes.
type Via struct {
	// Dial makes connections, as net.Dialer.DialContext does; nil: client-go's dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Observe wraps what makes the requests to services of a kind, such as "authorization webhook"; nil: nothing does.
	Observe func(kind string, rt http.RoundTripper) http.RoundTripper
}

// Client returns a client of the service that cfg names, which is one of a kind.
func (v Via) Client(cfg *rest.Config, kind string) (*http.Client, error) {
	cfg.Dial = v.Dial
	if v.Observe != nil {
		cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return v.Observe(kind, rt) })
	}
	return rest.HTTPClientFor(cfg)
}

// New reads the kubeconfig file: its current context's cluster is the service, its user how we identify ourselves. Without a file it
// is the cluster that this process is a pod of. limit bounds one question; 0: 30 s. kind is what via observes the requests as.
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
	return &Hook{url: cfg.Host + cfg.APIPath, client: client, answers: lru.New(remembered), now: time.Now, Retry: firstRetry}, nil
}

// Ask posts question and reads the answer into it; keep says for how long the answer may be used again for the same question. A service
// that fails is asked again a few times.
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
	wait := h.Retry
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
	defer func() { _ = resp.Body.Close() }() // what is wanted has been read
	got, err = io.ReadAll(io.LimitReader(resp.Body, longestBody))
	if err != nil {
		return nil, true, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests, &AnswerError{resp.StatusCode, resp.Status}
	}
	return got, false, nil
}
