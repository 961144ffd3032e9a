// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	k8stesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
	"keelson/lib/waittest"
)

func hello(name string, words ...string) corev1.Container {
	return corev1.Container{
		Name:            name,
		Image:           critest.HelloImage,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         append([]string{"/hello"}, words...),
	}
}

func started(h *harness) []string {
	var out []string
	for _, id := range h.rt.Containers("") {
		out = append(out, h.rt.Config(id).GetMetadata().GetName())
	}
	return out
}

func TestInitContainersAndSidecars(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	always := corev1.ContainerRestartPolicyAlways
	harness.create(testPod("init", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		side := hello("side")
		side.RestartPolicy = &always
		p.Spec.InitContainers = []corev1.Container{hello("first", "exit", "0"), side, hello("second", "exit", "0")}
		p.Spec.Containers = []corev1.Container{hello("main")}
	}))
	harness.until("init", "running", phaseIs(corev1.PodRunning))
	if got, want := started(harness), []string{"first", "side", "second", "main"}; !slices.Equal(got, want) {
		t.Errorf("started: got %v, want %v", got, want)
	}
	harness.rt.Exit(harness.rt.Containers("main")[0], 0)
	p := harness.until("init", "Succeeded", phaseIs(corev1.PodSucceeded))
	if st := p.Status.InitContainerStatuses[1].State.Terminated; st == nil {
		t.Errorf("the sidecar of a finished pod: %+v, want terminated", p.Status.InitContainerStatuses[1].State)
	}
}

func TestFailedInitContainerFailsThePod(t *testing.T) {
	h := newHarness(t)
	h.run()
	h.create(testPod("init", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.InitContainers = []corev1.Container{hello("i", "exit", "1")}
	}))
	h.until("init", "Failed", phaseIs(corev1.PodFailed))
	if got := started(h); !slices.Equal(got, []string{"i"}) {
		t.Errorf("started %v, want the init container alone", got)
	}
}

// TestFailedStartIsReported: a pod that is never restarted does not wait after a failed start, and still says why it
// failed.
func TestFailedStartIsReported(t *testing.T) {
	h := newHarness(t)
	h.run()
	h.rt.FailNext("StartContainer", status.Error(codes.Unknown, `exec: "/nope": no such file`))
	h.create(testPod("bad", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
	h.waitEvent("Failed", `Error: `)
	if got := h.events("Failed"); !slices.ContainsFunc(got, func(m string) bool {
		return strings.HasSuffix(m, `exec: "/nope": no such file`)
	}) {
		t.Errorf("events: got %q, want why", got)
	}
}

func TestProbesDecideReadinessAndRestart(t *testing.T) {
	var healthy atomic.Bool
	healthy.Store(true)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/live" && !healthy.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer srv.Close()
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	harness := newHarness(t)
	harness.run()
	check := func(path string) *corev1.Probe {
		return &corev1.Probe{
			PeriodSeconds:    1,
			TimeoutSeconds:   30,
			FailureThreshold: 1,
			SuccessThreshold: 1,
			ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(n), Host: "127.0.0.1"},
			},
		}
	}
	harness.create(testPod("web", func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.ReadinessProbe = check("/ready")
		c.LivenessProbe = check("/live")
		c.StartupProbe = check("/start")
	}))
	first := harness.until("web", "ready", ready).Status.ContainerStatuses[0].ContainerID
	healthy.Store(false)
	harness.waitEvent("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500")
	harness.waitEvent("Killing", "Container c failed liveness probe, will be restarted")
	healthy.Store(true)
	p := harness.until("web", "restarted", func(p *corev1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount >= 1
	})
	if got := p.Status.ContainerStatuses[0].ContainerID; got == first {
		t.Errorf("container id: got %s again", got)
	}
}

