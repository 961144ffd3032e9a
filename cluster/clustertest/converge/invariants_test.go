// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	podfacts "keelson/api/core/pod"
	"keelson/cluster/clustertest"
)

// state is what there is in the namespace.
type state struct {
	pods   []corev1.Pod
	owners map[types.UID]bool
}

// wrongs says what is not as the objects ask; nothing: the cluster has converged.
func wrongs(ctx context.Context, c *clustertest.Cluster) (out []string, err error) {
	wrong := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	s := state{owners: map[types.UID]bool{}}
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	s.pods = pods.Items
	if err := s.sets(ctx, c, wrong); err != nil {
		return nil, err
	}
	if err := s.others(ctx, c, wrong); err != nil {
		return nil, err
	}
	for i := range s.pods {
		p := &s.pods[i]
		owner := metav1.GetControllerOf(p)
		switch {
		case p.DeletionTimestamp != nil:
			wrong("pod %s is still being deleted", p.Name)
		case owner == nil:
			wrong("pod %s has no owner", p.Name)
		case !s.owners[owner.UID]:
			wrong("pod %s is an orphan: its %s %s is gone", p.Name, owner.Kind, owner.Name)
		}
		// A slow write of Unschedulable may still arrive after the pod was bound (seed 181); a kubelet of containers corrects it.
		if scheduled := podfacts.Condition(p, corev1.PodScheduled); p.Spec.NodeName != "" && (scheduled == nil || scheduled.Reason == corev1.PodReasonSchedulerError) {
			wrong("pod %s is bound to %s and says %+v", p.Name, p.Spec.NodeName, scheduled)
		}
	}
	return out, s.quota(ctx, c, wrong)
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
		want, st := *d.Spec.Replicas, d.Status
		if d.DeletionTimestamp != nil || st.ObservedGeneration != d.Generation || st.Replicas != want || st.UpdatedReplicas != want || st.AvailableReplicas != want {
			wrong("deployment %s wants %d, generation %d: %+v", d.Name, want, d.Generation, st)
		}
	}
	for i := range sets.Items {
		rs := &sets.Items[i]
		s.owners[rs.UID] = true
		active, _ := s.of(rs.UID)
		if n := int32(len(active)); rs.DeletionTimestamp != nil || n != *rs.Spec.Replicas || rs.Status.Replicas != n || rs.Status.ReadyReplicas != n || rs.Status.ObservedGeneration != rs.Generation {
			wrong("replica set %s wants %d, has %d: %+v", rs.Name, *rs.Spec.Replicas, n, rs.Status)
		}
		if o := metav1.GetControllerOf(rs); o != nil && !live[o.UID] {
			wrong("replica set %s is an orphan: %s %s is gone", rs.Name, o.Kind, o.Name)
		}
	}
	return nil
}

// others looks at stateful sets, daemon sets and jobs.
func (s *state) others(ctx context.Context, c *clustertest.Cluster, wrong func(string, ...any)) error {
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
		n, st := *set.Spec.Replicas, set.Status
		if set.DeletionTimestamp != nil || !slices.Equal(have, want) || st.Replicas != n || st.ReadyReplicas != n || st.ObservedGeneration != set.Generation || st.CurrentRevision != st.UpdateRevision {
			wrong("stateful set %s wants %v, has %v: %+v", set.Name, want, have, st)
		}
	}
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
		if set.DeletionTimestamp != nil || len(slices.Compact(slices.Clone(on))) != nodeCount || len(on) != nodeCount || st.NumberReady != nodeCount || st.UpdatedNumberScheduled != nodeCount || st.ObservedGeneration != set.Generation {
			wrong("daemon set %s runs on %v: %+v", set.Name, on, st)
		}
	}
	jobs, err := c.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range jobs.Items {
		s.owners[jobs.Items[i].UID] = true
		s.job(&jobs.Items[i], wrong)
	}
	return nil
}

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
	case complete != (st.Succeeded == *j.Spec.Completions) || st.Succeeded > *j.Spec.Completions || !complete && !idle:
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
			wrong("quota says %s pods, %s CPUs are used; there are %d, %d", used.Pods(), used.Name(corev1.ResourceRequestsCPU, ""), n, cpu)
		}
	}
	return nil
}

// identities watches that no pod of a stateful set goes away while its node may still run it: its kubelet must have let it go. Nobody
// here deletes by force, and no node object goes.
func identities(ctx context.Context, c *clustertest.Cluster, removed func(pod string) bool, wrong func(string)) {
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) { // the API server may be dead
		w, err := c.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for ev := range w.ResultChan() {
			p, is := ev.Object.(*corev1.Pod)
			if !is || ev.Type != watch.Deleted || p.Spec.NodeName == "" || podfacts.Terminal(p) {
				continue
			}
			if o := metav1.GetControllerOf(p); o != nil && o.Kind == "StatefulSet" && !removed(p.Name) {
				wrong(fmt.Sprintf("%s: pod %s was removed while %s may run it", time.Now().UTC().Format("15:04:05.000"), p.Name, p.Spec.NodeName))
			}
		}
	}
}
