// SPDX-License-Identifier: Apache-2.0

package job

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

// podsOf lists the pods of a cluster, and how many have not ended.
func podsOf(t *testing.T, c *controllertest.Cluster) (all []corev1.Pod, active int) {
	t.Helper()
	list, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodPending || p.Status.Phase == "" {
			active++
		}
	}
	return list.Items, active
}

// end ends the active pods of a cluster.
func end(t *testing.T, c *controllertest.Cluster, code int32) {
	t.Helper()
	all, _ := podsOf(t, c)
	for _, p := range all {
		if p.Status.Phase != "" {
			continue
		}
		exit(code, 0)(&p)
		p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(time.Now())
		if _, err := c.CoreV1().Pods("default").UpdateStatus(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, c *controllertest.Cluster) *batchv1.Job {
	t.Helper()
	j, err := c.BatchV1().Jobs("default").Get(t.Context(), "pi", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// newController is New with metrics of its own.
func newController(env *framework.Env) (framework.Controller, error) { return New(env, NewMetrics()) }

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newJob(3, 2))
		cluster.Start(t, "job-controller", newController)
		for pass, want := range []int{2, 1} {
			settle(time.Second)
			if _, n := podsOf(t, cluster); n != want {
				t.Fatalf("pass %d: %d pods run, want %d", pass, n, want)
			}
			end(t, cluster, 0)
		}
		settle(time.Second)
		j := read(t, cluster)
		if j.Status.Succeeded != 3 || !isFinished(j) || j.Status.CompletionTime == nil {
			t.Errorf("got %+v", j.Status)
		}
		all, _ := podsOf(t, cluster)
		for _, p := range all {
			if tracked(&p) || p.Labels["job-name"] != "pi" || !metav1.IsControlledBy(&p, j) {
				t.Errorf("pod %s: finalizers %v, labels %v, owners %v", p.Name, p.Finalizers, p.Labels,
					p.OwnerReferences)
			}
		}
		said := strings.Join(cluster.EventsSeen(), "\n")
		if strings.Count(said, "Normal SuccessfulCreate Created pod: pi-") != 3 ||
			strings.Count(said, "Normal Completed Job completed") != 1 {
			t.Errorf("events:\n%s", said)
		}
	})
}

// TestRetries: each failure is followed by a longer wait, until there were too many.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newJob(1, 1, func(j *batchv1.Job) { j.Spec.BackoffLimit = new(int32(2)) }))
		cluster.Start(t, "job-controller", newController)
		settle(time.Second)
		for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
			end(t, cluster, 1)
			settle(wait - time.Second)
			if _, n := podsOf(t, cluster); n != 0 {
				t.Errorf("after %s there is a pod already", wait-time.Second)
			}
			settle(2 * time.Second)
			if _, n := podsOf(t, cluster); n != 1 {
				t.Errorf("after %s there are %d pods, want one", wait+time.Second, n)
			}
		}
		end(t, cluster, 1)
		settle(time.Second)
		j := read(t, cluster)
		f := condition(j.Status.Conditions, batchv1.JobFailed)
		if j.Status.Failed != 3 || f == nil || f.Reason != "BackoffLimitExceeded" ||
			condition(j.Status.Conditions, batchv1.JobFailureTarget) == nil {
			t.Errorf("got %+v", j.Status)
		}
		if said := strings.Join(cluster.EventsSeen(), "\n"); !strings.Contains(said,
			"Warning BackoffLimitExceeded Job has reached the specified backoff limit") {
			t.Errorf("events:\n%s", said)
		}
	})
}

