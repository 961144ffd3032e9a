// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func get(t *testing.T, c *controllertest.Cluster) *appsv1.Deployment {
	t.Helper()
	d, err := c.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func sets(t *testing.T, c *controllertest.Cluster) []appsv1.ReplicaSet {
	t.Helper()
	l, err := c.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(l.Items, func(a, b appsv1.ReplicaSet) int { return byAge(&a, &b) })
	return l.Items
}

// populate plays the replicaset controller and the kubelets: all pods of all sets are there.
func populate(t *testing.T, cluster *controllertest.Cluster) {
	t.Helper()
	for _, listed := range sets(t, cluster) {
		synctest.Wait() // the controller may write the next set after the last one's new status
		set, err := cluster.AppsV1().ReplicaSets("default").Get(t.Context(), listed.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		n := *set.Spec.Replicas
		zero := int32(0)
		set.Status = appsv1.ReplicaSetStatus{
			Replicas:            n,
			ReadyReplicas:       n,
			AvailableReplicas:   n,
			TerminatingReplicas: &zero,
			ObservedGeneration:  set.Generation,
		}
		if _, err := cluster.AppsV1().ReplicaSets("default").UpdateStatus(t.Context(), set,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
}

func TestRollsOutAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(deploy(2, "1", "0"))
		cluster.Start(t, "deployment-controller", New)
		time.Sleep(time.Second)
		if got := sets(t, cluster); len(got) != 1 || *got[0].Spec.Replicas != 2 ||
			got[0].Name != "web-"+got[0].Labels[appsv1.DefaultDeploymentUniqueLabelKey] {
			t.Fatalf("sets: got %+v", got)
		}
		first := sets(t, cluster)[0].Name
		if got, want := cluster.EventsSeen(), "Normal ScalingReplicaSet Scaled up replica set "+first+
			" from 0 to 2"; !slices.Equal(got, []string{want}) {
			t.Errorf("events: got %q, want %q", got, want)
		}
		populate(t, cluster)
		deployment := get(t, cluster)
		if deployment.Annotations[revisionAnnotation] != "1" || !isComplete(deployment, &deployment.Status) {
			t.Errorf("after the first rollout: got %v, %+v", deployment.Annotations, deployment.Status)
		}
		for rev, image := range map[string]string{"2": "v3"} {
			deployment.Spec.Template = template(image)
			if _, err := cluster.AppsV1().Deployments("default").Update(t.Context(), deployment,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for range 6 {
				populate(t, cluster)
			}
			deployment = get(t, cluster)
			if deployment.Annotations[revisionAnnotation] != rev || deployment.Status.UpdatedReplicas != 2 ||
				deployment.Status.Replicas != 2 {
				t.Errorf("after %s: got revision %s, %+v", image, deployment.Annotations[revisionAnnotation],
					deployment.Status)
			}
		}
		deployment.Spec.Template = template("v2") // as kubectl rollout undo does
		if _, err := cluster.AppsV1().Deployments("default").Update(t.Context(), deployment,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for range 6 {
			populate(t, cluster)
		}
		got := sets(t, cluster)
		if len(got) != 2 || got[0].Name != first || *got[0].Spec.Replicas != 2 ||
			got[0].Annotations[revisionAnnotation] != "3" {
			t.Errorf("after undo: got %d sets, first %s with %d replicas, revision %s", len(got), got[0].Name,
				*got[0].Spec.Replicas, got[0].Annotations[revisionAnnotation])
		}
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(deploy(2, "1", "0"))
		cluster.Start(t, "deployment-controller", New)
		time.Sleep(9 * time.Minute)
		reason := func() string {
			return framework.ConditionOf(get(t, cluster).Status.Conditions, appsv1.DeploymentProgressing).Reason
		}
		if got := reason(); got != newSetCreated {
			t.Errorf("before the deadline: got %s", got)
		}
		time.Sleep(2 * time.Minute)
		if got := reason(); got != timedOut {
			t.Errorf("after the deadline: got %s", got)
		}
		populate(t, cluster)
		if got := reason(); got != newSetAvailable {
			t.Errorf("once it worked: got %s", got)
		}
	})
}

func TestCollision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(1, "1", "0")
		other := newSet(d)
		other.OwnerReferences = nil
		other.Labels = map[string]string{"app": "other"}
		other.Spec.Template = template("other")
		one := int32(1)
		other.Spec.Replicas = &one
		c := controllertest.New(d, other)
		c.Start(t, "deployment-controller", New)
		time.Sleep(time.Minute)
		got := sets(t, c)
		if n := get(t, c).Status.CollisionCount; len(got) != 2 || n == nil || *n != 1 {
			t.Errorf("got %d sets, collision count %v; want 2 and 1", len(got), n)
		}
	})
}

func TestCreateErrorIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(deploy(1, "1", "0"))
		c.Fake.PrependReactor("create", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no room")
		})
		c.Start(t, "deployment-controller", New)
		time.Sleep(time.Second)
		cond := framework.ConditionOf(get(t, c).Status.Conditions, appsv1.DeploymentProgressing)
		if cond == nil || cond.Reason != setCreateError || cond.Status != "False" {
			t.Errorf("progressing: got %+v", cond)
		}
	})
}
