// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

// period is how often an autoscaler is looked at by default.
const period = 15 * time.Second

// world is what the controller sees in addition to its informers: one target called web, and metrics.
type world struct {
	metrics  *Metrics // nil: not looked at
	mu       sync.Mutex
	replicas int32
	selector string
	// cpu is what each pod uses, in thousandths; -1: there are no metrics. answers are those of other paths.
	cpu     int64
	answers map[string]string
	reads   []string
	sets    int
	broken  error // Set says so
}

func (w *world) Get(_ context.Context, _ string, ref *scalingv2.CrossVersionObjectReference) (*targetScale, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ref.Name != "web" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, ref.Name)
	}
	return &targetScale{scale: scale{w.replicas, w.replicas, w.selector}}, nil
}

func (w *world) Set(_ context.Context, _ *targetScale, n int32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return w.broken
	}
	w.replicas = n
	w.sets = w.sets + 1
	return nil
}

func (w *world) Resource(_ context.Context, _, kind string) (target, error) {
	return target{
		schema.GroupVersionResource{Group: "networking.k8s.io", Resource: strings.ToLower(kind) + "es"}, true,
	}, nil
}

func (w *world) Read(_ context.Context, into any, query map[string]string, path ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := "/" + strings.Join(path, "/")
	w.reads = append(w.reads, fmt.Sprint(p, " ", query))
	doc, ok := w.answers[p]
	if strings.Contains(p, "/metrics.k8s.io/") {
		ok = w.cpu >= 0
		var items []string
		for i := range w.replicas {
			items = append(items,
				fmt.Sprintf(
					`{"metadata":{"name":"p%d"},"timestamp":%q,"window":"15s","containers":[{"name":"app","usage":{"cpu":"%dm"}}]}`,
					i, time.Now().UTC().Format(time.RFC3339), w.cpu))
		}
		doc = `{"items":[` + strings.Join(items, ",") + `]}`
	}
	if !ok {
		return errors.New("the server could not find the requested resource")
	}
	return json.Unmarshal([]byte(doc), into)
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) now() int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replicas
}

func autoscaler(name string, change ...func(*scalingv2.HorizontalPodAutoscaler)) *scalingv2.HorizontalPodAutoscaler {
	lowest := int32(2)
	percent := int32(50)
	hpa := &scalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: scalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: scalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1",
				Kind:       "Deployment",
				Name:       "web",
			},
			MinReplicas: &lowest,
			MaxReplicas: 20,
			Metrics: []scalingv2.MetricSpec{{
				Type: scalingv2.ResourceMetricSourceType,
				Resource: &scalingv2.ResourceMetricSource{
					Name:   corev1.ResourceCPU,
					Target: scalingv2.MetricTarget{Type: scalingv2.UtilizationMetricType, AverageUtilization: &percent},
				},
			}},
		},
	}
	for _, f := range change {
		f(hpa)
	}
	return hpa
}

