// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Parameters of the scenario "endpoints".
const (
	smallServices = 100
	podsOfService = 10
	readinesses   = 100
)

// endpointsScenario measures the time from a pod's status write (Ready) to the watch event of its EndpointSlice, in a
// cluster of 1,000 fake pods: for Services of ten pods, and for one Service of all pods.
func endpointsScenario(ctx context.Context, e *env) ([]Result, error) {
	var group errgroup.Group
	group.SetLimit(16)
	for i := range smallServices {
		name := "s" + strconv.Itoa(i)
		group.Go(func() error { return e.service(ctx, name, map[string]string{"app": name}) })
		for j := range podsOfService {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%d", name, j),
					Labels: map[string]string{
						"app": name,
						"all": "yes",
					},
				},
				Spec: corev1.PodSpec{
					NodeName:   "fake-" + strconv.Itoa(j),
					Containers: []corev1.Container{{Name: "main", Image: image}},
				},
			}
			group.Go(func() error {
				_, err := e.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var out []Result
	for _, part := range []struct {
		figure string
		limit  float64
		before func() error
	}{
		{"ready to slice seen, 100 services of 10 pods", 50, func() error { return nil }},
		{
			"the same, and one service of 1,000 pods", 100, func() error {
				return e.service(ctx, "all", map[string]string{"all": "yes"})
			},
		},
	} {
		if err := part.before(); err != nil {
			return nil, err
		}
		took, err := e.readinesses(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out,
			Result{
				Scenario: "endpoints",
				Figure:   part.figure + ", p50",
				Value:    ms(took[len(took)/2]),
				Unit:     "ms",
				Limit:    part.limit,
			},
			Result{
				Scenario: "endpoints",
				Figure:   part.figure + ", p99",
				Value:    ms(took[len(took)*99/100]),
				Unit:     "ms",
			})
	}
	return out, nil
}

func (e *env) service(ctx context.Context, name string, selector map[string]string) error {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	_, err := e.client.CoreV1().Services(namespace).Create(ctx, s, metav1.CreateOptions{})
	return err
}

// readinesses makes pods unready and ready one after another. It returns the sorted times until all slices with the pod
// show it ready.
func (e *env) readinesses(ctx context.Context) ([]time.Duration, error) {
	w, err := e.client.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	seen := sliceWatcher{events: w.ResultChan(), ready: map[string]map[string]bool{}}
	if err := seen.until(ctx, func() bool { return seen.count() >= smallServices*podsOfService }); err != nil {
		return nil, err
	}
	// The simulated kubelet would set the pod ready again at once, so its node is silenced. A silent node is marked
	// after 40 s; this takes less.
	for i := range podsOfService {
		if err := e.patchNode(ctx, "fake-"+strconv.Itoa(i),
			`{"metadata":{"annotations":{"keelson.dev/silent":""}}}`); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, 3*time.Second); err != nil { // wait until the slices no longer change from the pods' start
		return nil, err
	}
	var took []time.Duration
	for i := range readinesses {
		pod := fmt.Sprintf("s%d-%d", i%smallServices, i/10%podsOfService)
		for _, ready := range []bool{false, true} {
			begin := time.Now()
			if err := e.setReady(ctx, pod, ready); err != nil {
				return nil, err
			}
			if err := seen.until(ctx, func() bool { return seen.all(pod, ready) }); err != nil {
				return nil, err
			}
			if ready {
				took = append(took, time.Since(begin))
			}
		}
	}
	slices.Sort(took)
	return took, nil
}

func (e *env) setReady(ctx context.Context, pod string, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
	_, err := e.client.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	return err
}

// sliceWatcher watches EndpointSlices and records which pods are ready in each.
type sliceWatcher struct {
	events <-chan watch.Event
	ready  map[string]map[string]bool
}

func (s *sliceWatcher) until(ctx context.Context, done func() bool) error {
	limit := time.After(waitLimit)
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("the slices do not show it after %s; %d pods are ready", waitLimit, s.count())
		case ev, ok := <-s.events:
			if !ok {
				return fmt.Errorf("the watch of endpoint slices ended")
			}
			slice, ok := ev.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return fmt.Errorf("watch of endpoint slices: %v", ev.Object)
			}
			delete(s.ready, slice.Name)
			if ev.Type == watch.Deleted {
				continue
			}
			pods := map[string]bool{}
			for i := range slice.Endpoints {
				if e := &slice.Endpoints[i]; e.TargetRef != nil {
					pods[e.TargetRef.Name] = e.Conditions.Ready != nil && *e.Conditions.Ready
				}
			}
			s.ready[slice.Name] = pods
		}
	}
	return nil
}

// count is the number of ready endpoints.
func (s *sliceWatcher) count() int {
	n := 0
	for pods := range maps.Values(s.ready) {
		for ready := range maps.Values(pods) {
			if ready {
				n++
			}
		}
	}
	return n
}

// all reports whether every slice that contains the pod shows it with this readiness.
func (s *sliceWatcher) all(pod string, ready bool) bool {
	for pods := range maps.Values(s.ready) {
		if is, ok := pods[pod]; ok && is != ready {
			return false
		}
	}
	return true
}
