// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podfacts "keelson/api/core/pod"
	"keelson/api/metrics"
	"keelson/cluster/clustertest"
)

// state is what there is in the namespace.
type state struct {
	// calm: nothing has broken. A pod that was evicted or lost when its set was scaled down leaves its claim, in
	// Kubernetes as here: what would have made the claim go is the end of that pod.
	calm    bool
	laws    *laws
	pods    []corev1.Pod
	owners  map[types.UID]bool
	allJobs []batchv1.Job
}

// wrongs says what is not as the objects ask; nothing: the cluster has converged.
func wrongs(ctx context.Context, cluster *clustertest.Cluster, l *laws, calm bool) (out []string, err error) {
	wrong := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	s := state{calm: calm, laws: l, owners: map[types.UID]bool{}}
	pods, err := cluster.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	s.pods = pods.Items
	for _, look := range []func(context.Context, *clustertest.Cluster, func(string, ...any)) error{
		s.sets, s.controllers, s.stateful, s.daemons, s.jobs, s.crons, s.autoscalers, nodes,
	} {
		if err := look(ctx, cluster, wrong); err != nil {
			return nil, err
		}
	}
	for i := range s.pods {
		pod := &s.pods[i]
		owner := metav1.GetControllerOf(pod)
		switch {
		case pod.DeletionTimestamp != nil:
			wrong("pod %s is still being deleted", pod.Name)
		case owner == nil:
			wrong("pod %s has no owner", pod.Name)
		case !s.owners[owner.UID]:
			wrong("pod %s is an orphan: its %s %s is gone", pod.Name, owner.Kind, owner.Name)
		}
		if scheduled := podfacts.Condition(pod, corev1.PodScheduled); pod.Spec.NodeName != "" &&
			(scheduled == nil || scheduled.Status != corev1.ConditionTrue) {
			wrong("pod %s is bound to %s and says %+v", pod.Name, pod.Spec.NodeName, scheduled)
		}
	}
	return out, s.quota(ctx, cluster, wrong)
}

// of are the pods that an owner controls, by whether they are active.
func (s *state) of(owner types.UID) (active, all []*corev1.Pod) {
	for i := range s.pods {
		if o := metav1.GetControllerOf(&s.pods[i]); o != nil && o.UID == owner {
			all = append(all, &s.pods[i])
			if podfacts.Active(&s.pods[i]) {
				active = append(active, &s.pods[i])
			}
		}
	}
	return active, all
}

// sets looks at replica sets and deployments.
func (s *state) sets(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	sets, err := c.AppsV1().ReplicaSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	deployments, err := c.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	live := map[types.UID]bool{}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		live[d.UID] = true
		want := *d.Spec.Replicas
		st := d.Status
		if d.DeletionTimestamp != nil || st.ObservedGeneration != d.Generation || st.Replicas != want ||
			st.UpdatedReplicas != want || st.AvailableReplicas != want {
			wrong("deployment %s wants %d, generation %d: %+v", d.Name, want, d.Generation, st)
		}
	}
	for i := range sets.Items {
		rs := &sets.Items[i]
		s.owners[rs.UID] = true
		active, _ := s.of(rs.UID)
		if n := int32(len(active)); rs.DeletionTimestamp != nil || n != *rs.Spec.Replicas || rs.Status.Replicas != n ||
			rs.Status.ReadyReplicas != n || rs.Status.ObservedGeneration != rs.Generation {
			wrong("replica set %s wants %d, has %d: %+v", rs.Name, *rs.Spec.Replicas, n, rs.Status)
		}
		if o := metav1.GetControllerOf(rs); o != nil && !live[o.UID] {
			wrong("replica set %s is an orphan: %s %s is gone", rs.Name, o.Kind, o.Name)
		}
	}
	return nil
}

