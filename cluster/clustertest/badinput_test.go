// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/client"
	"keelson/cluster/clustertest"
)

// bad is a cluster with one good Deployment, web, in the namespace good, and what the tests add to it.
type bad struct {
	*clustertest.Cluster
	t *testing.T
	// writes of controllers and scheduler.
	writes atomic.Int64
}

func startBad(t *testing.T) *bad {
	b := &bad{t: t}
	b.Cluster = clustertest.Start(t, clustertest.Config{
		Controllers: []string{"*"},
		Nodes:       1,
		Between: func(part, _ string, h http.Handler, s client.Source) (http.Handler, client.Source) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if part != clustertest.Nodes && r.Method != http.MethodGet &&
					!strings.Contains(r.URL.Path, "/leases/") {
					b.writes.Add(1)
				}
				h.ServeHTTP(w, r)
			}), s
		},
	})
	for _, name := range []string{"good", "bad"} {
		if _, err := b.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	must(t)(b.AppsV1().Deployments("good").Create(t.Context(), deployment("web", 2), metav1.CreateOptions{}))
	clustertest.Eventually(t, "web runs", time.Minute, func() (bool, error) {
		d, err := b.AppsV1().Deployments("good").Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.AvailableReplicas == 2, err
	})
	return b
}

// must fails the test for an error that comes with an object.
func must(t *testing.T) func(any, error) {
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// event waits for an event of that reason about an object, whose message contains text.
func (b *bad) event(namespace, reason, about, text string) {
	b.t.Helper()
	clustertest.Eventually(b.t, "event "+reason+" about "+about, 5*time.Minute, func() (bool, error) {
		l, err := b.CoreV1().Events(namespace).List(b.t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, e := range l.Items {
			if e.Reason == reason && e.InvolvedObject.Name == about && strings.Contains(e.Message, text) {
				return true, nil
			}
		}
		return false, nil
	})
}

// calm fails the test when controllers write more than most times in an hour, or the good Deployment has changed.
func (b *bad) calm(most int64) {
	b.t.Helper()
	time.Sleep(10 * time.Minute) // back-offs
	before := b.writes.Load()
	time.Sleep(time.Hour)
	if n := b.writes.Load() - before; n > most {
		b.t.Errorf("%d writes of controllers and scheduler in an hour, want at most %d", n, most)
	}
	l, err := b.CoreV1().Pods("good").List(b.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		b.t.Fatal(err)
	}
	mine := 0
	for _, p := range l.Items {
		if o := metav1.GetControllerOf(&p); o != nil && strings.HasPrefix(o.Name, "web-") &&
			p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].RestartCount == 0 {
			mine++
		}
	}
	if mine != 2 {
		b.t.Errorf("web has %d pods of its own, want 2", mine)
	}
}

// TestSelectorsOfOthers: a ReplicaSet whose selector matches the pods of others makes its own, takes none that has an
// owner, and two of one selector do not fight.
func TestSelectorsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := startBad(t)
		for _, name := range []string{"greedy", "greedier"} {
			rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
			d := deployment("web", 1)
			rs.Spec = appsv1.ReplicaSetSpec{
				Replicas: new(int32(1)),
				Selector: d.Spec.Selector,
				Template: d.Spec.Template,
			}
			must(t)(bad.AppsV1().ReplicaSets("good").Create(t.Context(), rs, metav1.CreateOptions{}))
		}
		bad.calm(0)
		for _, name := range []string{"greedy", "greedier"} {
			rs, err := bad.AppsV1().ReplicaSets("good").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || rs.Status.Replicas != 1 || rs.Status.AvailableReplicas != 1 {
				t.Errorf("%s: %+v, %v, want a pod of its own", name, rs.Status, err)
			}
		}
	})
}

