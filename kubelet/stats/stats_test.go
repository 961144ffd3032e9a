// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
	"keelson/kubelet/runtimestate"
)

// running is a source over a runtime that has run one pod with one container for ten seconds; the container uses a
// tenth of a core.
func running(t *testing.T) *Source {
	t.Helper()
	fake := critest.NewFake()
	client := cri.InProcess(fake).Runtime
	labels := map[string]string{
		runtimestate.LabelPodName:      "web",
		runtimestate.LabelPodNamespace: "default",
		runtimestate.LabelPodUID:       "u",
	}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"},
		Labels:       labels,
		LogDirectory: t.TempDir(),
	}
	sb, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	fake.AddImage("i", 1)
	response, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId:  sb.GetPodSandboxId(),
		SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
			Image:    &runtimeapi.ImageSpec{Image: "i"},
			Labels:   map[string]string{runtimestate.LabelContainerName: "app", runtimestate.LabelPodUID: "u"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: response.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	return New(Config{
		Runtime:  client,
		NodeName: "n",
		RootDir:  t.TempDir(),
		LogDir:   t.TempDir(),
	})
}

// ask returns what h answers.
func ask(t *testing.T, h http.HandlerFunc, url string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h(w, httptest.NewRequest(http.MethodGet, url, http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", url, w.Code, w.Body)
	}
	return w.Body.String()
}

func TestResourceMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := ask(t, running(t).Metrics, "/metrics/resource")
		for _, want := range []string{
			`(?m)^# HELP container_cpu_usage_seconds_total \[STABLE\] Cumulative cpu time consumed by the container in core-seconds$`,
			`(?m)^# TYPE container_cpu_usage_seconds_total counter$`,
			`(?m)^container_cpu_usage_seconds_total\{container="app",namespace="default",pod="web"\} 1 946684810000$`,
			`(?m)^container_memory_working_set_bytes\{container="app",namespace="default",pod="web"\} 1.048576e\+07 946684810000$`,
			`(?m)^container_start_time_seconds\{container="app",namespace="default",pod="web"\} 9.466848e\+08$`,
			`(?m)^node_cpu_usage_seconds_total [0-9.e+]+ 946684810000$`,
			`(?m)^node_memory_working_set_bytes [0-9.e+]+ 946684810000$`,
			`(?m)^resource_scrape_error 0$`,
		} {
			if !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("no line %s in\n%s", want, got)
			}
		}
	})
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := running(t)
		var first, second summary
		if err := json.Unmarshal([]byte(ask(t, source.Summary, "/stats/summary")), &first); err != nil {
			t.Fatal(err)
		}
		if len(first.Pods) != 1 || len(first.Pods[0].Containers) != 1 {
			t.Fatalf("got %+v", first)
		}
		c := first.Pods[0].Containers[0]
		if c.Name != "app" || c.Start.Unix() != 946684800 || c.CPU == nil || *c.CPU.UsageCoreNanoSeconds != 1e9 ||
			*c.Memory.WorkingSetBytes != 10<<20 {
			t.Errorf("container: got %+v", c)
		}
		if p := first.Pods[0]; p.Start.Unix() != 946684800 || p.Ref != (podRef{"web", "default", "u"}) {
			t.Errorf("pod: got %+v", p)
		}
		n := first.Node
		if n.Name != "n" || n.Start.IsZero() || *n.CPU.UsageCoreNanoSeconds == 0 || n.CPU.UsageNanoCores != nil ||
			*n.Memory.WorkingSetBytes == 0 || n.Fs == nil {
			t.Errorf("node: got %+v", n)
		}
		time.Sleep(time.Second)
		text := ask(t, source.Summary, "/stats/summary?only_cpu_and_memory=true")
		if err := json.Unmarshal([]byte(text), &second); err != nil {
			t.Fatal(err)
		}
		if second.Node.CPU.UsageNanoCores == nil || second.Node.Fs != nil || strings.Contains(text, "ephemeral") {
			t.Errorf("cpu and memory only, with a rate: got %s", text)
		}
	})
}

