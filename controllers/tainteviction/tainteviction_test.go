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

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
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

// newController is New with metrics of its own.
func newController(env *framework.Env) (framework.Controller, error) { return New(env, NewMetrics()) }

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
		{
			"one of two not tolerated", []corev1.Taint{taint("a", ""), taint("b", "")}, []corev1.Toleration{
				tolerates("a", 60),
			}, 0, true,
		},
		{"forever", []corev1.Taint{taint("a", "")}, []corev1.Toleration{tolerates("a", -1)}, 0, false},
		{"for a while", []corev1.Taint{taint("a", "")}, []corev1.Toleration{tolerates("a", 60)}, time.Minute, true},
		{
			"the shortest", []corev1.Taint{taint("a", ""), taint("b", "")}, []corev1.Toleration{
				tolerates("a", 60), tolerates("b", 5),
			}, 5 * time.Second, true,
		},
		{
			"one limited, one not", []corev1.Taint{taint("a", ""), taint("b", "")}, []corev1.Toleration{
				tolerates("a", -1), tolerates("b", 5),
			}, 5 * time.Second, true,
		},
		{
			"everything",
			[]corev1.Taint{taint("a", "x")},
			[]corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			0, false,
		},
		{"other value", []corev1.Taint{taint("a", "x")}, []corev1.Toleration{{Key: "a", Value: "y"}}, 0, true},
		{"zero seconds", []corev1.Taint{taint("a", "")}, []corev1.Toleration{tolerates("a", 0)}, 0, true},
	}
	for _, tt := range tests {
		if stays, because := toleration(tt.taints, tt.tols); stays != tt.stays || (because != nil) != tt.must {
			t.Errorf("%s: got %v, %v; want %v, %v", tt.name, stays, because, tt.stays, tt.must)
		}
	}
}

func pod(name string, tols ...corev1.Toleration) *corev1.Pod {
	return apitest.Pod(name, apitest.On("n"), func(p *corev1.Pod) { p.Spec.Tolerations = tols })
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
		cluster := controllertest.New(apitest.Node("n"),
			pod("now"), pod("soon", tolerates("a", 30)), pod("late", tolerates("a", 600)), pod("never",
				tolerates("a", -1)))
		cluster.Start(t, "taint-eviction-controller", newController)
		time.Sleep(time.Second)
		there := func() (names []string) {
			for _, name := range []string{"now", "soon", "late", "never"} {
				if _, err := cluster.CoreV1().Pods("default").Get(t.Context(), name,
					metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					names = append(names, name)
				}
			}
			return names
		}
		setTaints(t, cluster, taint("a", ""))
		if got, want := there(), []string{"soon", "late", "never"}; !slices.Equal(got, want) {
			t.Errorf("after a second: got %v, want %v", got, want)
		}
		said := cluster.EventsSeen()
		slices.Sort(said)
		if want := []string{
			"Normal TaintManagerEviction Deleting 2 Pods: at 2000-01-01T00:00:31Z (in 30s) for taint a:NoExecute: " +
				"default/soon; " +
				"at 2000-01-01T00:10:01Z (in 10m0s) for taint a:NoExecute: default/late; 1 other stays",
			"Normal TaintManagerEviction Marking for deletion Pod default/now",
		}; !slices.Equal(said, want) {
			t.Errorf("events: got %q, want %q", said, want)
		}
		time.Sleep(time.Minute)
		if got, want := there(), []string{"late", "never"}; !slices.Equal(got, want) {
			t.Errorf("after a minute: got %v, want %v", got, want)
		}
		cluster.EventsSeen()
		setTaints(t, cluster)
		if got, want := cluster.EventsSeen(),
			"Normal TaintManagerEviction Cancelling deletion of Pod default/late"; !slices.Equal(got, []string{want}) {
			t.Errorf("events: got %q, want %q", got, want)
		}
		time.Sleep(time.Hour)
		if got, want := there(), []string{"late", "never"}; !slices.Equal(got, want) {
			t.Errorf("after the taint went: got %v, want %v", got, want)
		}
	})
}

// TestRestartKeepsCounting: a taint that says when it was added is counted from then, and a pod that came later from
// its own start.
func TestRestartKeepsCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		added := metav1.NewTime(time.Now().Add(-50 * time.Second))
		old := pod("old", tolerates("a", 60))
		later := pod("later", tolerates("a", 60))
		old.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		later.CreationTimestamp = old.CreationTimestamp
		later.Status.Conditions = []corev1.PodCondition{
			{
				Type:               corev1.PodScheduled,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(time.Now().Add(-20 * time.Second)),
			},
		}
		n := apitest.Node("n", apitest.Taints(corev1.Taint{
			Key:       "a",
			Effect:    corev1.TaintEffectNoExecute,
			TimeAdded: &added,
		}))
		c := controllertest.New(n, old, later)
		c.Start(t, "taint-eviction-controller", newController)
		for _, tt := range []struct {
			wait time.Duration
			want int
		}{{9 * time.Second, 2}, {2 * time.Second, 1}, {28 * time.Second, 1}, {2 * time.Second, 0}} {
			time.Sleep(tt.wait)
			all, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(all.Items) != tt.want {
				t.Errorf("after another %v: %d pods, want %d (%v)", tt.wait, len(all.Items), tt.want, err)
			}
		}
	})
}

// TestSuccessorStaysItsOwnTime: a pod that took another's name while the watch was interrupted has all of its time.
func TestSuccessorStaysItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(apitest.Node("n"),
			pod("p", tolerates("a", 60)))
		cluster.Start(t, "taint-eviction-controller", newController)
		time.Sleep(time.Second)
		setTaints(t, cluster, taint("a", ""))
		time.Sleep(50 * time.Second)
		next := pod("p", tolerates("a", 60))
		next.UID = "next"
		next.CreationTimestamp = metav1.Now()
		// What the informer has is replaced, without a deletion.
		if err := cluster.Fake.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), next,
			"default"); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			wait time.Duration
			gone bool
		}{{55 * time.Second, false}, {10 * time.Second, true}} {
			time.Sleep(tt.wait)
			if _, err := cluster.CoreV1().Pods("default").Get(t.Context(), "p",
				metav1.GetOptions{}); apierrors.IsNotFound(
				err) != tt.gone {
				t.Errorf("after another %v: gone %v, want %v", tt.wait, !tt.gone, tt.gone)
			}
		}
	})
}

// TestLongerWithoutATaint: when the taint with the shorter toleration goes, the longer one counts, from the same
// moment.
func TestLongerWithoutATaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(apitest.Node("n"),
			pod("p", tolerates("a", 30), tolerates("b", 120)))
		cluster.Start(t, "taint-eviction-controller", newController)
		time.Sleep(time.Second)
		setTaints(t, cluster, taint("a", ""), taint("b", ""))
		time.Sleep(10 * time.Second)
		setTaints(t, cluster, taint("b", ""))
		for _, tt := range []struct {
			wait time.Duration
			gone bool
		}{{100 * time.Second, false}, {10 * time.Second, true}} {
			time.Sleep(tt.wait)
			if _, err := cluster.CoreV1().Pods("default").Get(t.Context(), "p",
				metav1.GetOptions{}); apierrors.IsNotFound(
				err) != tt.gone {
				t.Errorf("after another %v: gone %v, want %v", tt.wait, !tt.gone, tt.gone)
			}
		}
	})
}
