// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/api/flowcontrol"
	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/admission"
	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// slowPlugin holds the creations of one kind until it is let go.
type slowPlugin struct {
	gate    chan struct{}
	waiting atomic.Int32
}

func (*slowPlugin) Name() string { return "Slow" }

func (p *slowPlugin) Admit(ctx context.Context, r *admission.Request) error {
	if r.Resource.Resource != "configmaps" || r.Operation != admission.Create {
		return nil
	}
	p.waiting.Add(1)
	select {
	case <-p.gate:
	case <-ctx.Done():
	}
	return nil
}

// postMap creates a config map and returns the answer's code.
func postMap(t *testing.T, client *http.Client, host string) int {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, host+servertest.MapsPath,
		strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"m-"}}`))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestFlood: while a client's requests fill all its seats and queues, the cluster's own agents and health checks are
// served.
func TestFlood(t *testing.T) {
	slow := &slowPlugin{gate: make(chan struct{})}
	running := servertest.Start(t, func(c *servertest.Setup) {
		c.Limits.Seats = 24
		c.Objects.Bootstrap = append(c.Objects.Bootstrap, flowcontrol.Bootstrap()...)
		plain := c.Parts
		c.Parts = func(reader *access.Reader) (apiserver.Parts, error) {
			parts, err := plain(reader)
			parts.Authorizer = servertest.Everyone{}
			parts.Admission = admission.NewChain(nil, slow)
			return parts, err
		}
	})
	open := sync.OnceFunc(func() { close(slow.gate) })
	defer open()
	flood := running.User("flooder")
	var done sync.WaitGroup
	var refused, served atomic.Int32
	const many = 700 // more than the hand of queues holds
	client := must(t, flood)
	// so that there is one connection for all: hundreds of handshakes may take longer than one of them may
	ask(t, client, running.Rest.Host+"/version")
	for range many {
		done.Go(func() {
			switch postMap(t, client, running.Rest.Host) {
			case http.StatusTooManyRequests:
				refused.Add(1)
			case http.StatusCreated:
				served.Add(1)
			}
		})
	}
	waittest.Until(t, "the flood fills its seats and its queues overflow", func() bool {
		return slow.waiting.Load() > 0 && refused.Load() > 0
	})
	agents := []struct {
		name   string
		groups []string
	}{
		{"system:kube-scheduler", nil},
		{"system:kube-controller-manager", nil},
		{"system:node:n1", []string{"system:nodes"}},
		{"admin", []string{"system:masters"}},
	}
	for _, a := range agents {
		c := kubernetes.NewForConfigOrDie(running.User(a.name, a.groups...))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s during the flood: %v", a.name, err)
		}
		cancel()
	}
	for _, path := range []string{"/readyz", "/livez", "/healthz"} {
		if got := servertest.CallAs(t, running.WithToken(""), "GET", path, ""); got.Code != 200 {
			t.Errorf("%s during the flood: %d", path, got.Code)
		}
	}
	open()
	done.Wait()
	if refused.Load()+served.Load() != many || served.Load() < 20 {
		t.Errorf("%d of %d requests were refused, %d served", refused.Load(), many, served.Load())
	}
	client.CloseIdleConnections()
}