// TestOwnersThatAreNot: what an owner that never was, or one in another namespace, was to keep is collected and an
// event says why; what lies in no namespace and names an owner in one stays.
func TestOwnersThatAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := startBad(t)
		web, err := bad.AppsV1().Deployments("good").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		owner := metav1.OwnerReference{
			APIVersion: "apps/v1",
			Kind:       "Deployment",
			Name:       "web",
			UID:        web.UID,
		}
		for name, ownerReference := range map[string]metav1.OwnerReference{
			"absent": {
				APIVersion: "v1",
				Kind:       "ConfigMap",
				Name:       "absent",
				UID:        "11111111-1111-1111-1111-111111111111",
			},
			"nokind": {
				APIVersion: "nope.example.com/v1",
				Kind:       "Nope",
				Name:       "x",
				UID:        "11111111-1111-1111-1111-111111111112",
			},
			"cross": owner,
		} {
			cm := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{ownerReference}},
			}
			must(t)(bad.CoreV1().ConfigMaps("bad").Create(t.Context(), cm, metav1.CreateOptions{}))
		}
		must(t)(bad.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
			Name:            "stays",
			OwnerReferences: []metav1.OwnerReference{owner},
		}}, metav1.CreateOptions{}))
		bad.event("bad", "OwnerRefInvalidNamespace", "cross", `does not exist in namespace "bad"`)
		bad.event("default", "OwnerRefInvalidNamespace", "stays", `does not exist in namespace ""`)
		bad.calm(0)
		for name, stays := range map[string]bool{"absent": false, "cross": false, "nokind": true} {
			if _, err := bad.CoreV1().ConfigMaps("bad").Get(t.Context(), name,
				metav1.GetOptions{}); (err == nil) != stays {
				t.Errorf("config map %s: %v, want it there: %v", name, err, stays)
			}
		}
		if _, err := bad.RbacV1().ClusterRoles().Get(t.Context(), "stays", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestSchedulesThatAreNot: lines and time zones that do not exist are refused; a day that never comes is an event.
func TestSchedulesThatAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := startBad(t)
		cronJob := func(name, schedule string, zone *string) error {
			_, err := bad.BatchV1().CronJobs("bad").Create(t.Context(), &batchv1.CronJob{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: batchv1.CronJobSpec{
					Schedule: schedule,
					TimeZone: zone,
					JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
						Spec: corev1.PodSpec{
							RestartPolicy: corev1.RestartPolicyNever,
							Containers: []corev1.Container{
								{Name: "c", Image: "x"},
							},
						},
					}}},
				},
			}, metav1.CreateOptions{})
			return err
		}
		for field, err := range map[string]error{
			"spec.schedule": cronJob("line", "61 * * * *", nil),
			"spec.timeZone": cronJob("zone", "* * * * *", new("Mars/Phobos")),
		} {
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v, want it refused", field, err)
			}
		}
		if err := cronJob("never", "0 0 31 2 *", nil); err != nil {
			t.Fatal(err)
		}
		bad.event("bad", "InvalidSchedule", "never", "0 0 31 2 *")
		bad.calm(60)
	})
}

// TestAutoscalersWithoutMetrics: conditions say what is missing, and nothing is scaled.
func TestAutoscalersWithoutMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := startBad(t)
		for name, target := range map[string]string{"blind": "web", "lost": "absent"} {
			must(t)(bad.AutoscalingV2().HorizontalPodAutoscalers("good").Create(
				t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
						ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
							APIVersion: "apps/v1",
							Kind:       "Deployment",
							Name:       target,
						},
						MaxReplicas: 9,
						Metrics: []autoscalingv2.MetricSpec{{
							Type: autoscalingv2.PodsMetricSourceType,
							Pods: &autoscalingv2.PodsMetricSource{
								Metric: autoscalingv2.MetricIdentifier{Name: "hits"},
								Target: autoscalingv2.MetricTarget{
									Type:         autoscalingv2.AverageValueMetricType,
									AverageValue: new(resource.MustParse("1")),
								},
							},
						}},
					},
				}, metav1.CreateOptions{}))
		}
		bad.event("good", "FailedGetScale", "lost", `"absent" not found`)
		bad.event("good", "FailedGetPodsMetric", "blind", "hits")
		// One look in 15 s; an event that is repeated is counted in the one that is there.
		bad.calm(2 * 3 * 240)
		for name, want := range map[string]autoscalingv2.HorizontalPodAutoscalerConditionType{
			"blind": autoscalingv2.ScalingActive,
			"lost":  autoscalingv2.AbleToScale,
		} {
			h, err := bad.AutoscalingV2().HorizontalPodAutoscalers("good").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			said := false
			for _, c := range h.Status.Conditions {
				said = said || c.Type == want && c.Status == corev1.ConditionFalse && c.Message != ""
			}
			if !said {
				t.Errorf("%s: %+v, want %s False", name, h.Status.Conditions, want)
			}
		}
	})
}