func TestProcessorTime(t *testing.T) {
	used, boot, err := processorTime(
		[]byte("cpu  10 1 2 1000 50 3 4 5 6 7\ncpu0 10 1 2 1000 50 3 4 5 6 7\nbtime 1700000000\n"))
	if err != nil || used != 20*tick || boot.Unix() != 1700000000 {
		t.Errorf("got %d, %v, %v", used, boot, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu a b c d e f g h", "cpu  1 1 1 1 1 1 1 1\nbtime x\n"} {
		if _, _, err := processorTime([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// detailed is a runtime with metrics of its own, in whole numbers.
type detailed struct {
	runtimeapi.RuntimeServiceClient
}

func (detailed) ListMetricDescriptors(
	context.Context, *runtimeapi.ListMetricDescriptorsRequest, ...grpc.CallOption,
) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{
		{Name: "container_cpu_usage_seconds_total", LabelKeys: []string{"id"}},
		{Name: "container_cpu_cfs_periods_total", Help: "Periods.", LabelKeys: []string{"id", "name", "image"}},
		{Name: "container_fs_reads_total", Help: "Reads.", LabelKeys: []string{"id", "device"}},
	}}, nil
}

func (d detailed) ListPodSandboxMetrics(
	ctx context.Context, _ *runtimeapi.ListPodSandboxMetricsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	list, err := d.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	metric := func(name string, labels ...string) *runtimeapi.Metric {
		return &runtimeapi.Metric{
			Name:        name,
			MetricType:  runtimeapi.MetricType_COUNTER,
			LabelValues: labels,
			Value:       &runtimeapi.UInt64Value{Value: 7},
		}
	}
	out := &runtimeapi.ListPodSandboxMetricsResponse{}
	for _, c := range list.GetContainers() {
		out.PodMetrics = append(out.PodMetrics, &runtimeapi.PodSandboxMetrics{
			PodSandboxId: c.GetPodSandboxId(),
			ContainerMetrics: []*runtimeapi.ContainerMetrics{{
				ContainerId: c.GetId(),
				Metrics: []*runtimeapi.Metric{
					metric("container_cpu_usage_seconds_total", "x"),
					metric("container_cpu_cfs_periods_total", "x", "y", "z"),
					metric("container_fs_reads_total", "x", "vda"),
					metric("undescribed"),
				},
			}},
		})
	}
	return out, nil
}

// TestCadvisor: the metrics have the labels that dashboards select by, from statistics, which are finer, and from the
// runtime's metrics.
func TestCadvisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := running(t)
		for name, want := range map[string][]string{
			"a runtime without metrics": {
				`(?m)^# TYPE container_cpu_usage_seconds_total counter$`,
				`(?m)^container_cpu_usage_seconds_total\{container="app",id="/kubepods/podu/[^"]+",image="i",name="[^"]+",namespace="default",pod="web",cpu="total"\} 1 946684810000$`,
				`(?m)^container_cpu_usage_seconds_total\{container="",id="/",image="",name="",namespace="",pod="",cpu="total"\} [0-9.e+]+ `,
				`(?m)^container_memory_working_set_bytes\{container="app",[^}]*\} 1.048576e\+07 946684810000$`,
				`(?m)^machine_cpu_cores \d+$`,
				`(?m)^machine_memory_bytes [0-9.e+]+$`,
				`(?m)^container_scrape_error 0$`,
			},
			"with metrics": {
				`(?m)^container_cpu_cfs_periods_total\{container="app",id="/kubepods/podu/[^"]+",image="i",name="[^"]+",namespace="default",pod="web"\} 7$`,
				`(?m)^container_fs_reads_total\{container="app",[^}]*,device="vda"\} 7$`,
				`(?m)^container_cpu_usage_seconds_total\{container="app",[^}]*\} 1 946684810000$`,
			},
		} {
			if name == "with metrics" {
				source.Runtime = detailed{source.Runtime}
			}
			got := ask(t, source.Cadvisor, "/metrics/cadvisor")
			for _, line := range want {
				if !regexp.MustCompile(line).MatchString(got) {
					t.Errorf("%s: no line %s in\n%s", name, line, got)
				}
			}
			if n := strings.Count(got, `container_cpu_usage_seconds_total{container="app"`); n != 1 {
				t.Errorf("%s: %d samples of one container, want 1", name, n)
			}
		}
	})
}

// TestHugePagesAreNotAvailable: memory that is set aside for huge pages counts as used, also while no pod has it
// (Kubernetes' HugepageAwareEviction).
func TestHugePagesAreNotAvailable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	const text = "MemTotal: 1000 kB\nMemFree: 200 kB\nMemAvailable: 900 kB\nInactive(file): 50 kB\n" +
		"HugePages_Total: 3\nHugePages_Free: 3\nHugepagesize: 200 kB\nHugetlb: 600 kB\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	total, available, err := memoryOf(path)
	if err != nil || total != 1000<<10 || available != 250<<10 {
		t.Errorf("got %d of %d, %v, want 250 of 1000 KiB", available, total, err)
	}
}

// TestPressure: how long tasks waited, as the runtime says it, is in the summary and in cAdvisor's metrics; nothing is
// shown of what it does not say.
func TestPressure(t *testing.T) {
	psi := &runtimeapi.PsiStats{
		Full: &runtimeapi.PsiData{Total: 1_500_000, Avg10: 2.5},
		Some: &runtimeapi.PsiData{Total: 3_000_000},
	}
	st := &runtimeapi.ContainerStats{
		Cpu:    &runtimeapi.CpuUsage{Timestamp: 1, Psi: psi},
		Memory: &runtimeapi.MemoryUsage{Timestamp: 1},
		Io:     &runtimeapi.IoUsage{Timestamp: 1, Psi: psi},
	}
	c := containerOf("c", 1, st)
	if want := (pressure{Full: stall{Total: 1_500_000, Avg10: 2.5}, Some: stall{Total: 3_000_000}}); c.CPU.PSI == nil ||
		*c.CPU.PSI != want || c.IO == nil || *c.IO.PSI != want || c.Memory.PSI != nil {
		t.Errorf("summary: got cpu %+v, io %+v, memory %+v; want %+v for the first two", c.CPU.PSI, c.IO, c.Memory.PSI, want)
	}
	out := &scrape{families: map[string]*cadvisorFamily{}}
	out.usage(owner{container: "c"}, st.GetCpu(), st.GetMemory())
	text := out.text()
	for _, want := range []string{
		`container_pressure_cpu_stalled_seconds_total{container="c",id="",image="",name="",namespace="",pod=""} 1.5 `,
		`container_pressure_cpu_waiting_seconds_total{container="c",id="",image="",name="",namespace="",pod=""} 3 `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics: got %s\nwithout %s", text, want)
		}
	}
	if strings.Contains(text, "pressure_memory") {
		t.Errorf("metrics: got %s\nwith the pressure of memory, which is not known", text)
	}
}