func TestImagePullErrors(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	bad := status.Error(codes.NotFound, "no such image")
	harness.rt.FailNext("PullImage", bad, bad, bad, bad) // more than are waited for
	harness.create(testPod("pull", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image = "example.org/none:1"
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}
	}))
	waits := func(reason string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			cs := p.Status.ContainerStatuses
			return len(cs) > 0 && cs[0].State.Waiting != nil && cs[0].State.Waiting.Reason == reason
		}
	}
	p := harness.until("pull", "ErrImagePull", waits("ErrImagePull"))
	if got, want := p.Status.ContainerStatuses[0].State.Waiting.Message,
		"rpc error: code = NotFound desc = no such image"; got != want {
		t.Errorf("message: got %q, want %q", got, want)
	}
	harness.until("pull", "ImagePullBackOff", waits("ImagePullBackOff"))
	harness.waitEvent("Failed",
		`Failed to pull image "example.org/none:1": rpc error: code = NotFound desc = no such image`)
	harness.waitEvent("Failed", "Error: ErrImagePull")
	harness.waitEvent("BackOff", `Back-off pulling image "example.org/none:1"`)
	harness.waitEvent("FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (a, b)")
	harness.create(testPod("never", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image = "example.org/none:2"
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	}))
	harness.until("never", "ErrImageNeverPull", waits("ErrImageNeverPull"))
	harness.remove("pull", 0)
	harness.until("pull", "gone", func(p *corev1.Pod) bool { return p == nil })
}

// TestImageVolumePullErrors: the volume's image is reported, not the container's, which is there.
func TestImageVolumePullErrors(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	bad := status.Error(codes.NotFound, "no such image")
	harness.rt.FailNext("PullImage", bad, bad, bad, bad) // more than are waited for
	harness.create(testPod("vol", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{
				Name: "v",
				VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
					Reference:  "example.org/vol:1",
					PullPolicy: corev1.PullAlways,
				}},
			},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	p := harness.until("vol", "ImagePullBackOff", func(p *corev1.Pod) bool {
		cs := p.Status.ContainerStatuses
		return len(cs) > 0 && cs[0].State.Waiting != nil && cs[0].State.Waiting.Reason == "ImagePullBackOff"
	})
	if got, want := p.Status.ContainerStatuses[0].State.Waiting.Message,
		`Back-off pulling image "example.org/vol:1": `; !strings.HasPrefix(got, want) {
		t.Errorf("message: got %q, want %q...", got, want)
	}
	harness.waitEvent("BackOff", `Back-off pulling image "example.org/vol:1"`)
}

func TestConfigMapArrivesLateAndChanges(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("cfg", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{
				Name: "v",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
				}},
			},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/cfg"}}
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{
				Name: "K",
				ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
					Key:                  "k",
				}},
			},
		}
	}))
	harness.waitEvent("FailedMount", `MountVolume.SetUp failed for volume "v" : configmap "cm" not found`)
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "default"},
		Data: map[string]string{
			"k": "one",
		},
	}
	maps := harness.api.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.until("cfg", "ready", ready)
	cfg := harness.rt.Config(harness.rt.Containers("c")[0])
	if !slices.ContainsFunc(cfg.GetEnvs(), func(e *runtimeapi.KeyValue) bool {
		return e.GetKey() == "K" && string(e.GetValue()) == "one"
	}) {
		t.Errorf("environment: %v, want K=one", cfg.GetEnvs())
	}
	i := slices.IndexFunc(cfg.GetMounts(), func(m *runtimeapi.Mount) bool { return m.GetContainerPath() == "/cfg" })
	if i < 0 || !cfg.GetMounts()[i].GetReadonly() {
		t.Fatalf("mounts: %v, want /cfg read-only", cfg.GetMounts())
	}
	file := filepath.Join(cfg.GetMounts()[i].GetHostPath(), "k")
	cm = cm.DeepCopy()
	cm.Data["k"] = "two"
	if _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the file has changed", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && string(b) == "two"
	})
}

