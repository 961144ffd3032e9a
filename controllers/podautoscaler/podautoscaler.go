// SPDX-License-Identifier: Apache-2.0

// Package podautoscaler scales the targets of HorizontalPodAutoscalers, any kind with a scale subresource, so that
// metrics approach their target values. The table of controllers starts it. Every 15 seconds by default it reads an
// autoscaler's target and metrics (fetch.go: from metrics.k8s.io, custom.metrics.k8s.io and external.metrics.k8s.io),
// decides with pure functions (plan.go, replicas.go, behavior.go), and writes the scale and the autoscaler's status.
// Without autoscalers it does nothing. It never touches pods.
package podautoscaler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	autoscalinginformers "k8s.io/client-go/informers/autoscaling/v2"
	coreinformers "k8s.io/client-go/informers/core/v1"
	scalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
)

// fetchTimeout limits one request to a metrics API.
const fetchTimeout = 10 * time.Second

// Controller handles all autoscalers.
type Controller struct {
	env             *framework.Env
	loop            *framework.Loop[framework.Key]
	hpas            scalinglisters.HorizontalPodAutoscalerLister
	pods            corelisters.PodLister
	scaler          scaler
	api             metricsAPI
	cfg             Config
	metrics         *Metrics
	autoscalerCount atomic.Int64 // autoscalers counted in the metrics

	mu     sync.Mutex
	states map[framework.Key]*hpaState
}

// hpaState is the state of an autoscaler between passes. Only its own pass uses history.
type hpaState struct {
	uid      types.UID
	history  history
	selector labels.Selector // of its target's pods; nil: unknown
}

// New registers handlers with the shared informers.
func New(env *framework.Env, cfg *Config, metrics *Metrics) (framework.Controller, error) {
	bounded, err := limitedDiscovery(env.Client.Config)
	if err != nil {
		return nil, err
	}
	api := metricsReader{bounded}
	return build(env, cfg.orDefaults(), api, scaleClient{api, env.Client.Dynamic}, metrics)
}

func build(
	env *framework.Env, cfg Config, api metricsAPI, s scaler, metrics *Metrics,
) (*Controller, error) {
	hpas := autoscalinginformers.New(env.Shared.Scoped()).HorizontalPodAutoscalers()
	pods := coreinformers.New(env.Shared.Scoped()).Pods()
	controller := &Controller{
		env:     env,
		hpas:    hpas.Lister(),
		pods:    pods.Lister(),
		scaler:  s,
		api:     api,
		metrics: metrics,
		cfg:     cfg,
		states:  map[framework.Key]*hpaState{},
	}
	controller.loop = framework.NewLoop(env.Queue, max(env.Workers, 1), env.Log, controller.sync)
	err := framework.On(controller.loop, hpas.Informer(), framework.Handlers[*scalingv2.HorizontalPodAutoscaler]{
		Add: func(h *scalingv2.HorizontalPodAutoscaler) {
			controller.countAutoscalers(1)
			controller.loop.Add(framework.KeyOf(h))
		},
		Update: func(old, cur *scalingv2.HorizontalPodAutoscaler) {
			// not when its own status is written
			if old.UID != cur.UID || !apiequality.Semantic.DeepEqual(old.Spec, cur.Spec) {
				controller.loop.Add(framework.KeyOf(cur))
			}
		},
		Delete: func(h *scalingv2.HorizontalPodAutoscaler) {
			controller.countAutoscalers(-1)
			controller.loop.Add(framework.KeyOf(h))
		},
	})
	controller.loop.WaitFor(pods.Informer().HasSyncedChecker())
	return controller, err
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	defer c.resetMetrics()
	return c.loop.Run(ctx, ready)
}

// resetMetrics removes the autoscalers from the metrics: the next leader reports them.
func (c *Controller) resetMetrics() {
	c.metrics.autoscalers.Sub(float64(c.autoscalerCount.Swap(0)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.states {
		c.metrics.desired.DeleteLabelValues(key.Namespace, key.Name)
	}
}

// countAutoscalers counts added (1) or removed (-1) autoscalers.
func (c *Controller) countAutoscalers(n int64) {
	c.autoscalerCount.Add(n)
	c.metrics.autoscalers.Add(float64(n))
}

// sync runs one pass and schedules the next after a period, even after an error, which rarely resolves sooner.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	hpa, err := c.hpas.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		delete(c.states, key)
		c.mu.Unlock()
		c.metrics.desired.DeleteLabelValues(key.Namespace, key.Name)
		return nil
	}
	if err != nil {
		return err
	}
	if hpa.DeletionTimestamp == nil {
		begin := time.Now()
		o, all, err := c.reconcile(ctx, key, hpa)
		if ctx.Err() == nil {
			c.metrics.observe(o, all, time.Since(begin))
		}
		if err != nil && ctx.Err() == nil {
			c.env.Log.Debug("sync autoscaler, will retry", "hpa", key, "err", err)
		}
	}
	c.loop.AddAfter(key, c.cfg.SyncPeriod)
	return nil
}

