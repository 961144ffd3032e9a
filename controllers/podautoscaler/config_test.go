// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	scalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.SyncPeriod = 0 }, "--horizontal-pod-autoscaler-sync-period 0s must be a second at least"},
		{func(c *Config) { c.Tolerance = -1 }, "--horizontal-pod-autoscaler-tolerance -1 must be 0 or more"},
		{func(c *Config) { c.DownscaleStabilization = -1 }, "--horizontal-pod-autoscaler-downscale-stabilization"},
		{func(c *Config) { c.InitialReadinessDelay = -1 }, "--horizontal-pod-autoscaler-initial-readiness-delay"},
		{func(c *Config) { c.CPUInitialization = -1 }, "--horizontal-pod-autoscaler-cpu-initialization-period"},
	} {
		cfg := Defaults()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(),
			c.want) {
			t.Errorf("%+v: %v, want %q", cfg, err, c.want)
		}
	}
}

// TestConfigDecides: each figure changes what is decided.
func TestConfigDecides(t *testing.T) {
	cfg := Defaults()
	cfg.Tolerance = 0
	cfg.DownscaleStabilization = time.Minute
	cfg.CPUInitialization = 0
	cfg.InitialReadinessDelay = time.Hour
	h := &scalingv2.HorizontalPodAutoscaler{}
	if cfg.toleranceOf(h).isWithin(1.01) || !(*Config)(nil).toleranceOf(h).isWithin(1.01) {
		t.Error("tolerance 0 tolerates")
	}
	past := &history{recommendations: []timestampedReplicas{{9, start.Add(-2 * time.Minute)}}}
	if got := past.stabilize(h, 9, 3, start).n; got != 9 {
		t.Errorf("after two minutes by default: %d, want 9", got)
	}
	past.cfg = &cfg
	if got := past.stabilize(h, 9, 3, start).n; got != 3 {
		t.Errorf("after two minutes with a window of one: %d, want 3", got)
	}
	young := aPod("p", started(time.Minute, time.Minute, true))
	m := podMetric{at: start.Add(-time.Minute), window: 15 * time.Second}
	if usual := Defaults(); usual.usageIsMeaningful(young, m, start) || !cfg.usageIsMeaningful(young, m, start) {
		t.Error("a young pod's cpu counts only without a time to initialize")
	}
	late := aPod("p", started(30*time.Minute, 28*time.Minute, false))
	if usual := Defaults(); !usual.usageIsMeaningful(late, m, start) || cfg.usageIsMeaningful(late, m, start) {
		t.Error("a pod that was never ready counts")
	}
}

// TestPeriodAndMetrics: the target is looked at as often as asked for, and what comes of it is counted by Kubernetes'
// names.
func TestPeriodAndMetrics(t *testing.T) {
	metrics := NewMetrics()
	synctest.Test(t, func(t *testing.T) {
		w := &world{metrics: metrics, replicas: 4, selector: "app=web", cpu: 1000} // twice the target
		run(t, w, autoscaler("web"))
		if n := w.now(); n != 8 {
			t.Errorf("replicas: %d, want 8", n)
		}
		now := gathered(t, metrics)
		for name, want := range map[string]float64{
			`reconciliations_total action="scale_up" error="none"`:                           1,
			`metric_computation_total action="scale_up" error="none" metric_type="Resource"`: 1,
			`num_horizontal_pod_autoscalers`:                                                 1,
			`desired_replicas hpa_name="web" namespace="default"`:                            8,
		} {
			if got := now[name]; got != want {
				t.Errorf("%s: %v, want %v (of %v)", name, got, want, now)
			}
		}
		w.set(func() { w.cpu = -1 })
		time.Sleep(15 * time.Second)
		if name := `reconciliations_total action="none" error="internal"`; gathered(t, metrics)[name] != 1 {
			t.Errorf("no pass without metrics is counted: %v", gathered(t, metrics))
		}
	})
	after := gathered(t, metrics)
	if got := after["num_horizontal_pod_autoscalers"]; got != 0 {
		t.Errorf("after the end %v autoscalers are counted, want none", got)
	}
	if n, ok := after[`desired_replicas hpa_name="web" namespace="default"`]; ok {
		t.Errorf("after the end the metrics want %v replicas of web", n)
	}
}

