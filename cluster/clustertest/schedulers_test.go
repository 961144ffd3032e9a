// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	podfacts "keelson/api/core/pod"
	"keelson/client"
	"keelson/cluster/clustertest"
	"keelson/event"
	"keelson/scheduler/loop"
)

// TestTwoSchedulers: two schedulers that elect no leader try for the same pods. Each pod is bound once, keeps its node,
// and is not said to be unscheduled by the one that came late.
func TestTwoSchedulers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 60
		var bindings atomic.Int64
		cluster := clustertest.Start(t, clustertest.Config{
			Nodes: 4,
			Between: func(part, _ string, h http.Handler, s client.Source) (http.Handler, client.Source) {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if part == clustertest.Scheduler && strings.HasSuffix(r.URL.Path, "/binding") {
						bindings.Add(1)
					}
					h.ServeHTTP(w, r)
				}), s
			},
		})
		second, err := loop.New(loop.Config{
			Client: cluster.As("system:kube-scheduler"),
			Marks: event.NewRecorder(func(m event.Event) {
				if m.Step == event.StepBind {
					bindings.Add(1)
				}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- second.Run(ctx, func() {}) }() // ends with ctx
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the second scheduler ended with %v", err)
			}
		}()
		changes, err := cluster.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer changes.Stop()
		synctest.Wait()
		for i := range pods {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)},
				Spec: corev1.PodSpec{
					Containers:  []corev1.Container{{Name: "c", Image: "x"}},
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				},
			}
			if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		on := map[string]string{}
		follow(t, changes, func(p *corev1.Pod) {
			if was := on[p.Name]; was != "" && was != p.Spec.NodeName {
				t.Errorf("%s went from %s to %q", p.Name, was, p.Spec.NodeName)
			}
			if p.Spec.NodeName != "" {
				on[p.Name] = p.Spec.NodeName
			}
			if cond := podfacts.Condition(p, corev1.PodScheduled); p.Spec.NodeName != "" &&
				(cond == nil || cond.Status != corev1.ConditionTrue) {
				t.Errorf("%s is on %s, its condition is %+v", p.Name, p.Spec.NodeName, cond)
			}
		})
		if len(on) != pods {
			t.Errorf("%d pods are bound, want %d", len(on), pods)
		}
		if bindings.Load() <= pods {
			t.Errorf("%d bindings of %d pods: the two have not met", bindings.Load(), pods)
		}
	})
}

// follow sees every change of pods for a minute.
func follow(t *testing.T, changes watch.Interface, see func(*corev1.Pod)) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		select {
		case e := <-changes.ResultChan():
			if p, ok := e.Object.(*corev1.Pod); ok {
				see(p)
			}
		case <-end:
			return
		}
	}
}
