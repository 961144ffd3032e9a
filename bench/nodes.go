// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// heartbeatsScenario: 5,000 nodes renew their leases every ten seconds, like kubelets, for a minute without other load.
func heartbeatsScenario(ctx context.Context, e *env) ([]Result, error) {
	if err := waitNodes(ctx, e.client, 5000); err != nil {
		return nil, err
	}
	if err := sleep(ctx, 20*time.Second); err != nil {
		return nil, err
	}
	before, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	const span = time.Minute
	if err := sleep(ctx, span); err != nil {
		return nil, err
	}
	after, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	return []Result{
		{
			Scenario: "heartbeats",
			Figure:   "processor, 5,000 nodes with leases of 10 s",
			Value:    100 * (after.cpu - before.cpu).Seconds() / span.Seconds(),
			Unit:     "% of a core",
			Limit:    50,
		},
		{
			Scenario: "heartbeats",
			Figure:   "resident memory, all processes",
			Value:    float64(after.rss) / 1e6,
			Unit:     "MB",
		},
	}, nil
}

// Parameters of nodeLossScenario.
const (
	lostNodes  = 100
	podsOfEach = 30
	lossLabel  = "bench.keelson.dev/lost"
	// lossRate is the --node-eviction-rate of the scenario's cluster. With the default 0.1 it would take a quarter of
	// an hour.
	lossRate = 2
)

// nodeLossScenario: 100 of 5,000 nodes with 30 pods each lose power at once. It measures the eviction rate of nodes (it
// must be the configured one), the time until all pods run elsewhere, and meanwhile the time of other pods from
// creation to Running.
func nodeLossScenario(ctx context.Context, e *env) ([]Result, error) {
	if err := waitNodes(ctx, e.client, 5000); err != nil {
		return nil, err
	}
	names, err := e.labelNodes(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.fillLost(ctx); err != nil {
		return nil, err
	}
	calm, err := e.createToRunning(ctx, 10*time.Second)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := e.patchNode(ctx, name, `{"metadata":{"annotations":{"keelson.dev/silent":""}}}`); err != nil {
			return nil, err
		}
	}
	var (
		wg      sync.WaitGroup
		busy    time.Duration
		busyErr error
	)
	first, err := e.waitEvicted(ctx, 1)
	if err != nil {
		return nil, err
	}
	wg.Go(func() { busy, busyErr = e.createToRunning(ctx, lostNodes/lossRate*time.Second) })
	last, err := e.waitEvicted(ctx, lostNodes)
	wg.Wait()
	if err := errors.Join(err, busyErr); err != nil {
		return nil, err
	}
	moved, err := e.waitMoved(ctx, last)
	if err != nil {
		return nil, err
	}
	rate := float64(lostNodes-1) / last.Sub(first).Seconds()
	return []Result{
		{
			Scenario: "nodeloss",
			Figure:   "nodes evicted from per second, at --node-eviction-rate 2",
			Value:    rate,
			Unit:     "nodes/s",
			Limit:    1.05 * lossRate,
		},
		{
			Scenario: "nodeloss",
			Figure:   "the same, not to be slower than",
			Value:    rate,
			Unit:     "nodes/s",
			Limit:    0.9 * lossRate,
			Higher:   true,
		},
		{
			Scenario: "nodeloss",
			Figure:   "last eviction to all 3,000 pods running elsewhere",
			Value:    moved.Seconds(),
			Unit:     "s",
			Limit:    10,
		},
		{
			Scenario: "nodeloss",
			Figure:   "other pods, create to Running, median before",
			Value:    ms(calm),
			Unit:     "ms",
		},
		{
			Scenario: "nodeloss",
			Figure:   "other pods, create to Running, median meanwhile",
			Value:    ms(busy),
			Unit:     "ms",
			Limit:    max(200, 3*ms(calm)),
		},
	}, nil
}

