// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"keelson/apiserver/configreload"
	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/loop"
)

const schedulerHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// toldLog is a log of which each message goes to a channel.
type toldLog struct {
	slog.Handler
	said chan string
}

func (l toldLog) Enabled(context.Context, slog.Level) bool { return true }

func (l toldLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.Value.String()
		return true
	})
	l.said <- text
	return nil
}

// TestSchedulerConfigIsReadAgain: other profiles schedule once the file says so; a file that is wrong changes nothing
// and is reported.
func TestSchedulerConfigIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	profile := func(text string) {
		if err := os.WriteFile(path+".new", []byte(schedulerHead+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	profile("profiles: [{schedulerName: first}]\n")
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")},
		},
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler", UID: "lease-uid"},
	}
	clientset := clienttest.New(node, lease, podOf("a", "first"), podOf("b", "second"), podOf("c", "third"))
	bound := make(chan string, 10)
	clientset.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		b, ok := a.(k8stesting.CreateAction).GetObject().(*corev1.Binding)
		if !ok {
			return false, nil, nil
		}
		bound <- b.Name
		return true, b, nil
	})
	events := make(chan string, 100)
	clientset.PrependReactor("create", "events", func(a k8stesting.Action) (bool, runtime.Object, error) {
		e, ok := a.(k8stesting.CreateAction).GetObject().(*corev1.Event)
		if !ok {
			return false, nil, nil
		}
		events <- fmt.Sprint(e.InvolvedObject.Kind, " ", e.InvolvedObject.Namespace, "/", e.InvolvedObject.Name, " ",
			e.InvolvedObject.UID, " ", e.Source.Component, " ", e.Type, " ", e.Reason, ": ", e.Message)
		return true, e, nil
	})
	said := make(chan string, 100)
	rejected := &configreload.Rejected{}
	metrics := NewMetrics()
	log := slog.New(toldLog{slog.DiscardHandler, said})
	life, err := New(loop.Config{Client: &client.Client{Interface: client.Plain(clientset)}, Log: log},
		Options{ConfigFile: path}, metrics, rejected)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- life.Run(ctx, func() {}) }() // ends with ctx
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	await := func(ch chan string, want string) {
		t.Helper()
		for {
			select {
			case got := <-ch:
				if strings.Contains(got, want) {
					return
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("no %q", want)
			}
		}
	}
	await(bound, "a")
	profile("profiles: [{schedulerName: second}]\n")
	await(said, "file reloaded")
	await(events, "Lease kube-system/kube-scheduler lease-uid first Normal ConfigurationReloaded: "+path)
	await(bound, "b")
	profile("profiles: [{schedulerName: third, percentageOfNodesToScore: 101}]\n")
	await(said, "scheduler.yaml:3: profiles[0].percentageOfNodesToScore")
	if got := rejected.List(); len(got) != 1 || got[0].Name != "scheduler" || got[0].File != path ||
		!strings.Contains(got[0].Error, "scheduler.yaml:3: profiles[0]") {
		t.Errorf("rejected: %+v", got)
	}
	await(events, "Lease kube-system/kube-scheduler lease-uid first Warning ConfigurationRejected: The previous "+
		"configuration stays in use: "+path+":3: profiles[0].percentageOfNodesToScore")
	if got := rejectedReloads(t, metrics); got != 1 {
		t.Errorf("%v rejected reloads in the metric, want 1", got)
	}
	if got := rejectedReloads(t, NewMetrics()); got != 0 {
		t.Errorf("%v rejected reloads in the metric of another cluster, want 0", got)
	}
	profile("profiles: [{schedulerName: third}]\n")
	await(bound, "c")
	await(said, "file reloaded")
	if got := rejected.List(); len(got) > 0 {
		t.Errorf("rejected after a good file: %+v", got)
	}
}

// rejectedReloads is how often the metric says that a configuration file was wrong.
func rejectedReloads(t *testing.T, metrics *Metrics) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "scheduler_config_automatic_reloads_total" && m.GetLabel()[0].GetValue() == "failure" {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatal("no metric of rejected reloads")
	return 0
}

func podOf(name, scheduler string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "c"}}},
	}
}