// TestLeftBehind: a finalizer that no other controller will remove is removed, others' pods stay unchanged.
func TestLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owned := func(by, apiVersion, uid string) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{
					Kind:       "Job",
					APIVersion: apiVersion,
					Name:       by,
					UID:        types.UID("uid-" + uid),
					Controller: new(true),
				}}
			}
		}
		given := newJob(1, 1, func(j *batchv1.Job) {
			j.Name = "given"
			j.UID = "uid-given"
			j.Spec.ManagedBy = new("example.com/other")
		})
		c := controllertest.New(given, newPod("orphan"), newPod("gone", owned("no", "batch/v1", "no")),
			newPod("foreign", owned("x", "example.com/v1", "x")), newPod("given", owned("given", "batch/v1", "given")))
		c.Start(t, "job-controller", newController)
		settle(time.Minute)
		all, _ := podsOf(t, c)
		if len(all) != 4 {
			t.Errorf("%d pods, want 4", len(all))
		}
		for _, p := range all {
			if want := p.Name == "foreign" || p.Name == "given"; tracked(&p) != want {
				t.Errorf("pod %s has the finalizer: %v, want %v", p.Name, tracked(&p), want)
			}
		}
	})
}

// TestGoesDuringPass: the controller keeps nothing of a job that is deleted while its pods are created.
func TestGoesDuringPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New()
		cluster.Fake.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if err := cluster.Fake.Tracker().Delete(batchv1.SchemeGroupVersion.WithResource("jobs"), "default",
				"pi"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second) // until the controller has seen it
			return false, nil, nil
		})
		var built *Controller
		cluster.Start(t, "job-controller", func(env *framework.Env) (framework.Controller, error) {
			ctl, err := newController(env)
			built, _ = ctl.(*Controller)
			return ctl, err
		})
		// The informers watch before the reactor holds the fake server's lock, which they would wait for.
		settle(time.Minute)
		if _, err := cluster.BatchV1().Jobs("default").Create(t.Context(), newJob(1, 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle(time.Minute)
		if all, _ := podsOf(t, cluster); len(all) != 1 {
			t.Fatalf("%d pods, want the one that was created while the job went", len(all))
		}
		if n := len(built.state.all); n != 0 {
			t.Errorf("%d jobs are remembered, want none", n)
		}
		if n := built.expect.Len(); n != 0 {
			t.Errorf("something is expected of %d jobs, want none", n)
		}
	})
}

// TestFinalizerStays: a patch that lost against others is tried again; one that another pod of the name refuses is not.
func TestFinalizerStays(t *testing.T) {
	pods := corev1.Resource("pods")
	for _, tt := range []struct {
		name   string
		err    error
		live   types.UID
		wanted bool
	}{
		{"contention", apierrors.NewConflict(pods, "p", errors.New("too many wrote at once")), "a", true},
		{
			"successor", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil), "b",
			false,
		},
		{"refused", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil), "a", true},
		{"gone", apierrors.NewNotFound(pods, "p"), "b", false},
	} {
		c := controllertest.New(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: tt.live},
		})
		c.Fake.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true,
				nil, tt.err
		})
		ctl := &Controller{env: &framework.Env{Client: c.Client}}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "a"}}
		for _, version := range []string{"", "7"} {
			if err := ctl.patchFinalizer(t.Context(), p, version); (err != nil) != tt.wanted {
				t.Errorf("%s, version %q: got %v, want an error: %t", tt.name, version, err, tt.wanted)
			}
		}
	}
}

// TestOneStatusWrite: a server keeps whole seconds, which is no reason to write what it has again.
func TestOneStatusWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Millisecond)
		cluster := controllertest.New(newJob(1, 1))
		writes := 0
		cluster.Fake.PrependReactor("update", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
			update, ok := a.(clienttesting.UpdateAction)
			if !ok || a.GetSubresource() != "status" {
				return false, nil, nil
			}
			writes++
			if j, ok := update.GetObject().(*batchv1.Job); ok {
				whole := j.Status.StartTime.Rfc3339Copy()
				j.Status.StartTime = &whole
			}
			return false, nil, nil
		})
		cluster.Start(t, "job-controller", newController)
		settle(time.Minute)
		if writes != 1 {
			t.Errorf("the status of a job with one pod was written %d times, want once", writes)
		}
	})
}