// run starts the controller over a cluster of 20 ready pods and the autoscalers; the first replicas of the pods are the
// target's.
func run(t *testing.T, w *world, hpas ...*scalingv2.HorizontalPodAutoscaler) *controllertest.Cluster {
	t.Helper()
	cluster := controllertest.New()
	for i := range 20 {
		p := aPod(fmt.Sprint("p", i))
		began := metav1.NewTime(time.Now().Add(-time.Hour))
		p.Status.StartTime = &began
		p.Status.Conditions[0].LastTransitionTime = began
		if i >= int(w.replicas) {
			p.Status.Phase = corev1.PodFailed // as good as not there
		}
		if err := cluster.Fake.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range hpas {
		if _, err := cluster.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(), h,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Start(t, "horizontal-pod-autoscaler", func(env *framework.Env) (framework.Controller, error) {
		return build(env, Defaults(), w, w, cmp.Or(w.metrics, NewMetrics()))
	})
	time.Sleep(time.Second)
	return cluster
}

func status(t *testing.T, c *controllertest.Cluster, name string) scalingv2.HorizontalPodAutoscalerStatus {
	t.Helper()
	h, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return h.Status
}

// conditions are "Type Status Reason", in order.
func conditions(st scalingv2.HorizontalPodAutoscalerStatus) string {
	var out []string
	for _, c := range st.Conditions {
		out = append(out, fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestScalesUpAtOnceAndDownAfterFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{replicas: 4, selector: "app=web", cpu: 750}
		cluster := run(t, w, autoscaler("h"))
		if w.now() != 6 {
			t.Fatalf("at 150%% of the target: got %d replicas, want 6", w.now())
		}
		st := status(t, cluster, "h")
		if got, want := conditions(st), "AbleToScale True SucceededRescale, ScaledToZero False NotScaledToZero, "+
			"ScalingActive True ValidMetricFound, ScalingLimited False DesiredWithinRange"; got != want {
			t.Errorf("conditions: got %s, want %s", got, want)
		}
		if st.CurrentReplicas != 4 || st.DesiredReplicas != 6 || st.LastScaleTime == nil ||
			*st.CurrentMetrics[0].Resource.Current.AverageUtilization != 75 {
			t.Errorf("status: got %+v", st)
		}
		if said := cluster.EventsSeen(); len(said) != 1 ||
			said[0] != "Normal SuccessfulRescale New size: 6; reason: cpu resource utilization (percentage of request) above target" {
			t.Errorf("events: got %q", said)
		}
		// less load: no change until nothing higher was recommended for five minutes
		w.set(func() { w.cpu = 100 })
		time.Sleep(4*time.Minute + 50*time.Second)
		if w.now() != 6 || !strings.Contains(conditions(status(t, cluster, "h")),
			"AbleToScale True ScaleDownStabilized") {
			t.Fatalf("before five minutes: got %d, %s", w.now(), conditions(status(t, cluster, "h")))
		}
		time.Sleep(time.Minute)
		if w.now() != 2 {
			t.Errorf("after them: got %d, want the minimum", w.now())
		}
		if got := conditions(status(t, cluster, "h")); !strings.Contains(got, "ScalingLimited True TooFewReplicas") &&
			!strings.Contains(got, "ScalingLimited False DesiredWithinRange") {
			t.Errorf("conditions: got %s", got)
		}
	})
}

// TestQuiet: no request is made without autoscalers, and one pass each 15 seconds with one; a status that stays is not
// written again.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{replicas: 4, selector: "app=web", cpu: 500}
		cluster := run(t, w)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(w.reads) != 0 {
			t.Fatalf("without autoscalers: %q", w.reads)
		}
		if _, err := cluster.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(), autoscaler("h"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		cluster.Fake.ClearActions()
		w.set(func() { w.reads = nil })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(w.reads); n < 39 || n > 41 || w.sets != 0 {
			t.Errorf("ten minutes: %d reads, want 40; %d changes of scale", n, w.sets)
		}
		if n := len(cluster.Fake.Actions()); n != 0 {
			t.Errorf("ten minutes: %v, want no writes", cluster.Fake.Actions())
		}
		if err := cluster.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(t.Context(), "h",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.set(func() { w.reads = nil })
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(w.reads) != 0 {
			t.Errorf("deleted: %d reads", len(w.reads))
		}
	})
}

func TestErrorsAreReported(t *testing.T) {
	external := func(h *scalingv2.HorizontalPodAutoscaler) {
		h.Spec.Metrics = append(h.Spec.Metrics, scalingv2.MetricSpec{
			Type: scalingv2.ExternalMetricSourceType,
			External: &scalingv2.ExternalMetricSource{
				Metric: scalingv2.MetricIdentifier{Name: "queue"},
				Target: scalingv2.MetricTarget{Type: scalingv2.ValueMetricType, Value: milliQuantity(1000)},
			},
		})
	}
	for _, c := range []struct {
		what         string
		w            *world
		hpas         []*scalingv2.HorizontalPodAutoscaler
		want, events string
		replicas     int32
	}{
		{
			"no target", &world{replicas: 4},
			[]*scalingv2.HorizontalPodAutoscaler{
				autoscaler("h", func(h *scalingv2.HorizontalPodAutoscaler) { h.Spec.ScaleTargetRef.Name = "nope" }),
			},
			"AbleToScale False FailedGetScale", `Warning FailedGetScale deployments.apps "nope" not found`, 4,
		},
		{
			"no metrics", &world{replicas: 4, selector: "app=web", cpu: -1},
			[]*scalingv2.HorizontalPodAutoscaler{
				autoscaler("h"),
			},
			"AbleToScale True SucceededGetScale, ScalingActive False FailedGetResourceMetric",
			"Warning FailedComputeMetricsReplicas invalid metrics (1 invalid out of 1), first error is: failed to " +
				"get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource " +
				"cpu: unable to fetch metrics from resource metrics API: the server could not find the requested " +
				"resource", 4,
		},
		{
			"no selector", &world{replicas: 4},
			[]*scalingv2.HorizontalPodAutoscaler{autoscaler("h")},
			"AbleToScale True SucceededGetScale, ScalingActive False InvalidSelector",
			"Warning SelectorRequired selector is required", 4,
		},
		{
			"two of one target", &world{replicas: 4, selector: "app=web", cpu: 500},
			[]*scalingv2.HorizontalPodAutoscaler{autoscaler("h"), autoscaler("other")},
			"AbleToScale True SucceededGetScale, ScalingActive False AmbiguousSelector",
			"Warning AmbiguousSelector pods by selector app=web are controlled by multiple HPAs: [default/h " +
				"default/other]", 4,
		},
		{
			"switched off", &world{selector: "app=web", cpu: 500},
			[]*scalingv2.HorizontalPodAutoscaler{
				autoscaler("h"),
			},
			"AbleToScale True SucceededGetScale, ScalingActive False ScalingDisabled", "", 0,
		},
		{
			"too many", &world{replicas: 50, selector: "app=web", cpu: -1},
			[]*scalingv2.HorizontalPodAutoscaler{
				autoscaler("h"),
			},
			"", "Normal SuccessfulRescale New size: 20; reason: Current number of replicas above Spec.MaxReplicas", 20,
		},
		{
			"too few", &world{replicas: 1, selector: "app=web", cpu: -1},
			[]*scalingv2.HorizontalPodAutoscaler{
				autoscaler("h"),
			},
			"", "Normal SuccessfulRescale New size: 2; reason: Current number of replicas below Spec.MinReplicas", 2,
		},
		{
			"one of two metrics, and it would be fewer", &world{replicas: 4, selector: "app=web", cpu: 100},
			[]*scalingv2.HorizontalPodAutoscaler{autoscaler("h", external)},
			"AbleToScale True SucceededGetScale, ScalingActive False FailedGetExternalMetric",
			"Warning FailedGetExternalMetric unable to get external metric default/queue/nil: unable to fetch " +
				"metrics from external metrics API: the server could not find the requested resource", 4,
		},
		{
			"one of two metrics, and it is more", &world{replicas: 4, selector: "app=web", cpu: 1000},
			[]*scalingv2.HorizontalPodAutoscaler{autoscaler("h", external)},
			"AbleToScale True SucceededRescale, ScaledToZero False NotScaledToZero, ScalingActive True " +
				"ValidMetricFound, ScalingLimited False DesiredWithinRange",
			"Normal SuccessfulRescale New size: 8; reason: cpu resource utilization (percentage of request) above " +
				"target", 8,
		},
		{
			"the scale is refused", &world{
				replicas: 4,
				selector: "app=web",
				cpu:      1000,
				broken:   errors.New("no"),
			},
			[]*scalingv2.HorizontalPodAutoscaler{autoscaler("h")},
			"AbleToScale False FailedUpdateScale, ScalingActive True ValidMetricFound, ScalingLimited False " +
				"DesiredWithinRange",
			"Warning FailedRescale New size: 8; reason: cpu resource utilization (percentage of request) above " +
				"target; error: no", 4,
		},
		{
			"no metrics in the spec", &world{replicas: 4, selector: "app=web"},
			[]*scalingv2.HorizontalPodAutoscaler{
				autoscaler("h", func(h *scalingv2.HorizontalPodAutoscaler) { h.Spec.Metrics = nil }),
			},
			"AbleToScale True SucceededGetScale, ScalingActive False InvalidMetricSourceType",
			"Warning FailedComputeMetricsReplicas no metrics are specified", 4,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster := run(t, c.w, c.hpas...)
			if len(c.hpas) > 1 {
				time.Sleep(period) // both know the pods by then
			}
			got := conditions(status(t, cluster, "h"))
			for want := range strings.SplitSeq(c.want, ", ") {
				if !strings.Contains(got, want) {
					t.Errorf("%s: conditions %s, want %s", c.what, got, c.want)
				}
			}
			if said := cluster.EventsSeen(); c.events != "" && !slices.Contains(said, c.events) {
				t.Errorf("%s: events %q, want %q", c.what, said, c.events)
			}
			if c.w.now() != c.replicas {
				t.Errorf("%s: %d replicas, want %d", c.what, c.w.now(), c.replicas)
			}
			time.Sleep(period) // what follows a change is over
			cluster.Fake.ClearActions()
			c.w.set(func() { c.w.reads = nil })
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := len(cluster.Fake.Actions()); n != 0 {
				t.Errorf("%s: %v in a minute in which nothing changed", c.what, cluster.Fake.Actions())
			}
			if n := len(c.w.reads); n > 8*len(c.hpas) {
				t.Errorf("%s: %d reads in a minute", c.what, n)
			}
		})
	}
}

