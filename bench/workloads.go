// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const workloads = "workloads"

// workloadsScenario measures the controllers of Deployments, garbage collection and namespaces with thousands of
// objects, on fake nodes.
func workloadsScenario(ctx context.Context, e *env) ([]Result, error) {
	if err := waitNodes(ctx, e.client, 1000); err != nil {
		return nil, err
	}
	var results []Result
	for _, part := range []struct {
		name string
		run  func(context.Context, *env) ([]Result, error)
	}{{"1,000 replicas", rolloutPart}, {"10,000 replicas", largePart}, {"dependents", garbagePart}, {
		"namespace", namespacePart,
	}} {
		before, err := usageOf(string(e.dir))
		if err != nil {
			return results, err
		}
		rs, err := part.run(ctx, e)
		results = append(results, rs...)
		if err != nil {
			return results, fmt.Errorf("%s: %w", part.name, err)
		}
		after, err := usageOf(string(e.dir))
		if err != nil {
			return results, err
		}
		// CPU time depends less on other load of the machine than durations do.
		results = append(results, figure(part.name+", all of it: processor time", after.cpu-before.cpu, 0))
	}
	return results, nil
}

// figure is a duration in seconds.
func figure(name string, d time.Duration, limit float64) Result {
	return Result{
		Scenario: workloads,
		Figure:   name,
		Value:    d.Seconds(),
		Unit:     "s",
		Limit:    limit,
	}
}