func TestHooksAndGracefulEnd(t *testing.T) {
	harness := newHarness(t)
	var cmds []string
	calls := make(chan string, 10)
	harness.rt.SetExec(func(_ *runtimeapi.ContainerConfig, cmd []string) critest.ExecResult {
		calls <- strings.Join(cmd, " ")
		return critest.ExecResult{}
	})
	harness.run()
	harness.create(testPod("hooks", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"post", "start"}}},
			PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"pre", "stop"}}},
		}
	}))
	harness.until("hooks", "ready", ready)
	harness.remove("hooks", 5)
	harness.until("hooks", "gone", func(p *corev1.Pod) bool { return p == nil })
	close(calls)
	for c := range calls {
		cmds = append(cmds, c)
	}
	if want := []string{"post start", "pre stop"}; !slices.Equal(cmds, want) {
		t.Errorf("hooks: got %q, want %q", cmds, want)
	}
}

// TestSidecarHooksBeginAtOnce: the pre-stop hook of a sidecar does not wait for the main containers; its signal does.
func TestSidecarHooksBeginAtOnce(t *testing.T) {
	harness := newHarness(t)
	hooks := make(chan string, 10)
	harness.rt.SetExec(func(_ *runtimeapi.ContainerConfig, cmd []string) critest.ExecResult {
		hooks <- strings.Join(cmd, " ")
		return critest.ExecResult{}
	})
	harness.rt.SetProgram(func(c *runtimeapi.ContainerConfig) critest.Program {
		return critest.Program{IgnoresTerm: c.GetMetadata().GetName() == "c"}
	})
	harness.run()
	harness.create(testPod("sided", func(p *corev1.Pod) {
		side := *p.Spec.Containers[0].DeepCopy()
		side.Name = "side"
		side.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		side.Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"side", "stops"}}},
		}
		p.Spec.InitContainers = []corev1.Container{side}
	}))
	harness.until("sided", "ready", ready)
	harness.remove("sided", 3600)
	waittest.Until(t, "the sidecar's hook runs while the main container does", func() bool { return len(hooks) == 1 })
	waittest.Until(t, "the main container is being stopped", func() bool {
		return slices.Contains(harness.rt.Calls(), "StopContainer")
	})
	if got := len(harness.rt.Containers("side")); got != 1 {
		t.Fatalf("%d sidecars, want 1", got)
	}
	harness.rt.Exit(harness.rt.Containers("c")[0], 0)
	harness.until("sided", "gone", func(p *corev1.Pod) bool { return p == nil })
	if got := len(hooks); got != 1 {
		t.Errorf("the hook ran %d times, want once", got)
	}
}

func TestDeletedAgainWithoutGrace(t *testing.T) {
	h := newHarness(t)
	h.rt.SetProgram(func(*runtimeapi.ContainerConfig) critest.Program { return critest.Program{IgnoresTerm: true} })
	h.run()
	h.create(testPod("stubborn"))
	h.until("stubborn", "ready", ready)
	h.remove("stubborn", 600)
	h.waitEvent("Killing", "Stopping container c")
	h.remove("stubborn", 0)
	h.until("stubborn", "gone", func(p *corev1.Pod) bool { return p == nil })
	if got := h.events("Killing"); len(got) != 1 {
		t.Errorf("Killing events: got %q, want one", got)
	}
}

func TestSandboxIsMadeAgain(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("web"))
	harness.until("web", "ready", ready)
	boxes, err := harness.rt.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(boxes.GetItems()) != 1 {
		t.Fatalf("sandboxes: %v, %v", boxes, err)
	}
	harness.rt.StopSandbox(boxes.GetItems()[0].GetId())
	harness.until("web", "restarted", func(p *corev1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	harness.waitEvent("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
}

func TestEphemeralContainer(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("web"))
	harness.until("web", "ready", ready)
	harness.change("web", func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name:            "debug",
				Image:           critest.HelloImage,
				ImagePullPolicy: corev1.PullIfNotPresent,
			},
			TargetContainerName: "c",
		}}
	})
	harness.until("web", "debugged", func(p *corev1.Pod) bool {
		return len(p.Status.EphemeralContainerStatuses) == 1 &&
			p.Status.EphemeralContainerStatuses[0].State.Running != nil
	})
	ns := harness.rt.Config(harness.rt.Containers("debug")[0]).GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET || ns.GetTargetId() != harness.rt.Containers("c")[0] {
		t.Errorf("namespaces: got %v, want those of container c", ns)
	}
}

