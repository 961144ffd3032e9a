// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace = "default"
	image     = "keelson.local/hello"
	waitLimit = 2 * time.Minute
)

// startScenario: from the process start to node Ready, on an empty data directory (until `up --detach` returns).
func startScenario(_ context.Context, e *env) ([]Result, error) {
	return []Result{{
		Scenario: "start",
		Figure:   "empty directory to Ready node",
		Value:    ms(e.up),
		Unit:     "ms",
		Limit:    1000,
	}}, nil
}

// replicaSetScenario: a ReplicaSet of two pods, from its creation to both Ready, with the image present. It reports the
// best and all of three runs.
func replicaSetScenario(ctx context.Context, e *env) ([]Result, error) {
	var worst time.Duration
	for i := range 3 {
		d, err := e.timeReplicaSet(ctx, "pair-"+strconv.Itoa(i), 2)
		if err != nil {
			return nil, err
		}
		worst = max(worst, d)
	}
	return []Result{{
		Scenario: "replicaset",
		Figure:   "2 replicas created to Ready, worst of 3",
		Value:    ms(worst),
		Unit:     "ms",
		Limit:    400,
	}}, nil
}

// podsScenario: 50 replicas at once, until the last one is Ready.
func podsScenario(ctx context.Context, e *env) ([]Result, error) {
	d, err := e.timeReplicaSet(ctx, "many", 50)
	if err != nil {
		return nil, err
	}
	return []Result{{
		Scenario: "pods50",
		Figure:   "50 pods created to Ready",
		Value:    d.Seconds(),
		Unit:     "s",
		Limit:    5,
	}}, nil
}

func (e *env) timeReplicaSet(ctx context.Context, name string, replicas int32) (time.Duration, error) {
	labels := map[string]string{"app": name}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
			},
		},
	}
	w, err := e.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	begin := time.Now()
	if _, err := e.client.AppsV1().ReplicaSets(namespace).Create(ctx, rs, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	if err := waitPods(ctx, w, int(replicas), isReady); err != nil {
		return 0, err
	}
	d := time.Since(begin)
	return d, e.client.AppsV1().ReplicaSets(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// waitPods waits until want pods satisfy done.
func waitPods(ctx context.Context, w watch.Interface, want int, done func(*corev1.Pod) bool) error {
	seen := map[string]bool{}
	limit := time.After(waitLimit)
	for len(seen) < want {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("%d of %d pods after %s", len(seen), want, waitLimit)
		case ev, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("the watch ended with %d of %d pods", len(seen), want)
			}
			if p, ok := ev.Object.(*corev1.Pod); ok && done(p) {
				seen[p.Name] = true
			}
		}
	}
	return nil
}

// idleScenario: a minute without load, after a settling time: memory of all processes, disk writes, CPU time.
func idleScenario(ctx context.Context, e *env) ([]Result, error) {
	if err := sleep(ctx, 15*time.Second); err != nil {
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
	cpu := 100 * (after.cpu - before.cpu).Seconds() / span.Seconds()
	return []Result{
		{
			Scenario: "idle",
			Figure:   "resident memory, all processes",
			Value:    float64(after.rss) / 1e6,
			Unit:     "MB",
			Limit:    150,
		},
		{
			Scenario: "idle",
			Figure:   "written to disk in 60 s",
			Value:    float64(after.written-before.written) / 1e3,
			Unit:     "kB",
		},
		{
			Scenario: "idle",
			Figure:   "processor",
			Value:    cpu,
			Unit:     "% of a core",
		},
	}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

type usage struct {
	rss, written int64
	cpu          time.Duration
}

// usageOf sums up the processes whose command line contains the data directory.
func usageOf(dir string) (usage, error) {
	var u usage
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return u, err
	}
	found := false
	for _, e := range entries {
		pid := e.Name()
		if pid[0] < '0' || pid[0] > '9' { // self and thread-self are this process again
			continue
		}
		cmd, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err != nil || !strings.Contains(string(cmd), dir) || pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		found = true
		u.rss += 1024 * procField("/proc/"+pid+"/status", "VmRSS:")
		u.written += procField("/proc/"+pid+"/io", "write_bytes:")
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) > 12 { // utime and stime, in hundredths of a second
			user, _ := strconv.ParseInt(f[11], 10, 64)
			system, _ := strconv.ParseInt(f[12], 10, 64)
			u.cpu += time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	if !found {
		return u, fmt.Errorf("no process of %s", dir)
	}
	return u, nil
}

func procField(path, name string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), name)
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return n
}

// scheduleScenario: a Deployment of 5,000 replicas on 1,000 fake nodes, from its creation to the last pod bound.
func scheduleScenario(ctx context.Context, e *env) ([]Result, error) {
	const replicas = 5000
	if err := waitNodes(ctx, e.client, 1000); err != nil {
		return nil, err
	}
	w, err := e.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=many"})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	begin := time.Now()
	if _, err := e.client.AppsV1().Deployments(namespace).Create(ctx, fakeDeployment("many", replicas),
		metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := waitPods(ctx, w, replicas, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }); err != nil {
		return nil, err
	}
	took := time.Since(begin)
	return []Result{{
		Scenario: "schedule",
		Figure:   "5,000 replicas on 1,000 nodes, created and bound",
		Value:    replicas / took.Seconds(),
		Unit:     "pods/s",
		Limit:    1500,
		Higher:   true,
	}}, nil
}

func waitNodes(ctx context.Context, c kubernetes.Interface, want int) error {
	end := time.Now().Add(waitLimit)
	for {
		nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for i := range nodes.Items {
			tainted := false
			for _, t := range nodes.Items[i].Spec.Taints {
				tainted = tainted || t.Key == corev1.TaintNodeNotReady
			}
			if !tainted && nodes.Items[i].Labels["type"] == "keelson-fake" {
				ready++
			}
		}
		if ready >= want {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d fake nodes are ready after %s", ready, want, waitLimit)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