// TestToZeroAndBack: an autoscaler with an external metric takes its target to zero and wakes it; one that somebody
// else put to zero it leaves.
func TestToZeroAndBack(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue"
	queue := func(n int) string { return fmt.Sprintf(`{"items":[{"value":"%d"},{"value":"%d"}]}`, n/2, n-n/2) }
	synctest.Test(t, func(t *testing.T) {
		w := &world{replicas: 4, selector: "app=web", answers: map[string]string{path: queue(0)}}
		none := int32(0)
		at := int32(0)
		hpa := autoscaler("h", func(h *scalingv2.HorizontalPodAutoscaler) {
			h.Spec.MinReplicas = &none
			h.Spec.Behavior = &scalingv2.HorizontalPodAutoscalerBehavior{
				ScaleUp: rules(0, "Max", policy(scalingv2.PodsScalingPolicy, 10, 15)),
				ScaleDown: &scalingv2.HPAScalingRules{
					StabilizationWindowSeconds: &at,
					Policies: []scalingv2.HPAScalingPolicy{
						policy(scalingv2.PercentScalingPolicy, 100, 15),
					},
				},
			}
			h.Spec.Metrics = []scalingv2.MetricSpec{{
				Type: scalingv2.ExternalMetricSourceType,
				External: &scalingv2.ExternalMetricSource{
					Metric: scalingv2.MetricIdentifier{Name: "queue"},
					Target: scalingv2.MetricTarget{
						Type:         scalingv2.AverageValueMetricType,
						AverageValue: milliQuantity(10_000),
					},
				},
			}}
		})
		cluster := run(t, w, hpa)
		if got := conditions(status(t, cluster, "h")); w.now() != 0 ||
			!strings.Contains(got, "ScaledToZero True ScaledToZero") {
			t.Fatalf("an empty queue: %d replicas, %s", w.now(), got)
		}
		w.set(func() { w.answers[path] = queue(25) })
		time.Sleep(2 * period)
		if got := conditions(status(t, cluster, "h")); w.now() != 3 ||
			!strings.Contains(got, "ScaledToZero False NotScaledToZero") {
			t.Fatalf("25 in the queue: %d replicas, %s", w.now(), got)
		}
		w.set(func() { w.replicas = 0 }) // by hand
		time.Sleep(2 * period)
		if got := conditions(status(t, cluster, "h")); w.now() != 0 ||
			!strings.Contains(got, "ScalingActive False ScalingDisabled") {
			t.Errorf("put to zero by hand: %d replicas, %s", w.now(), got)
		}
	})
}

