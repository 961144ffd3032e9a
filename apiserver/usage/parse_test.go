// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"
	"testing"
	"time"
)

const answer = `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="app",namespace="default",pod="web"} 1.5 1000000
container_cpu_usage_seconds_total{container="lo\"g",namespace="default",pod="web"} 0 1000000
container_memory_working_set_bytes{container="app",namespace="default",pod="web"} 1.048576e+06 1000000
container_start_time_seconds{container="app",namespace="default",pod="web"} 990
node_cpu_usage_seconds_total 42 1000000
node_memory_working_set_bytes 2e+09
node_swap_usage_bytes whatever
resource_scrape_error 0
`

func TestParse(t *testing.T) {
	now := time.Unix(1001, 0)
	sample, err := parse(strings.NewReader(answer), now)
	if err != nil {
		t.Fatal(err)
	}
	if !sample.node.complete() || sample.node.cpu != 42 || sample.node.memory != 2e9 ||
		!sample.node.at.Equal(time.Unix(1000, 0)) {
		t.Errorf("node: got %+v", sample.node)
	}
	app := sample.containers[container{"default", "web", "app"}]
	if app == nil || !app.complete() || app.cpu != 1.5 || app.memory != 1<<20 || !app.start.Equal(time.Unix(990, 0)) {
		t.Errorf("app: got %+v", app)
	}
	if log := sample.containers[container{"default", "web", `lo"g`}]; log == nil || log.complete() ||
		len(sample.containers) != 2 {
		t.Errorf("log: got %+v of %d", log, len(sample.containers))
	}
}

func TestParseRefuses(t *testing.T) {
	for what, doc := range map[string]string{
		"a container without labels": "container_cpu_usage_seconds_total 1",
		"an open label":              `container_cpu_usage_seconds_total{pod="x`,
		"no value":                   `container_cpu_usage_seconds_total{pod="x"}`,
		"a value that is none":       `node_cpu_usage_seconds_total x`,
		"a time that is none":        `node_cpu_usage_seconds_total 1 x`,
		"a long line":                "node_cpu_usage_seconds_total " + strings.Repeat("1", maxLine),
	} {
		if _, err := parse(strings.NewReader(doc), time.Unix(0, 0)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for _, value := range []string{"NaN", "-1", "+Inf", "1e300"} {
		s, err := parse(strings.NewReader("node_cpu_usage_seconds_total "+value), time.Unix(0, 0))
		if err != nil || s.node.has != 0 {
			t.Errorf("%s: got %+v, %v; want no figure", value, s.node, err)
		}
	}
}

// TestParseTimes: a kubelet whose clock is wrong, or that makes up times, gives figures of now.
func TestParseTimes(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for text, want := range map[string]time.Time{
		"1000000000":           now,
		"999995000":            now.Add(-5 * time.Second),
		"1000005000":           now.Add(5 * time.Second),
		"0":                    now,
		"9223372036854775807":  now,
		"-9223372036854775808": now,
	} {
		s, err := parse(strings.NewReader("node_cpu_usage_seconds_total 1 "+text), now)
		if err != nil || !s.node.at.Equal(want) {
			t.Errorf("%s: got %v, %v, want %v", text, s.node.at, err, want)
		}
	}
}

// FuzzParse: whatever a kubelet says, an answer or an error comes of it, and the figures that follow are not negative.
func FuzzParse(f *testing.F) {
	f.Add(answer)
	f.Add(`container_cpu_usage_seconds_total{a="\`)
	f.Add("node_cpu_usage_seconds_total{} 1e308 -9223372036854775808")
	f.Add("container_start_time_seconds{container=\"c\"} 99999999999")
	f.Fuzz(func(t *testing.T, doc string) {
		s, err := parse(strings.NewReader(doc), time.Unix(5, 0))
		if err != nil {
			return
		}
		out := compute(s, s)
		if out.node != nil && (out.node.usage.Cpu().Sign() < 0 || out.node.usage.Memory().Sign() < 0) {
			t.Errorf("node uses %v", out.node.usage)
		}
		for k, p := range out.pods {
			for _, c := range p.containers {
				if c.Usage.Cpu().Sign() < 0 || c.Usage.Memory().Sign() < 0 {
					t.Errorf("%v uses %v", k, c)
				}
			}
		}
	})
}