func (s *state) controllers(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	all, err := c.CoreV1().ReplicationControllers(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		rc := &all.Items[i]
		s.owners[rc.UID] = true
		active, _ := s.of(rc.UID)
		if n := int32(len(active)); rc.DeletionTimestamp != nil || n != *rc.Spec.Replicas || rc.Status.Replicas != n ||
			rc.Status.ReadyReplicas != n || rc.Status.ObservedGeneration != rc.Generation {
			wrong("replication controller %s wants %d, has %d: %+v", rc.Name, *rc.Spec.Replicas, n, rc.Status)
		}
	}
	return nil
}

func (s *state) stateful(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	claims, err := c.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	stateful, err := c.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range stateful.Items {
		set := &stateful.Items[i]
		s.owners[set.UID] = true
		active, _ := s.of(set.UID)
		var want, have []string
		for k := range *set.Spec.Replicas {
			want = append(want, fmt.Sprintf("%s-%d", set.Name, k))
		}
		for _, p := range active {
			have = append(have, p.Name)
		}
		slices.Sort(have)
		n := *set.Spec.Replicas
		st := set.Status
		if set.DeletionTimestamp != nil || !slices.Equal(have, want) || st.Replicas != n || st.ReadyReplicas != n ||
			st.ObservedGeneration != set.Generation || st.CurrentRevision != st.UpdateRevision {
			wrong("stateful set %s wants %v, has %v: %+v", set.Name, want, have, st)
		}
		s.claimsOf(set, want, claims.Items, wrong)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		for _, o := range claim.OwnerReferences {
			if !s.owners[o.UID] && !slices.ContainsFunc(s.pods, func(p corev1.Pod) bool { return p.UID == o.UID }) {
				wrong("claim %s is an orphan: its %s %s is gone", claim.Name, o.Kind, o.Name)
			}
		}
	}
	return nil
}

// claimsOf looks at the volumes of a set: each pod has its own, and those of others are gone where the set says so.
func (s *state) claimsOf(set *appsv1.StatefulSet, pods []string, claims []corev1.PersistentVolumeClaim, wrong func(
	string, ...any,
),
) {
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return
	}
	others := !s.calm || set.Labels[remade] != "" // claims may be those of an earlier set of that name
	want := map[string]bool{}
	for _, pod := range pods {
		want[set.Spec.VolumeClaimTemplates[0].Name+"-"+pod] = true
	}
	policy := set.Spec.PersistentVolumeClaimRetentionPolicy
	for i := range claims {
		claim := &claims[i]
		switch mine := claim.Labels["app"] == set.Name; {
		case !mine:
		case want[claim.Name]:
			delete(want, claim.Name)
			if claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound {
				wrong("claim %s is %s, deleted %v", claim.Name, claim.Status.Phase, claim.DeletionTimestamp)
			}
		case !others && policy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
			wrong("claim %s is left of a pod that was scaled away", claim.Name)
		}
	}
	for name := range want {
		wrong("there is no claim %s", name)
	}
}

func (s *state) daemons(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	daemons, err := c.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range daemons.Items {
		set := &daemons.Items[i]
		s.owners[set.UID] = true
		active, _ := s.of(set.UID)
		var on []string
		for _, p := range active {
			on = append(on, p.Spec.NodeName)
		}
		slices.Sort(on)
		st := set.Status
		if set.DeletionTimestamp != nil || len(slices.Compact(slices.Clone(on))) != nodeCount ||
			len(on) != nodeCount || st.NumberReady != nodeCount || st.UpdatedNumberScheduled != nodeCount ||
			st.ObservedGeneration != set.Generation {
			wrong("daemon set %s runs on %v: %+v", set.Name, on, st)
		}
	}
	return nil
}

func (s *state) jobs(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	jobs, err := c.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range jobs.Items {
		s.owners[jobs.Items[i].UID] = true
		s.job(&jobs.Items[i], wrong)
	}
	s.allJobs = jobs.Items
	return nil
}

