// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/event"
	"keelson/lib/signal"
)

// Limits of a Forwarder: marks held, time to collect a batch, and wait before a retry.
const (
	maxHeld = 4096
	gather  = 50 * time.Millisecond
	again   = 5 * time.Second
)

// Forwarder sends an agent's marks to the API server: register Listen with the agent's recorder, and run Run. While the
// server cannot be reached, the oldest marks are dropped. It never blocks the agent.
type Forwarder struct {
	client *client.Client
	log    *slog.Logger

	mu          sync.Mutex
	held        []event.Event
	unsupported bool // the server does not accept marks
	wake        signal.Signal
}

// NewForwarder creates a forwarder; it starts nothing.
func NewForwarder(c *client.Client, log *slog.Logger) *Forwarder {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Forwarder{client: c, log: log, wake: signal.New()}
}

// Listen implements event.Listener.
func (f *Forwarder) Listen(m event.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unsupported {
		return
	}
	if len(f.held) >= maxHeld {
		f.held = f.held[len(f.held)-maxHeld+1:]
	}
	f.held = append(f.held, m)
	f.wake.Notify()
}

// Run sends marks until ctx is done. It stops sending to a server that does not accept marks.
func (f *Forwarder) Run(ctx context.Context, ready func()) error {
	hc, err := rest.HTTPClientFor(f.client.Config)
	if err != nil {
		return fmt.Errorf("forward marks: %w", err)
	}
	ready()
	for {
		select {
		case <-f.wake.C():
		case <-ctx.Done():
			return nil
		}
		wait := gather
		for {
			if !sleep(ctx, wait) {
				return nil
			}
			if wait = f.flush(ctx, hc); wait == 0 {
				break
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// flush sends what is held. It returns the wait before the next try, 0 when nothing is left.
func (f *Forwarder) flush(ctx context.Context, hc *http.Client) time.Duration {
	f.mu.Lock()
	batch := f.held
	f.held = nil
	f.mu.Unlock()
	if len(batch) == 0 {
		return 0
	}
	code, err := f.post(ctx, hc, batch)
	switch {
	case err != nil || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError:
		f.mu.Lock()
		defer f.mu.Unlock()
		all := append(batch, f.held...)
		f.held = all[max(len(all)-maxHeld, 0):]
		return again
	case code == http.StatusNotFound || code == http.StatusForbidden || code == http.StatusUnauthorized ||
		code == http.StatusMethodNotAllowed:
		f.log.Info("the server takes no marks: this agent's steps will be missing from timelines", "code", code)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.unsupported = true
		f.held = nil
	case code >= http.StatusMultipleChoices:
		f.log.Warn("marks were refused", "code", code, "marks", len(batch))
	}
	return 0
}

func (f *Forwarder) post(ctx context.Context, hc *http.Client, batch []event.Event) (int, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	for _, m := range batch {
		if err := enc.Encode(m); err != nil {
			return 0, fmt.Errorf("encode mark: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, again)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(f.client.Config.Host, "/")+
		"/keelson/v1/marks", &body)
	if err != nil {
		return 0, fmt.Errorf("send marks: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := hc.Do(req)
	if err != nil {
		return 0, fmt.Errorf("send marks: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) // allows reuse of the connection
	return resp.StatusCode, nil
}