func TestResizeInPlace(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	set := func(p *corev1.Pod, cpu string) {
		l := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: l, Limits: l}
	}
	harness.create(testPod("web", func(p *corev1.Pod) { set(p, "100m") }))
	harness.until("web", "ready", ready)
	harness.change("web", func(p *corev1.Pod) { set(p, "200m") })
	harness.until("web", "resized", func(p *corev1.Pod) bool {
		r := p.Status.ContainerStatuses[0].Resources
		return r != nil && r.Limits.Cpu().MilliValue() == 200
	})
	if n := len(harness.rt.Containers("c")); n != 1 ||
		!slices.Contains(harness.rt.Calls(), "UpdateContainerResources") {
		t.Errorf("containers: %d, calls %v; want one, resized in place", n, harness.rt.Calls())
	}
}

func TestAdmission(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("big", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10000")}
	}))
	p := harness.until("big", "Failed", phaseIs(corev1.PodFailed))
	// kubectl would show what its containers wait for in place of the reason
	if len(p.Status.ContainerStatuses)+len(p.Status.Conditions) > 0 {
		t.Errorf("a pod that was refused has containers: %+v", p.Status)
	}
	if p.Status.Reason != "OutOfcpu" || !strings.HasPrefix(p.Status.Message,
		"Pod was rejected: Node didn't have enough resource: cpu, requested: 10000000, used: 0, capacity: ") {
		t.Errorf("got %s %q", p.Status.Reason, p.Status.Message)
	}
	harness.create(testPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }))
	if p := harness.until("elsewhere", "Failed", phaseIs(corev1.PodFailed)); p.Status.Reason != "NodeAffinity" {
		t.Errorf("got %s %q, want NodeAffinity", p.Status.Reason, p.Status.Message)
	}
	if got := started(harness); len(got) != 0 {
		t.Errorf("started %v, want nothing", got)
	}
}

// TestAdmissionAfterForcedDeletion: a pod that was deleted by force leaves its room to the next one before it has
// stopped.
func TestAdmissionAfterForcedDeletion(t *testing.T) {
	harness := newHarness(t)
	harness.rt.SetProgram(func(*runtimeapi.ContainerConfig) critest.Program {
		return critest.Program{IgnoresTerm: true}
	})
	harness.run()
	n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := func(p *corev1.Pod) {
		cpu := resource.NewMilliQuantity(n.Status.Allocatable.Cpu().MilliValue()*2/3, resource.DecimalSI)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *cpu}
		p.Spec.TerminationGracePeriodSeconds = new(int64(600))
	}
	harness.create(testPod("old", most))
	harness.until("old", "ready", ready)
	harness.create(testPod("early", most))
	if p := harness.until("early", "Failed", phaseIs(corev1.PodFailed)); p.Status.Reason != "OutOfcpu" {
		t.Errorf("while the first one runs: got %s %q, want OutOfcpu", p.Status.Reason, p.Status.Message)
	}
	if err := harness.api.CoreV1().Pods("default").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.create(testPod("next", most))
	p := harness.until("next", "admitted", func(p *corev1.Pod) bool { return ready(p) || phaseIs(corev1.PodFailed)(p) })
	if p.Status.Phase != corev1.PodRunning {
		t.Errorf("after it: got %s %s %q, want Running", p.Status.Phase, p.Status.Reason, p.Status.Message)
	}
	if got := harness.rt.Containers("c"); len(got) != 2 {
		t.Errorf("containers %v, want that of the first pod, too: it does not stop", got)
	}
}