// rolloutPart: a Deployment of 1,000 replicas is created, rolled out with another template, and deleted.
func rolloutPart(ctx context.Context, e *env) ([]Result, error) {
	const replicas = 1000
	times, err := e.createDeployment(ctx, "roll", replicas)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"revision":"2"}}}}}`)
	d, err := e.client.AppsV1().Deployments(namespace).Patch(ctx, "roll", types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	if err := e.waitRollout(ctx, "roll", d.Generation, replicas); err != nil {
		return nil, err
	}
	rolled := time.Since(begin)
	gone, err := e.deleteDeployment(ctx, "roll")
	if err != nil {
		return nil, err
	}
	return []Result{
		figure("Deployment of 1,000: all pods exist", times.exist, 0.5),
		figure("Deployment of 1,000: all pods bound", times.bound, 1),
		figure("rolling update of 1,000", rolled, 5), figure("Deployment of 1,000 deleted to its last pod", gone, 0),
	}, nil
}

// largePart: the same with 10,000 replicas, without a rollout.
func largePart(ctx context.Context, e *env) ([]Result, error) {
	times, err := e.createDeployment(ctx, "large", 10000)
	if err != nil {
		return nil, err
	}
	gone, err := e.deleteDeployment(ctx, "large")
	if err != nil {
		return nil, err
	}
	return []Result{
		figure("Deployment of 10,000: all pods exist", times.exist, 0),
		figure("Deployment of 10,000: all pods bound", times.bound, 10),
		figure("Deployment of 10,000 deleted to its last pod", gone, 0),
	}, nil
}

// garbagePart: an owner of 10,000 objects is deleted with background propagation.
func garbagePart(ctx context.Context, e *env) ([]Result, error) {
	configs := e.client.CoreV1().ConfigMaps(namespace)
	owner, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}},
		metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	ref := metav1.OwnerReference{
		APIVersion: "v1",
		Kind:       "ConfigMap",
		Name:       owner.Name,
		UID:        owner.UID,
	}
	if err := e.fillConfigMaps(ctx, namespace, 10000, ref); err != nil {
		return nil, err
	}
	took, err := e.untilGone(ctx, func(o metav1.ListOptions) (watch.Interface, error) { return configs.Watch(ctx, o) },
		"bench=filled", 10000, func() error {
			return configs.Delete(ctx, owner.Name, metav1.DeleteOptions{})
		})
	return []Result{figure("10,000 dependents collected", took, 5)}, err
}

// namespacePart: a namespace with 10,000 objects is deleted.
func namespacePart(ctx context.Context, e *env) ([]Result, error) {
	const name = "bench-full"
	spaces := e.client.CoreV1().Namespaces()
	if _, err := spaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := e.fillConfigMaps(ctx, name, 10000); err != nil {
		return nil, err
	}
	took, err := e.untilGone(ctx, func(o metav1.ListOptions) (watch.Interface, error) {
		o.LabelSelector = ""
		o.FieldSelector = "metadata.name=" + name
		return spaces.Watch(ctx, o)
	}, "", 1, func() error { return spaces.Delete(ctx, name, metav1.DeleteOptions{}) })
	return []Result{figure("namespace with 10,000 objects gone", took, 5)}, err
}

func (e *env) fillConfigMaps(ctx context.Context, ns string, n int, owners ...metav1.OwnerReference) error {
	group, ctx := errgroup.WithContext(ctx)
	const clients = 64
	for c := range clients {
		group.Go(func() error {
			for i := c; i < n; i += clients {
				_, err := e.client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{
						Name: "filled-" + strconv.Itoa(i),
						Labels: map[string]string{
							"bench": "filled",
						},
						OwnerReferences: owners,
					},
					Data: map[string]string{"key": "value"},
				}, metav1.CreateOptions{})
				if err != nil && !apierrors.IsAlreadyExists(err) {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// deploymentTimes are durations since the creation.
type deploymentTimes struct{ exist, bound time.Duration }

// createDeployment waits until all pods of a new Deployment are available.
func (e *env) createDeployment(ctx context.Context, name string, replicas int32) (deploymentTimes, error) {
	var times deploymentTimes
	watcher, err := e.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return times, err
	}
	defer watcher.Stop()
	begin := time.Now()
	deployment, err := e.client.AppsV1().Deployments(namespace).Create(ctx, fakeDeployment(name, replicas),
		metav1.CreateOptions{})
	if err != nil {
		return times, err
	}
	exist := map[string]bool{}
	bound := map[string]bool{}
	err = waitPods(ctx, watcher, int(replicas), func(p *corev1.Pod) bool {
		if exist[p.Name] = true; len(exist) == int(replicas) && times.exist == 0 {
			times.exist = time.Since(begin)
		}
		bound[p.Name] = bound[p.Name] || p.Spec.NodeName != ""
		return bound[p.Name]
	})
	if err != nil {
		return times, err
	}
	times.bound = time.Since(begin)
	return times, e.waitRollout(ctx, name, deployment.Generation, replicas)
}

// waitRollout waits for the condition of `kubectl rollout status`.
func (e *env) waitRollout(ctx context.Context, name string, generation int64, replicas int32) error {
	watcher, err := e.client.AppsV1().Deployments(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + name,
	})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	limit := time.After(waitLimit)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("deployment %s is not rolled out after %s", name, waitLimit)
		case ev, ok := <-watcher.ResultChan():
			if !ok {
				return fmt.Errorf("the watch of deployment %s ended", name)
			}
			d, ok := ev.Object.(*appsv1.Deployment)
			if !ok {
				continue
			}
			if s := d.Status; s.ObservedGeneration >= generation && s.UpdatedReplicas == replicas &&
				s.Replicas == replicas && s.AvailableReplicas == replicas {
				return nil
			}
		}
	}
}

func (e *env) deleteDeployment(ctx context.Context, name string) (time.Duration, error) {
	pods, err := e.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return 0, err
	}
	watch := func(o metav1.ListOptions) (watch.Interface, error) {
		o.ResourceVersion = pods.ResourceVersion // pods may already be terminating
		return e.client.CoreV1().Pods(namespace).Watch(ctx, o)
	}
	return e.untilGone(ctx, watch, "app="+name, len(pods.Items), func() error {
		return e.client.AppsV1().Deployments(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// untilGone calls end and measures the time until n of the watched objects are deleted.
func (e *env) untilGone(
	ctx context.Context, open func(metav1.ListOptions) (watch.Interface, error), selector string, n int,
	end func() error,
) (time.Duration, error) {
	watcher, err := open(metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	begin := time.Now()
	if err := end(); err != nil {
		return 0, err
	}
	limit := time.After(waitLimit)
	for gone := 0; gone < n; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-limit:
			return 0, fmt.Errorf("%d of %d objects are gone after %s", gone, n, waitLimit)
		case ev, ok := <-watcher.ResultChan():
			if !ok {
				return 0, fmt.Errorf("the watch ended with %d of %d objects gone", gone, n)
			}
			if ev.Type == watch.Deleted {
				gone++
			}
		}
	}
	return time.Since(begin), nil
}

// fakeDeployment is a Deployment for fake nodes.
func fakeDeployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers:   []corev1.Container{{Name: "main", Image: image}},
					NodeSelector: map[string]string{"type": "keelson-fake"},
					Tolerations:  []corev1.Toleration{{Key: "keelson.dev/fake", Operator: corev1.TolerationOpExists}},
				},
			},
		},
	}
}