// reconcile reads, decides and acts.
func (c *Controller) reconcile(
	ctx context.Context, key framework.Key, hpa *scalingv2.HorizontalPodAutoscaler,
) (o outcome, all []metricComputation, err error) {
	now := time.Now()
	o = outcome{none, internal}
	targetScale, err := c.scaler.Get(ctx, hpa.Namespace, &hpa.Spec.ScaleTargetRef)
	if err != nil {
		if ctx.Err() != nil {
			return o, nil, err
		}
		c.env.Events.Event(hpa, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		st := hpa.Status.DeepCopy()
		setCondition(hpa, st, scalingv2.AbleToScale, false, "FailedGetScale",
			fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err), now)
		return o, nil, c.write(ctx, hpa, st)
	}
	hpaState := c.stateOf(key, hpa, targetScale.spec, now)
	snap := &snapshot{
		hpa:     hpa,
		scale:   targetScale.scale,
		history: &hpaState.history,
		now:     now,
		cfg:     &c.cfg,
	}
	if needsMetrics(hpa, targetScale.spec) {
		c.fetchInputs(ctx, key, snap)
		if ctx.Err() != nil {
			return o, nil, ctx.Err()
		}
	}
	plan := decide(snap)
	o.errorLabel = plan.errorLabel
	if plan.recommended >= 0 {
		hpaState.history.recordRecommendation(hpa, plan.recommended, now)
	}
	if plan.rescale {
		if err := c.scaler.Set(ctx, targetScale, plan.replicas); err != nil {
			plan.failed(snap, err)
			if o.errorLabel == none {
				o.errorLabel = internal
			}
		} else {
			plan.rescaled(snap)
			o.action = direction(targetScale.spec, plan.replicas)
			hpaState.history.recordScaling(hpa, targetScale.spec, plan.replicas, now)
			c.env.Log.Info("scaled", "hpa", key, "from", targetScale.spec, "to", plan.replicas, "reason", plan.reason)
		}
	}
	for _, e := range plan.events {
		c.env.Events.Event(hpa, e.kind, e.reason, e.message)
	}
	c.metrics.desired.WithLabelValues(key.Namespace, key.Name).Set(float64(plan.status.DesiredReplicas))
	if err = c.write(ctx, hpa, plan.status); err != nil && o.errorLabel == none {
		o.errorLabel = internal
	}
	return o, plan.computations, err
}

// stateOf returns the state of an autoscaler. A new history begins with the current replicas.
func (c *Controller) stateOf(
	key framework.Key, h *scalingv2.HorizontalPodAutoscaler, current int32, now time.Time,
) *hpaState {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.states[key]
	if m == nil || m.uid != h.UID {
		m = &hpaState{uid: h.UID, history: history{recommendations: []timestampedReplicas{{current, now}}, cfg: &c.cfg}}
		c.states[key] = m
	}
	return m
}

// fetchInputs reads the pods and the metrics.
func (c *Controller) fetchInputs(ctx context.Context, key framework.Key, snap *snapshot) {
	hpa := snap.hpa
	snap.fetched = make([]fetched, len(hpa.Spec.Metrics))
	selector, err := labels.Parse(snap.scale.selector)
	if snap.selectorErr = err; err != nil || snap.scale.selector == "" {
		c.setSelector(key, nil)
		return
	}
	c.setSelector(key, selector)
	if snap.pods, snap.selectorErr = c.pods.Pods(hpa.Namespace).List(selector); snap.selectorErr != nil {
		return
	}
	if snap.selectedBy = c.autoscalersOf(key, snap.pods); len(snap.selectedBy) > 1 {
		return
	}
	for i := range hpa.Spec.Metrics {
		begin := time.Now()
		snap.fetched[i] = fetch(ctx, c.api, hpa, &hpa.Spec.Metrics[i], selector)
		snap.fetched[i].took = time.Since(begin)
	}
}

func (c *Controller) setSelector(key framework.Key, selector labels.Selector) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.states[key]; m != nil {
		m.selector = selector
	}
}

// autoscalersOf are all autoscalers of the namespace that select one of the pods.
func (c *Controller) autoscalersOf(key framework.Key, pods []*corev1.Pod) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for other, m := range c.states {
		if other.Namespace != key.Namespace || m.selector == nil {
			continue
		}
		if other == key || slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return m.selector.Matches(labels.Set(p.Labels))
		}) {
			out = append(out, other.String())
		}
	}
	slices.Sort(out)
	return out
}

// write writes the status if it differs. It is the status of the generation that the pass has read.
func (c *Controller) write(
	ctx context.Context, hpa *scalingv2.HorizontalPodAutoscaler, st *scalingv2.HorizontalPodAutoscalerStatus,
) error {
	st.ObservedGeneration = new(hpa.Generation)
	for i := range st.Conditions { // a pass may have set a condition and reset it
		c := &st.Conditions[i]
		if was := condition(&hpa.Status, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	if apiequality.Semantic.DeepEqual(&hpa.Status, st) {
		return nil
	}
	n := *hpa // a shallow copy: the rest is only encoded
	n.Status = *st
	_, err := c.env.Client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, &n,
		metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if !apierrors.IsConflict(err) {
			c.env.Events.Event(hpa, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return fmt.Errorf("update status: %w", err)
	}
	return nil
}