// crons looks at cron jobs, which are suspended by now: their jobs are done, and no more are kept than they say.
func (s *state) crons(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	crons, err := c.BatchV1().CronJobs(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	live := map[types.UID]bool{}
	kept := map[types.UID]int32{}
	for i := range crons.Items {
		live[crons.Items[i].UID] = true
	}
	for i := range s.allJobs {
		o := metav1.GetControllerOf(&s.allJobs[i])
		if o == nil {
			continue
		}
		kept[o.UID]++
		if !live[o.UID] {
			wrong("job %s is an orphan: %s %s is gone", s.allJobs[i].Name, o.Kind, o.Name)
		}
	}
	for i := range crons.Items {
		cj := &crons.Items[i]
		if cj.DeletionTimestamp != nil || len(cj.Status.Active) > 0 ||
			kept[cj.UID] > *cj.Spec.SuccessfulJobsHistoryLimit {
			wrong("cron job %s keeps %d jobs: %+v", cj.Name, kept[cj.UID], cj.Status)
		}
	}
	return nil
}

// autoscalers have their targets at an end of their ranges: all pods are said to be busy, or all idle.
func (s *state) autoscalers(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	all, err := c.AutoscalingV2().HorizontalPodAutoscalers(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		hpa := &all.Items[i]
		deployment, err := c.AppsV1().Deployments(namespace).Get(ctx, hpa.Spec.ScaleTargetRef.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if deployment.DeletionTimestamp != nil || *deployment.Spec.Replicas == 0 {
			continue // it is off
		}
		want := hpa.Spec.MaxReplicas // all pods use all they ask for, which is twice what it wants them to
		if deployment.Spec.Template.Annotations[metrics.AnnotationCPU] == idle {
			want = *hpa.Spec.MinReplicas
		}
		if *deployment.Spec.Replicas != want || hpa.Status.CurrentReplicas != want ||
			hpa.Status.DesiredReplicas != want {
			wrong("autoscaler of %s wants %d, it has %d: %+v", deployment.Name, want, *deployment.Spec.Replicas,
				hpa.Status)
		}
	}
	return nil
}

// nodes are all back, and nothing keeps pods away from them.
func nodes(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	all, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(all.Items) != nodeCount {
		wrong("there are %d nodes", len(all.Items))
	}
	for i := range all.Items {
		if n := &all.Items[i]; len(n.Spec.Taints) > 0 {
			wrong("node %s has taints: %v", n.Name, n.Spec.Taints)
		}
	}
	return nil
}

// job is done. A pod whose creation was not learned of is created again: when the controllers die before they have
// deleted the one too many, it may succeed as well.
func (s *state) job(j *batchv1.Job, wrong func(string, ...any)) {
	active, all := s.of(j.UID)
	idle := j.Spec.Suspend != nil && *j.Spec.Suspend || *j.Spec.Parallelism == 0
	st := j.Status
	complete := slices.ContainsFunc(st.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
	})
	switch {
	case j.DeletionTimestamp != nil || len(active) > 0:
		wrong("job %s is not done: %d pods run: %+v", j.Name, len(active), st)
	case complete != (st.Succeeded >= *j.Spec.Completions) || st.Succeeded > *j.Spec.Completions+s.laws.again(
		j.Name) || !complete && !idle:
		wrong("job %s wants %d completions: %+v", j.Name, *j.Spec.Completions, st)
	}
	for _, p := range all {
		if slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) && complete {
			wrong("pod %s of the complete job %s keeps its finalizer", p.Name, j.Name)
		}
	}
}

// quota must have counted exactly.
func (s *state) quota(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
	all, err := c.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var n, cpu int64
	for i := range s.pods {
		if !podfacts.Terminal(&s.pods[i]) {
			n++
			cpu += s.pods[i].Spec.Containers[0].Resources.Requests.Cpu().Value()
		}
	}
	for _, q := range all.Items {
		if used := q.Status.Used; used.Pods().Value() != n || used.Name(corev1.ResourceRequestsCPU, "").Value() != cpu {
			wrong("quota says %s pods, %s CPUs are used; there are %d, %d", used.Pods(),
				used.Name(corev1.ResourceRequestsCPU, ""), n, cpu)
		}
	}
	return nil
}