func (e *env) patchNode(ctx context.Context, name, patch string) error {
	_, err := e.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// labelNodes labels the nodes that will be lost and returns their names.
func (e *env) labelNodes(ctx context.Context) ([]string, error) {
	var names []string
	for i := range lostNodes {
		names = append(names, fmt.Sprintf("fake-%d", 50*i))
		if err := e.patchNode(ctx, names[i], `{"metadata":{"labels":{"`+lossLabel+`":"yes"}}}`); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// lossPod is a pod of the scenario. With prefer it prefers the nodes that will be lost.
func lossPod(prefer bool) corev1.PodSpec {
	second := int64(1)
	spec := corev1.PodSpec{
		Containers:   []corev1.Container{{Name: "main", Image: image}},
		NodeSelector: map[string]string{"type": "keelson-fake"},
		Tolerations: []corev1.Toleration{
			{Key: "keelson.dev/fake", Operator: corev1.TolerationOpExists},
			{
				Key:               corev1.TaintNodeUnreachable,
				Operator:          corev1.TolerationOpExists,
				Effect:            corev1.TaintEffectNoExecute,
				TolerationSeconds: &second,
			},
		},
	}
	if prefer {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: lossLabel, Operator: corev1.NodeSelectorOpExists},
				}},
			}},
		}}
		// The same number on each.
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew:           podsOfEach,
			TopologyKey:       corev1.LabelHostname,
			WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "lost"}},
		}}
	}
	return spec
}

// fillLost creates the pods that will be lost.
func (e *env) fillLost(ctx context.Context) error {
	n := int32(lostNodes * podsOfEach)
	labels := map[string]string{"app": "lost"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "lost"}}
	d.Spec.Replicas = &n
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = lossPod(true)
	w, err := e.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=lost"})
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, err := e.client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return err
	}
	return waitPods(ctx, w, int(n), isReady)
}

// createToRunning creates pods one after another for span and returns the median time from creation to Ready.
func (e *env) createToRunning(ctx context.Context, span time.Duration) (time.Duration, error) {
	watcher, err := e.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=other"})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	var took []time.Duration
	for end := time.Now().Add(span); time.Now().Before(end); {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: "other-",
				Labels:       map[string]string{"app": "other"},
			},
			Spec: lossPod(false),
		}
		begin := time.Now()
		made, err := e.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return 0, err
		}
		if err := waitPods(ctx, watcher, 1, func(p *corev1.Pod) bool {
			return p.Name == made.Name && isReady(p)
		}); err != nil {
			return 0, err
		}
		took = append(took, time.Since(begin))
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// waitEvicted waits until want nodes have got a NoExecute taint, and returns the time of the last one.
func (e *env) waitEvicted(ctx context.Context, want int) (time.Time, error) {
	end := time.Now().Add(2*waitLimit + lostNodes/lossRate*time.Second)
	for {
		nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: lossLabel})
		if err != nil {
			return time.Time{}, err
		}
		n := 0
		for i := range nodes.Items {
			if slices.ContainsFunc(nodes.Items[i].Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute
			}) {
				n++
			}
		}
		switch {
		case n >= want:
			return time.Now(), nil
		case time.Now().After(end):
			return time.Time{}, fmt.Errorf("%d of %d nodes are evicted from", n, want)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return time.Time{}, err
		}
	}
}

// waitMoved waits until all replicas run on other nodes, and returns the time since then.
func (e *env) waitMoved(ctx context.Context, since time.Time) (time.Duration, error) {
	for end := time.Now().Add(waitLimit); ; {
		d, err := e.client.AppsV1().Deployments(namespace).Get(ctx, "lost", metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		switch {
		case d.Status.ReadyReplicas == lostNodes*podsOfEach:
			return time.Since(since), nil
		case time.Now().After(end):
			return 0, fmt.Errorf("%d of %d replicas are ready", d.Status.ReadyReplicas, lostNodes*podsOfEach)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