// TestQuotaChangesUnderLoad: a quota that becomes smaller than what is there stops what comes and ends nothing; the
// condition says so, and when it grows the rest comes.
func TestQuotaChangesUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := startBad(t)
		quotas := bad.CoreV1().ResourceQuotas("bad")
		limit := func(n string) corev1.ResourceQuotaSpec {
			return corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}}
		}
		q, err := quotas.Create(t.Context(),
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: limit("3")}, metav1.CreateOptions{})
		must(t)(q, err)
		synctest.Wait() // until admission follows the quota
		must(t)(bad.AppsV1().Deployments("bad").Create(t.Context(), deployment("many", 6), metav1.CreateOptions{}))
		have := func(n int, hard string) func() (bool, error) {
			return func() (bool, error) {
				l, err := bad.CoreV1().Pods("bad").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
				used := q.Status.Used[corev1.ResourcePods]
				most := q.Status.Hard[corev1.ResourcePods]
				return len(l.Items) == n && int(used.Value()) == n && most.String() == hard, err
			}
		}
		clustertest.Eventually(t, "3 of 6 pods", 5*time.Minute, have(3, "3"))
		set := func(n string) {
			q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
			must(t)(q, err)
			q.Spec = limit(n)
			must(t)(quotas.Update(t.Context(), q, metav1.UpdateOptions{}))
		}
		set("1")
		clustertest.Eventually(t, "what is there stays", 5*time.Minute, have(3, "1"))
		bad.event("bad", "FailedCreate", ownedBy(t, bad, "many"), "exceeded quota: q")
		bad.calm(60)
		d, err := bad.AppsV1().Deployments("bad").Get(t.Context(), "many", metav1.GetOptions{})
		must(t)(d, err)
		said := false
		for _, c := range d.Status.Conditions {
			said = said || c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue &&
				c.Reason == "FailedCreate"
		}
		if !said {
			t.Errorf("conditions %+v, want ReplicaFailure", d.Status.Conditions)
		}
		set("10")
		clustertest.Eventually(t, "all pods", 30*time.Minute, have(6, "10"))
	})
}

// ownedBy is the name of a Deployment's ReplicaSet.
func ownedBy(t *testing.T, b *bad, name string) string {
	t.Helper()
	l, err := b.AppsV1().ReplicaSets("bad").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil || len(l.Items) != 1 {
		t.Fatalf("replica sets of %s: %d, %v", name, len(l.Items), err)
	}
	return l.Items[0].Name
}

// TestClaimTemplatesAreFixed: an edit of a StatefulSet's claim templates is refused with the field, and changes
// nothing.
func TestClaimTemplatesAreFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := startBad(t)
		d := deployment("db", 1)
		set := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "db"},
			Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(1)),
				Selector: d.Spec.Selector,
				Template: d.Spec.Template,
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
					ObjectMeta: metav1.ObjectMeta{Name: "data"},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources: corev1.VolumeResourceRequirements{
							Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
						},
					},
				}},
			},
		}
		set, err := bad.AppsV1().StatefulSets("bad").Create(t.Context(), set, metav1.CreateOptions{})
		must(t)(set, err)
		time.Sleep(time.Minute)
		set, err = bad.AppsV1().StatefulSets("bad").Get(t.Context(), "db", metav1.GetOptions{})
		must(t)(set, err)
		set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		_, err = bad.AppsV1().StatefulSets("bad").Update(t.Context(), set, metav1.UpdateOptions{})
		if !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), "updates to statefulset spec for fields other than") {
			t.Errorf("got %v, want it refused", err)
		}
		bad.calm(0)
		claim, err := bad.CoreV1().PersistentVolumeClaims("bad").Get(t.Context(), "data-db-0", metav1.GetOptions{})
		if err != nil || claim.Spec.Resources.Requests.Storage().String() != "1Gi" {
			t.Errorf("claim %+v, %v", claim.Spec.Resources, err)
		}
	})
}
