// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Tracing exports a span for each sampled request, a child of its client's span.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	incoming propagation.TextMapPropagator
}

// tracingFile is a TracingConfiguration (apiserver.config.k8s.io).
type tracingFile struct {
	metav1.TypeMeta        `json:",inline"`
	Endpoint               string `json:"endpoint,omitempty"`
	SamplingRatePerMillion *int32 `json:"samplingRatePerMillion,omitempty"`
}

const (
	defaultEndpoint   = "localhost:4317"
	perMillion        = 1e6
	spanExportTimeout = 5 * time.Second
)

// LoadTracing reads a TracingConfiguration file and creates an exporter to its OTLP collector.
func LoadTracing(path string) (*Tracing, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tracing configuration: %w", err)
	}
	f := tracingFile{}
	if err := yaml.UnmarshalStrict(b, &f); err != nil {
		return nil, fmt.Errorf("tracing configuration %s: %w", path, err)
	}
	if f.Kind != "TracingConfiguration" {
		return nil, fmt.Errorf("tracing configuration %s: it is a %q, not a TracingConfiguration", path, f.Kind)
	}
	if f.Endpoint == "" {
		f.Endpoint = defaultEndpoint
	}
	exporter, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpoint(f.Endpoint),
		otlptracegrpc.WithInsecure())
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	rate := 0.0 // then only spans sampled by the client are exported
	if f.SamplingRatePerMillion != nil {
		rate = float64(*f.SamplingRatePerMillion) / perMillion
	}
	return NewTracing(sdktrace.NewBatchSpanProcessor(exporter), rate), nil
}

// NewTracing exports spans through p: those sampled by clients, and the given rate of the others.
func NewTracing(p sdktrace.SpanProcessor, rate float64) *Tracing {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(rate))),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "apiserver"))))
	return &Tracing{
		provider: provider,
		tracer:   provider.Tracer("keelson/apiserver"),
		incoming: propagation.TraceContext{},
	}
}

// Run exports the remaining spans when ctx ends.
func (t *Tracing) Run(ctx context.Context) error {
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), spanExportTimeout)
	defer cancel()
	_ = t.provider.Shutdown(last) // an unreachable collector must not make the shutdown fail
	return nil
}

// traceRequests creates a span for every sampled request.
func traceRequests(c *Config, next http.Handler) http.Handler {
	if c.Tracing == nil {
		return next
	}
	t := c.Tracing
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		ctx := t.incoming.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, spanName(rq), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path),
			attribute.String("user_agent.original", r.UserAgent()), attribute.String("audit-id", rq.AuditID)))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
		if !span.IsRecording() {
			return
		}
		code := http.StatusOK
		if a, ok := w.(*responseRecorder); ok && a.code != 0 {
			code = a.code
		}
		span.SetAttributes(attribute.Int("http.response.status_code", code))
		if code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, rq.Failure)
		}
		for _, step := range []struct {
			name string
			took int64
		}{
			{"authentication", int64(rq.Mark.Authn)},
			{"authorization", int64(rq.Mark.Authz)},
			{"decoding", int64(rq.Mark.Decode)},
			{"admission", int64(rq.Mark.Admission)},
			{"validation", int64(rq.Mark.Validate)},
			{"store", int64(rq.Mark.Store)},
			{"sync", int64(rq.Mark.Sync)},
		} {
			if step.took > 0 {
				span.SetAttributes(attribute.Int64(step.name+"_ns", step.took))
			}
		}
	})
}

func spanName(rq *Request) string {
	if !rq.IsResource {
		return rq.Verb + " " + rq.Path
	}
	if rq.Subresource != "" {
		return rq.Verb + " " + rq.Resource + "/" + rq.Subresource
	}
	return rq.Verb + " " + rq.Resource
}
