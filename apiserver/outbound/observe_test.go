// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"keelson/apiserver/outbound"
)

// TestObserve: a call is counted with its code, and one that a sampled request leads to has a span, whose parent the
// other side learns of.
func TestObserve(t *testing.T) {
	parents := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
		w.WriteHeader(http.StatusTeapot)
	}))
	defer srv.Close()
	egress := outbound.New(outbound.Config{AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	client := &http.Client{
		Transport: egress.Observe("admission webhook", egress.Transport(outbound.Options{Target: outbound.Backend})),
	}
	spans := tracetest.NewSpanRecorder()
	ctx, parent := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("t").Start(t.Context(),
		"request")
	post := func(sampled bool, url string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if sampled {
			r = r.WithContext(ctx)
		}
		resp, err := client.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if len(r.Header) > 0 {
			t.Errorf("the caller's request was changed: %v", r.Header)
		}
	}
	post(false, srv.URL)
	if got := <-parents; got != "" || len(spans.Ended()) > 0 {
		t.Errorf("not sampled: traceparent %q, %d spans", got, len(spans.Ended()))
	}
	post(true, srv.URL)
	post(true, "http://127.0.0.1:1/") // where no one listens
	ended := spans.Ended()
	if len(ended) != 2 || ended[0].Name() != "admission webhook" || ended[0].Parent().SpanID() != parent.SpanContext().
		SpanID() {
		t.Fatalf("spans: %v", ended)
	}
	if got, want := <-parents, ended[0].SpanContext().SpanID().String(); !strings.Contains(got, want) {
		t.Errorf("traceparent: %q, want it to name the span %s", got, want)
	}
	if ended[0].Status().Code != codes.Unset || ended[1].Status().Code != codes.Error {
		t.Errorf("states of the spans: %v, %v", ended[0].Status(), ended[1].Status())
	}
	client.CloseIdleConnections()
	series := map[string]int{}
	all := prometheus.NewRegistry()
	all.MustRegister(egress.Collectors()...)
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"keelson_apiserver_outbound_request_duration_seconds": 2, // codes 418 and error
		"keelson_apiserver_outbound_dial_duration_seconds":    2, // connected and failed
	} {
		if series[name] != want {
			t.Errorf("%s: %d series, want %d", name, series[name], want)
		}
	}
}