// gathered are the values of the metrics now, histograms left out.
func gathered(t *testing.T, of *Metrics) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(of.Collectors()...)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "horizontal_pod_autoscaler_controller_")
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			switch {
			case m.GetCounter() != nil:
				out[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				out[name] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// TestAnswersAreBounded: an answer of a metrics API is read up to a limit only, whether it is good or an error.
func TestAnswersAreBounded(t *testing.T) {
	var sent atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		page := []byte(strings.Repeat("x", 1<<20))
		for range 256 {
			n, err := w.Write(page)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	defer srv.Close()
	d, err := limitedDiscovery(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"good", "broken"} {
		sent.Store(0)
		var into any
		err := metricsReader{d}.Read(t.Context(), &into, nil, "apis", path)
		if err == nil || path == "good" && !strings.Contains(err.Error(), "longer than 67108864 bytes") {
			t.Errorf("%s: %v", path, err)
		}
		if n := sent.Load(); n > maxResponseBytes+64<<20 { // what is on its way
			t.Errorf("%s: %d bytes were taken", path, n)
		}
	}
}

func TestBoundedBody(t *testing.T) {
	for _, c := range []struct {
		most int64
		bad  bool
	}{{4, true}, {5, false}, {6, false}} {
		b, err := io.ReadAll(&limitedBody{io.NopCloser(strings.NewReader("12345")), c.most})
		if (err != nil) != c.bad || len(b) != int(min(c.most, 5)) {
			t.Errorf("%d: %q, %v", c.most, b, err)
		}
	}
}

// TestDearMetrics: a quantity of millions of digits from an aggregated metrics server is an error, at no cost.
func TestDearMetrics(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, rest, _ := strings.Cut(r.URL.Path, "/namespaces/")
		value, rest, _ := strings.Cut(rest, "/") // the namespace is the value
		if rest == "pods/*/old" && strings.Contains(r.URL.Path, "/v1beta2/") {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `{"items":[{"metadata":{"name":"p"},"containers":[{"usage":{"cpu":%q}}],`+
			`"describedObject":{"name":"p"},"value":%q}]}`, value, value)
	}))
	defer srv.Close()
	d, err := limitedDiscovery(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	hpa := &scalingv2.HorizontalPodAutoscaler{}
	pods := func(name string) scalingv2.MetricSpec {
		return scalingv2.MetricSpec{
			Type: scalingv2.PodsMetricSourceType,
			Pods: &scalingv2.PodsMetricSource{Metric: scalingv2.MetricIdentifier{Name: name}},
		}
	}
	for what, metric := range map[string]scalingv2.MetricSpec{
		"resource": {
			Type:     scalingv2.ResourceMetricSourceType,
			Resource: &scalingv2.ResourceMetricSource{Name: "cpu"},
		},
		"custom":     pods("new"),
		"old custom": pods("old"),
		"external": {
			Type:     scalingv2.ExternalMetricSourceType,
			External: &scalingv2.ExternalMetricSource{Metric: scalingv2.MetricIdentifier{Name: "queue"}},
		},
	} {
		for _, value := range []string{"3", "1e2880888"} {
			hpa.Namespace = value
			got := fetch(t.Context(), metricsReader{d}, hpa, &metric, labels.Everything())
			if (got.err == nil) != (value == "3") ||
				got.err != nil && !strings.Contains(got.err.Error(), "quantities must match the regular expression") {
				t.Errorf("%s of %s: got %+v", what, value, got)
			}
		}
	}
}
