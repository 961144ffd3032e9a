// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
	"keelson/kubelet/probe"
)

func target(h corev1.ProbeHandler) probe.Target {
	return probe.Target{
		Pod:       &corev1.Pod{},
		PodIP:     "127.0.0.1",
		Probe:     &corev1.Probe{ProbeHandler: h, TimeoutSeconds: 60},
		Container: &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 1}}},
	}
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestHTTP(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-A") != "1" || r.Host != "example.org" || !strings.HasPrefix(r.UserAgent(), "kube-probe/") {
			t.Errorf("request: host %q, headers %v", r.Host, r.Header)
		}
	})
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	})
	mux.Handle("/inside", http.RedirectHandler("/bad", http.StatusFound))
	mux.Handle("/outside", http.RedirectHandler("http://elsewhere.invalid/", http.StatusFound))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	port := intstr.FromInt(portOf(t, srv.Listener.Addr().String()))
	runner := probe.NewRunner(cri.InProcess(critest.NewFake()).Runtime, "1.37")
	tests := map[string]struct {
		path     string
		port     intstr.IntOrString
		ok, warn bool
		out      string
	}{
		"200":                   {"/ok", port, true, false, ""},
		"500":                   {"/bad", port, false, false, "HTTP probe failed with statuscode: 500"},
		"a redirect within":     {"/inside", port, false, false, "HTTP probe failed with statuscode: 500"},
		"a redirect to outside": {"/outside", port, true, true, "Probe terminated redirects"},
		"no listener":           {"/", intstr.FromString("web"), false, false, "connection refused"},
	}
	for name, tt := range tests {
		probeHandler := corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{
				Path: tt.path,
				Port: tt.port,
				HTTPHeaders: []corev1.HTTPHeader{
					{Name: "X-A", Value: "1"},
					{Name: "Host", Value: "example.org"},
				},
			},
		}
		if tt.path == "/inside" || tt.path == "/outside" {
			probeHandler.HTTPGet.HTTPHeaders = nil
		}
		o := runner.Probe(t.Context(), target(probeHandler))
		if o.OK != tt.ok || o.Warn != tt.warn || !strings.Contains(o.Output, tt.out) || o.Err != nil {
			t.Errorf("%s: got %+v, want ok %t, warn %t, %q", name, o, tt.ok, tt.warn, tt.out)
		}
	}
}

func TestTCPAndGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	hs := health.NewServer()
	hs.SetServingStatus("sick", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(g, hs)
	go func() { _ = g.Serve(l) }() // ends with Stop
	defer g.Stop()
	port := portOf(t, l.Addr().String())
	runner := probe.NewRunner(cri.InProcess(critest.NewFake()).Runtime, "1.37")
	sick := "sick"
	for name, tt := range map[string]struct {
		h  corev1.ProbeHandler
		ok bool
	}{
		"tcp":       {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}, true},
		"grpc":      {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(port)}}, true},
		"grpc sick": {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(port), Service: &sick}}, false},
		"tcp shut":  {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(1)}}, false},
	} {
		if o := runner.Probe(t.Context(), target(tt.h)); o.OK != tt.ok || o.Err != nil {
			t.Errorf("%s: got %+v, want ok %t", name, o, tt.ok)
		}
	}
}

// TestUnknownPortNames: a probe of a port that the container does not have cannot run. It does not fail.
func TestUnknownPortNames(t *testing.T) {
	runner := probe.NewRunner(cri.InProcess(critest.NewFake()).Runtime, "1.37")
	for name, h := range map[string]corev1.ProbeHandler{
		"http": {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("nope")}},
		"tcp":  {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("nope")}},
	} {
		if o := runner.Probe(t.Context(), target(h)); o.Err == nil || o.OK {
			t.Errorf("%s: got %+v, want an error", name, o)
		}
	}
}

// loud answers every health check with a long message.
type loud struct {
	healthpb.UnimplementedHealthServer
}

