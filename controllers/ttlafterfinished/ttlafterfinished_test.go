// SPDX-License-Identifier: Apache-2.0

package ttlafterfinished

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func job(name string, ttl *int32, end batchv1.JobConditionType) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: batchv1.JobSpec{
			TTLSecondsAfterFinished: ttl,
		},
	}
	j.Status.Conditions = []batchv1.JobCondition{
		{Type: end, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now())},
	}
	return j
}

// newController is New with metrics of its own.
func newController(env *framework.Env) (framework.Controller, error) { return New(env, NewMetrics()) }

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(
			job("forever", nil, batchv1.JobComplete), job("runs", new(int32(5)), batchv1.JobSuspended), job("complete",
				new(int32(10)), batchv1.JobComplete),
			job("failed", new(int32(20)), batchv1.JobFailed), job("longer", new(int32(10)), batchv1.JobComplete), job(
				"once", new(int32(0)), batchv1.JobFailed),
		)
		cluster.Start(t, "ttl-after-finished-controller", newController)
		left := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			list, err := cluster.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, j := range list.Items {
				got = append(got, j.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("at %s: left are %v, want %v", time.Now().Format(time.TimeOnly), got, want)
			}
		}
		left(9*time.Second, "complete", "failed", "forever", "longer", "runs")
		j, err := cluster.BatchV1().Jobs("default").Get(t.Context(), "longer", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		j.Spec.TTLSecondsAfterFinished = new(int32(3600))
		if _, err := cluster.BatchV1().Jobs("default").Update(t.Context(), j, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		left(time.Second, "failed", "forever", "longer", "runs")
		left(10*time.Second, "forever", "longer", "runs")
		left(2*time.Hour, "forever", "runs")
	})
}
