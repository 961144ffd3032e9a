// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

func taint(key, value string) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoExecute}
}

func tolerates(key string, seconds int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if seconds >= 0 {
		t.TolerationSeconds = &seconds
	}
	return t
}

func TestToleration(t *testing.T) {
	tests := []struct {
		name   string
		taints []corev1.Taint
		tols   []corev1.Toleration
		stays  time.Duration
		must   bool
	}{
		{"no taint", nil, nil, 0, false},
		{"not tolerated", []corev1.Taint{taint("a", "")}, nil, 0, true},
		{"one of two not tolerated", []corev1.Taint{taint("a", ""), taint("b", "")}, []corev1.Toleration{tolerates("a", 60)}, 0, true},
		{"for ever", []corev1.Taint{taint("a", "")}, []corev1.Toleration{tolerates("a", -1)}, 0, false},
		{"for a while", []corev1.Taint{taint("a", "")}, []corev1.Toleration{tolerates("a", 60)}, time.Minute, true},
		{"the shortest", []corev1.Taint{taint("a", ""), taint("b", "")}, []corev1.Toleration{tolerates("a", 60), tolerates("b", 5)}, 5 * time.Second, true},
		{"one limited, one not", []corev1.Taint{taint("a", ""), taint("b", "")}, []corev1.Toleration{tolerates("a", -1), tolerates("b", 5)}, 5 * time.Second, true},
		{"everything", []corev1.Taint{taint("a", "x")}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, 0, false},
		{"other value", []corev1.Taint{taint("a", "x")}, []corev1.Toleration{{Key: "a", Value: "y"}}, 0, true},
		{"zero seconds", []corev1.Taint{taint("a", "")}, []corev1.Toleration{tolerates("a", 0)}, 0, true},
	}
	for _, tt := range tests {
		if stays, must := toleration(tt.taints, tt.tols); stays != tt.stays || must != tt.must {
			t.Errorf("%s: got %v, %v; want %v, %v", tt.name, stays, must, tt.stays, tt.must)
		}
	}
}

func pod(name string, tols ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: "n", Tolerations: tols}}
}

func setTaints(t *testing.T, c *controllertest.Cluster, taints ...corev1.Taint) {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Taints = taints
	if _, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
}

func TestEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
			pod("now"), pod("soon", tolerates("a", 30)), pod("late", tolerates("a", 600)), pod("never", tolerates("a", -1)))
		c.Start(t, "taint-eviction-controller", New)
		time.Sleep(time.Second)
		there := func() (names []string) {
			for _, name := range []string{"now", "soon", "late", "never"} {
				if _, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					names = append(names, name)
				}
			}
			return names
		}
		setTaints(t, c, taint("a", ""))
		if got, want := there(), []string{"soon", "late", "never"}; !slices.Equal(got, want) {
			t.Errorf("after a second: got %v, want %v", got, want)
		}
		if got, want := c.Said(), "Normal TaintManagerEviction Marking for deletion Pod default/now"; !slices.Equal(got, []string{want}) {
			t.Errorf("events: got %q, want %q", got, want)
		}
		time.Sleep(time.Minute)
		if got, want := there(), []string{"late", "never"}; !slices.Equal(got, want) {
			t.Errorf("after a minute: got %v, want %v", got, want)
		}
		c.Said()
		setTaints(t, c)
		if got, want := c.Said(), "Normal TaintManagerEviction Cancelling deletion of Pod default/late"; !slices.Equal(got, []string{want}) {
			t.Errorf("events: got %q, want %q", got, want)
		}
		time.Sleep(time.Hour)
		if got, want := there(), []string{"late", "never"}; !slices.Equal(got, want) {
			t.Errorf("after the taint went: got %v, want %v", got, want)
		}
	})
}
