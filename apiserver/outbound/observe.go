// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Observe wraps rt with request metrics under a name ("admission webhook"), and with spans for sampled requests, whose
// traceparent header is sent. A span ends with the response header.
func (e *Egress) Observe(name string, rt http.RoundTripper) http.RoundTripper {
	if e == nil {
		e = New(Config{})
	}
	return &observed{e, name, rt}
}

type observed struct {
	egress *Egress
	name   string
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o *observed) RoundTrip(r *http.Request) (*http.Response, error) {
	of := trace.SpanFromContext(r.Context())
	if !of.IsRecording() {
		return o.send(r)
	}
	ctx, span := of.TracerProvider().Tracer("keelson/apiserver").Start(r.Context(), o.name,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("http.request.method", r.Method),
			attribute.String("server.address", r.URL.Hostname())))
	defer span.End()
	r = r.Clone(ctx)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	resp, err := o.send(r)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return nil, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
	return resp, nil
}

func (o *observed) send(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	resp, err := o.next.RoundTrip(r)
	code := "error"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	o.egress.requests.WithLabelValues(o.name, code).Observe(time.Since(begin).Seconds())
	return resp, err
}

// CloseIdleConnections closes those of the wrapped transport.
func (o *observed) CloseIdleConnections() {
	if t, ok := o.next.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
