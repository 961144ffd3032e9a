// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/auth/remote"
)

// Batching: at most maxBatchSize per request, sent after maxBatchWait. When queueSize events are queued, new ones are
// dropped.
const (
	maxBatchSize    = 400
	maxBatchWait    = 30 * time.Second
	queueSize       = 10000
	sendTimeout     = 30 * time.Second
	sendTries       = 4
	firstRetryDelay = 10 * time.Second
	flushTimeout    = 5 * time.Second
)

// Webhook sends events in batches to a service (an EventList, as kube-apiserver's --audit-webhook-config-file in batch
// mode).
type Webhook struct {
	url     string
	client  *http.Client
	queue   chan *Event
	wait    time.Duration
	retry   time.Duration
	dropped atomic.Int64
}

// NewWebhook uses the service in kubeconfig.
func NewWebhook(kubeconfig string, via remote.Via) (*Webhook, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read audit webhook configuration %s: %w", kubeconfig, err)
	}
	cfg.Timeout = sendTimeout
	client, err := via.Client(cfg, "audit webhook")
	if err != nil {
		return nil, fmt.Errorf("audit webhook configuration %s: %w", kubeconfig, err)
	}
	return &Webhook{
		url:    cfg.Host + cfg.APIPath,
		client: client,
		queue:  make(chan *Event, queueSize),
		wait:   maxBatchWait,
		retry:  firstRetryDelay,
	}, nil
}

// Write queues e. If the queue is full, e is dropped and counted.
func (w *Webhook) Write(e *Event) {
	select {
	case w.queue <- e:
	default:
		w.dropped.Add(1)
	}
}

// Dropped is the number of dropped events.
func (w *Webhook) Dropped() int64 { return w.dropped.Load() }

// Run sends until ctx ends, then sends the rest.
func (w *Webhook) Run(ctx context.Context) error {
	defer w.client.CloseIdleConnections()
	for {
		batch := w.nextBatch(ctx)
		if len(batch) > 0 {
			w.send(ctx, batch)
		}
		if ctx.Err() != nil {
			w.drain(ctx)
			return nil
		}
	}
}

// nextBatch waits for a first event, then collects more.
func (w *Webhook) nextBatch(ctx context.Context) []*Event {
	var batch []*Event
	select {
	case e := <-w.queue:
		batch = append(batch, e)
	case <-ctx.Done():
		return nil
	}
	enough := time.NewTimer(w.wait)
	defer enough.Stop()
	for len(batch) < maxBatchSize {
		select {
		case e := <-w.queue:
			batch = append(batch, e)
		case <-enough.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

func (w *Webhook) drain(ctx context.Context) {
	for {
		var batch []*Event
		for len(batch) < maxBatchSize && len(w.queue) > 0 {
			batch = append(batch, <-w.queue)
		}
		if len(batch) == 0 {
			return
		}
		w.send(ctx, batch)
	}
}

// send retries failed requests; after ctx has ended it tries once more with a short time-out.
func (w *Webhook) send(ctx context.Context, batch []*Event) {
	body, err := json.Marshal(eventList{
		TypeMeta: metav1.TypeMeta{Kind: kindList, APIVersion: apiVersion},
		Items:    batch,
	})
	if err != nil {
		w.dropped.Add(int64(len(batch)))
		return
	}
	lasting, cancel := extendContext(ctx, flushTimeout)
	defer cancel()
	wait := w.retry
	for try := 1; try <= sendTries; try++ {
		last := ctx.Err() != nil
		if w.post(lasting, body) == nil {
			return
		}
		if last {
			break
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait += wait / 2
	}
	w.dropped.Add(int64(len(batch)))
}

// extendContext returns a context that ends d after ctx, so that a running request can finish and is not sent twice.
func extendContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

func (w *Webhook) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // allows reuse of the connection
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("audit webhook answers %s", resp.Status)
	}
	return nil
}