func TestTerminationMessage(t *testing.T) {
	harness := newHarness(t)
	harness.rt.SetProgram(func(c *runtimeapi.ContainerConfig) critest.Program {
		for _, m := range c.GetMounts() {
			if m.GetContainerPath() == "/dev/termination-log" {
				if err := os.WriteFile(m.GetHostPath(), []byte("last words"), 0o600); err != nil {
					t.Error(err)
				}
			}
		}
		return critest.Program{Exits: true, Code: 1, Output: []string{"from the log"}}
	})
	harness.run()
	for name, want := range map[string]string{"file": "last words", "log": "from the log\n"} {
		harness.create(testPod(name, func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			if name == "log" {
				p.Spec.Containers[0].TerminationMessagePath = "/other"
				p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			}
		}))
		p := harness.until(name, "Failed", phaseIs(corev1.PodFailed))
		if got := p.Status.ContainerStatuses[0].State.Terminated.Message; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestStaticPods(t *testing.T) {
	dir := t.TempDir()
	h := newHarness(t, func(h *harness) { h.cfg.StaticPodDir = dir })
	h.run()
	manifest := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: st\nspec:\n  containers:\n  - name: c\n    image: " +
		critest.HelloImage + "\n    imagePullPolicy: Never\n"
	file := filepath.Join(dir, "st.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	p := h.until("st-node-1", "ready", ready)
	if p.Annotations["kubernetes.io/config.mirror"] == "" || p.Annotations["kubernetes.io/config.source"] != "file" ||
		len(p.OwnerReferences) != 1 {
		t.Errorf("mirror pod: annotations %v, owners %v", p.Annotations, p.OwnerReferences)
	}
	before := h.rt.Containers("c")
	if err := h.api.CoreV1().Pods("default").Delete(t.Context(), "st-node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.until("st-node-1", "shown again", ready)
	if got := h.rt.Containers("c"); !slices.Equal(got, before) {
		t.Errorf("deleting the mirror changed the containers from %v to %v", before, got)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll([]byte(manifest), []byte("name: c"), []byte("name: d")),
		0o600); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the changed pod runs", func() bool {
		return len(h.rt.Containers("d")) == 1 && len(h.rt.Containers("c")) == 0
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.until("st-node-1", "gone", func(p *corev1.Pod) bool { return p == nil })
}

// TestStaticPodsWhileTheyEnd: when an earlier pod of a file has ended there is what the file says by then, whatever it
// said meanwhile.
func TestStaticPodsWhileTheyEnd(t *testing.T) {
	for name, meanwhile := range map[string][]string{
		"put back":            {"", "c"},
		"changed twice":       {"d", "e"},
		"changed and removed": {"d", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			h := newHarness(t, func(h *harness) { h.cfg.StaticPodDir = dir })
			h.rt.SetProgram(func(c *runtimeapi.ContainerConfig) critest.Program {
				return critest.Program{IgnoresTerm: c.GetMetadata().GetName() == "c"}
			})
			put := func(pod, container string) {
				t.Helper()
				text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\nspec:\n  "+
					"terminationGracePeriodSeconds: 600\n"+
					"  containers:\n  - name: %s\n    image: %s\n    imagePullPolicy: Never\n", pod, container,
					critest.HelloImage)
				file := filepath.Join(dir, pod+".yaml")
				err := os.WriteFile(file+"~", []byte(text), 0o600)
				if container == "" {
					err = os.Remove(file)
				} else if err == nil {
					err = os.Rename(file+"~", file)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			marks := 0
			seen := func() { // all that was put until now
				t.Helper()
				marks++
				put("mark-"+strconv.Itoa(marks), "mark")
				h.until("mark-"+strconv.Itoa(marks)+"-node-1", "ready", ready)
			}
			put("st", "c")
			h.run()
			h.until("st-node-1", "ready", ready)
			first := h.rt.Containers("c")[0]
			for _, container := range meanwhile {
				put("st", container)
				seen()
			}
			h.waitEvent("Killing", "Stopping container c")
			h.rt.Exit(first, 0)
			if last := meanwhile[1]; last != "" {
				waittest.Until(t, "what the file says runs", func() bool {
					got := h.rt.Containers(last)
					return len(got) == 1 && got[0] != first
				})
				h.until("st-node-1", "ready", ready)
			} else {
				h.until("st-node-1", "gone", func(p *corev1.Pod) bool { return p == nil })
				seen()
			}
			if got := h.rt.Containers("d"); len(got) > 0 {
				t.Errorf("what the file said meanwhile was started: %v", got)
			}
		})
	}
}

func TestFiftyPodsAtOnce(t *testing.T) {
	h := newHarness(t)
	h.rt.Delay("StartContainer", 20*time.Millisecond)
	h.run()
	begin := time.Now()
	for i := range 50 {
		h.create(testPod("p" + strconv.Itoa(i)))
	}
	for i := range 50 {
		h.until("p"+strconv.Itoa(i), "ready", ready)
	}
	t.Logf("50 pods ready after %s", time.Since(begin))
}

// TestPodsThatTheNodeCannotRun fail at once, with Kubernetes' reasons, and nothing of them is started.
func TestPodsThatTheNodeCannotRun(t *testing.T) {
	harness := newHarness(t)
	harness.cfg.AllowedUnsafeSysctls = []string{"kernel.msg*"}
	harness.cfg.AppArmorFile = filepath.Join(t.TempDir(), "enabled")
	harness.run()
	profile := func(as corev1.AppArmorProfileType) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
				AppArmorProfile: &corev1.AppArmorProfile{Type: as},
			}
		}
	}
	harness.create(testPod("profile", profile(corev1.AppArmorProfileTypeRuntimeDefault)))
	sysctl := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: name, Value: "1"}}}
		}
	}
	harness.create(testPod("windows", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }))
	harness.create(testPod("unsafe", sysctl("net.core.somaxconn")))
	for name, reason := range map[string]string{
		"windows": "PodOSNotSupported",
		"unsafe":  "SysctlForbidden",
		"profile": "AppArmor",
	} {
		if p := harness.until(name, "Failed", phaseIs(corev1.PodFailed)); p.Status.Reason != reason {
			t.Errorf("%s: reason %q (%s), want %s", name, p.Status.Reason, p.Status.Message, reason)
		}
	}
	harness.waitEvent("SysctlForbidden", `forbidden sysctl: "net.core.somaxconn" not allowlisted`)
	if got := started(harness); len(got) > 0 {
		t.Errorf("started %v, want nothing", got)
	}
	harness.create(testPod("allowed", sysctl("kernel.msgmax")))
	harness.until("allowed", "running", phaseIs(corev1.PodRunning))
	harness.create(testPod("unconfined", profile(corev1.AppArmorProfileTypeUnconfined)))
	harness.until("unconfined", "running", phaseIs(corev1.PodRunning))
	if err := os.WriteFile(harness.cfg.AppArmorFile, []byte("Y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.create(testPod("enforced", profile(corev1.AppArmorProfileTypeRuntimeDefault)))
	harness.until("enforced", "running", phaseIs(corev1.PodRunning))
}

// TestNodeIsReadAgain: a pod that was bound for a label which the kubelet's watch does not have yet is not rejected.
func TestNodeIsReadAgain(t *testing.T) {
	harness := newHarness(t)
	var labeled atomic.Pointer[corev1.Node] // what the server answers, and the watch does not have
	harness.api.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		node := labeled.Load()
		return node != nil, node.DeepCopy(), nil
	})
	harness.run()
	node, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node = node.DeepCopy()
	node.Labels["disk"] = "ssd"
	labeled.Store(node)
	harness.create(testPod("web", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }))
	harness.until("web", "ready", ready)
}
