// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster/clustertest"
)

// TestMetricsOfTwoClusters: what controllers and scheduler of one cluster count, another cluster in the process does
// not show.
func TestMetricsOfTwoClusters(t *testing.T) {
	config := clustertest.Config{Nodes: 1, Controllers: []string{"*"}}
	busy := clustertest.Start(t, config)
	idle := clustertest.Start(t, config)
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if _, err := busy.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: pod,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	once := pod
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := busy.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       batchv1.JobSpec{Template: once},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lines := func(c *clustertest.Cluster) string {
		text, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	counters := []string{
		"job_controller_job_syncs_total{",
		"job_controller_job_pods_creation_total{",
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"}`,
		`workqueue_work_duration_seconds_bucket{name="deployment",le="+Inf"} `,
	}
	clustertest.Eventually(t, "the busy cluster counts", time.Minute, func() (bool, error) {
		text := lines(busy)
		for _, counter := range counters {
			if !counts(text, counter) {
				return false, nil
			}
		}
		return true, nil
	})
	for _, counter := range counters {
		if counts(lines(idle), counter) {
			t.Errorf("the idle cluster counts %s", counter)
		}
	}
}

// counts reports whether a metric that begins like that has a value other than 0.
func counts(text, begin string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) && !strings.HasSuffix(line, " 0\n") {
			return true
		}
	}
	return false
}