// TestObservedGeneration: the status and each condition of a pass have the generation that was read.
func TestObservedGeneration(t *testing.T) {
	for name, w := range map[string]*world{
		"metrics":    {replicas: 4, selector: "app=web", cpu: 500},
		"no metrics": {replicas: 4, selector: "app=web", cpu: -1},
		"no target":  {replicas: 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster := run(t, w, autoscaler("h", func(h *scalingv2.HorizontalPodAutoscaler) {
				h.Generation = 1
				if name == "no target" {
					h.Spec.ScaleTargetRef.Name = "nope"
				}
			}))
			check := func(want int64) {
				t.Helper()
				st := status(t, cluster, "h")
				if st.ObservedGeneration == nil || *st.ObservedGeneration != want {
					t.Errorf("%s: got observed generation %v, want %d", name, st.ObservedGeneration, want)
				}
				for _, c := range st.Conditions {
					if c.ObservedGeneration == nil || *c.ObservedGeneration != want {
						t.Errorf("%s: condition %s: got %v, want %d", name, c.Type, c.ObservedGeneration, want)
					}
				}
				if len(st.Conditions) == 0 {
					t.Errorf("%s: no conditions", name)
				}
			}
			check(1)
			api := cluster.AutoscalingV2().HorizontalPodAutoscalers("default")
			h, err := api.Get(t.Context(), "h", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			h.Generation = 2
			h.Spec.MaxReplicas = 19
			if _, err := api.Update(t.Context(), h, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // at once, not after a period
			check(2)
		})
	}
}

// TestReadsEveryAPI: which paths are read for which metrics, and how.
func TestReadsEveryAPI(t *testing.T) {
	value := func(v string) string { return `{"items":[{"describedObject":{"name":"p0"},"value":"` + v + `"}]}` }
	w := &world{
		cpu:      100,
		replicas: 1,
		answers: map[string]string{
			"/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/hits": value(
				"3"),
			"/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/ingresses.networking.k8s.io/door/requests": value(
				"2k"),
			"/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/metrics/load": value(
				"7"),
			"/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue": value(
				"1500m"),
		},
	}
	l, err := metav1.ParseToLabelSelector("app=web")
	if err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(l)
	if err != nil {
		t.Fatal(err)
	}
	id := func(name string) scalingv2.MetricIdentifier {
		return scalingv2.MetricIdentifier{Name: name, Selector: l}
	}
	object := func(version, kind, name, metric string) scalingv2.MetricSpec {
		return scalingv2.MetricSpec{
			Type: scalingv2.ObjectMetricSourceType,
			Object: &scalingv2.ObjectMetricSource{
				Metric:          id(metric),
				DescribedObject: scalingv2.CrossVersionObjectReference{APIVersion: version, Kind: kind, Name: name},
			},
		}
	}
	for _, c := range []struct {
		m    scalingv2.MetricSpec
		want string
	}{
		{
			scalingv2.MetricSpec{
				Type: scalingv2.PodsMetricSourceType,
				Pods: &scalingv2.PodsMetricSource{Metric: id("hits")},
			}, "3000 of p0",
		},
		{object("networking.k8s.io/v1", "Ingress", "door", "requests"), "2000000"},
		{object("v1", "Namespace", "default", "load"), "7000"},
		{
			scalingv2.MetricSpec{
				Type: scalingv2.ExternalMetricSourceType,
				External: &scalingv2.ExternalMetricSource{
					Metric: id("queue"),
				},
			}, "1500",
		},
		{
			scalingv2.MetricSpec{
				Type:              scalingv2.ContainerResourceMetricSourceType,
				ContainerResource: &scalingv2.ContainerResourceMetricSource{Name: "cpu", Container: "app"},
			}, "100 of p0",
		},
		{
			scalingv2.MetricSpec{
				Type:              scalingv2.ContainerResourceMetricSourceType,
				ContainerResource: &scalingv2.ContainerResourceMetricSource{Name: "cpu", Container: "nope"},
			}, "container nope not present in metrics for pod /p0",
		},
	} {
		f := fetch(t.Context(), w, autoscaler("h"), &c.m, selector)
		got := fmt.Sprint(f.value)
		for name, m := range f.pods {
			got = fmt.Sprint(m.value, " of ", name)
		}
		if f.err != nil {
			got = f.err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.m.Type, got, c.want)
		}
	}
	if !slices.Contains(w.reads, "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/hits "+
		"map[labelSelector:app=web metricLabelSelector:app=web]") {
		t.Errorf("read %q", w.reads)
	}
}