func (loud) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return nil, status.Error(codes.Internal, strings.Repeat("x", 4<<20))
}

// TestExecExpandsVariables: $(NAME) in the command is a variable of the container that has a value of its own.
func TestExecExpandsVariables(t *testing.T) {
	rt := critest.NewFake()
	var ran []string
	rt.SetExec(func(_ *runtimeapi.ContainerConfig, command []string) critest.ExecResult {
		ran = command
		return critest.ExecResult{}
	})
	container := &corev1.Container{Env: []corev1.EnvVar{
		{Name: "A", Value: "first"},
		{Name: "A", Value: "$(B)"},
		{Name: "B", ValueFrom: &corev1.EnvVarSource{}},
	}}
	target := probe.Target{
		Key:       probe.Key{ContainerID: startFake(t, rt)},
		Pod:       &corev1.Pod{},
		Container: container,
		Probe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
			Command: []string{"test", "$(A)", "$(B)", "$$(A)", "$(NONE)"},
		}}},
	}
	runner := probe.NewRunner(cri.InProcess(rt).Runtime, "1.37")
	if got := runner.Probe(t.Context(), target); !got.OK {
		t.Fatalf("got %+v", got)
	}
	if want := []string{"test", "$(B)", "$(B)", "$(A)", "$(NONE)"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
	target.Probe.Exec.Command = []string{strings.Repeat("$(A)", 64<<10)}
	if got := runner.Probe(t.Context(), target); got.Err == nil {
		t.Errorf("an argument of 256 KiB: %+v", got)
	}
}

// TestAnswersAreBounded: only a part of a container's answer is read and reported, for every kind of probe.
func TestAnswersAreBounded(t *testing.T) {
	rt := critest.NewFake()
	rt.SetExec(func(*runtimeapi.ContainerConfig, []string) critest.ExecResult {
		return critest.ExecResult{Stdout: make([]byte, 16<<20), Stderr: make([]byte, 16<<20), Code: 1}
	})
	id := startFake(t, rt)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	healthpb.RegisterHealthServer(g, loud{})
	go func() { _ = g.Serve(listener) }() // ends with Stop
	defer g.Stop()
	mux := http.NewServeMux()
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 4<<20))
	})
	// the prober may have gone
	mux.HandleFunc("/body", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 16<<20)) })
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://elsewhere.invalid/%"+strings.Repeat("x", 32<<10))
		w.WriteHeader(http.StatusFound)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(portOf(t, srv.Listener.Addr().String()))},
		}
	}
	runner := probe.NewRunner(cri.InProcess(rt).Runtime, "1.37")
	for name, tt := range map[string]struct {
		h  corev1.ProbeHandler
		ok bool
	}{
		"exec": {h: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}},
		// a port
		"grpc": {
			h: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(portOf(t, listener.Addr().String()))}},
		},
		"headers":  {h: get("/headers")},
		"body":     {h: get("/body"), ok: true},
		"redirect": {h: get("/redirect")},
	} {
		at := target(tt.h)
		at.ContainerID = id
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		o := runner.Probe(t.Context(), at)
		runtime.ReadMemStats(&after)
		if o.OK != tt.ok || len(o.Output) > 10<<10 || len(o.Brief) > 256 {
			t.Errorf("%s: got %t, %d bytes of output, %d of its brief form; want %t, 10240 and 256 at most", name,
				o.OK, len(o.Output), len(o.Brief), tt.ok)
		}
		if made := after.TotalAlloc - before.TotalAlloc; made > 64<<20 { // with what the servers of this test make
			t.Errorf("%s: %d bytes were allocated", name, made)
		}
	}
}

// startFake starts a container of the fake runtime.
func startFake(t *testing.T, rt *critest.Fake) string {
	t.Helper()
	client := cri.InProcess(rt).Runtime
	box, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: box.GetPodSandboxId(),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: got.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	return got.GetContainerId()
}
