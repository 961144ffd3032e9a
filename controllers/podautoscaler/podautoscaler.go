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
func New(env *framework.Env, cfg *Config) (framework.Controller, error) {
	bounded, err := limitedDiscovery(env.Client.Config)
	if err != nil {
		return nil, err
	}
	api := metricsReader{bounded}
	return build(env, cfg.orDefaults(), api, scaleClient{api, env.Client.Dynamic})
}

func build(env *framework.Env, cfg Config, api metricsAPI, s scaler) (*Controller, error) {
	hpas := autoscalinginformers.New(env.Shared.Scoped()).HorizontalPodAutoscalers()
	pods := coreinformers.New(env.Shared.Scoped()).Pods()
	c := &Controller{
		env:    env,
		hpas:   hpas.Lister(),
		pods:   pods.Lister(),
		scaler: s,
		api:    api,
		cfg:    cfg,
		states: map[framework.Key]*hpaState{},
	}
	c.loop = framework.NewLoop(env.Queue, max(env.Workers, 1), env.Log, c.sync)
	err := framework.On(c.loop, hpas.Informer(), framework.Handlers[*scalingv2.HorizontalPodAutoscaler]{
		Add: func(h *scalingv2.HorizontalPodAutoscaler) {
			c.countAutoscalers(1)
			c.loop.Add(framework.KeyOf(h))
		},
		Update: func(old, cur *scalingv2.HorizontalPodAutoscaler) {
			// not when its own status is written
			if old.UID != cur.UID || !apiequality.Semantic.DeepEqual(old.Spec, cur.Spec) {
				c.loop.Add(framework.KeyOf(cur))
			}
		},
		Delete: func(h *scalingv2.HorizontalPodAutoscaler) {
			c.countAutoscalers(-1)
			c.loop.Add(framework.KeyOf(h))
		},
	})
	c.loop.WaitFor(pods.Informer().HasSyncedChecker())
	return c, err
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	defer c.resetMetrics()
	return c.loop.Run(ctx, ready)
}

// resetMetrics removes the autoscalers from the metrics: the next leader reports them.
func (c *Controller) resetMetrics() {
	metrics().autoscalers.Sub(float64(c.autoscalerCount.Swap(0)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.states {
		metrics().desired.DeleteLabelValues(key.Namespace, key.Name)
	}
}

// countAutoscalers counts added (1) or removed (-1) autoscalers.
func (c *Controller) countAutoscalers(n int64) {
	c.autoscalerCount.Add(n)
	metrics().autoscalers.Add(float64(n))
}

// sync runs one pass and schedules the next after a period, even after an error, which rarely resolves sooner.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	h, err := c.hpas.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		delete(c.states, key)
		c.mu.Unlock()
		metrics().desired.DeleteLabelValues(key.Namespace, key.Name)
		return nil
	}
	if err != nil {
		return err
	}
	if h.DeletionTimestamp == nil {
		begin := time.Now()
		o, all, err := c.reconcile(ctx, key, h)
		if ctx.Err() == nil {
			metrics().observe(o, all, time.Since(begin))
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
	ctx context.Context, key framework.Key, h *scalingv2.HorizontalPodAutoscaler,
) (o outcome, all []metricComputation, err error) {
	now := time.Now()
	o = outcome{none, internal}
	t, err := c.scaler.Get(ctx, h.Namespace, &h.Spec.ScaleTargetRef)
	if err != nil {
		if ctx.Err() != nil {
			return o, nil, err
		}
		c.env.Events.Event(h, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		st := h.Status.DeepCopy()
		setCondition(st, scalingv2.AbleToScale, false, "FailedGetScale",
			fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err), now)
		return o, nil, c.write(ctx, h, st)
	}
	m := c.stateOf(key, h, t.spec, now)
	s := &snapshot{
		hpa:     h,
		scale:   t.scale,
		history: &m.history,
		now:     now,
		cfg:     &c.cfg,
	}
	if needsMetrics(h, t.spec) {
		c.fetchInputs(ctx, key, s)
		if ctx.Err() != nil {
			return o, nil, ctx.Err()
		}
	}
	p := decide(s)
	o.errorLabel = p.errorLabel
	if p.recommended >= 0 {
		m.history.recordRecommendation(h, p.recommended, now)
	}
	if p.rescale {
		if err := c.scaler.Set(ctx, t, p.replicas); err != nil {
			p.failed(s, err)
			if o.errorLabel == none {
				o.errorLabel = internal
			}
		} else {
			p.rescaled(s)
			o.action = direction(t.spec, p.replicas)
			m.history.recordScaling(h, t.spec, p.replicas, now)
			c.env.Log.Info("scaled", "hpa", key, "from", t.spec, "to", p.replicas, "reason", p.reason)
		}
	}
	for _, e := range p.events {
		c.env.Events.Event(h, e.kind, e.reason, e.message)
	}
	metrics().desired.WithLabelValues(key.Namespace, key.Name).Set(float64(p.status.DesiredReplicas))
	if err = c.write(ctx, h, p.status); err != nil && o.errorLabel == none {
		o.errorLabel = internal
	}
	return o, p.computations, err
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
func (c *Controller) fetchInputs(ctx context.Context, key framework.Key, s *snapshot) {
	h := s.hpa
	s.fetched = make([]fetched, len(h.Spec.Metrics))
	selector, err := labels.Parse(s.scale.selector)
	if s.selectorErr = err; err != nil || s.scale.selector == "" {
		c.setSelector(key, nil)
		return
	}
	c.setSelector(key, selector)
	if s.pods, s.selectorErr = c.pods.Pods(h.Namespace).List(selector); s.selectorErr != nil {
		return
	}
	if s.selectedBy = c.autoscalersOf(key, s.pods); len(s.selectedBy) > 1 {
		return
	}
	for i := range h.Spec.Metrics {
		begin := time.Now()
		s.fetched[i] = fetch(ctx, c.api, h, &h.Spec.Metrics[i], selector)
		s.fetched[i].took = time.Since(begin)
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

// write writes the status if it differs.
func (c *Controller) write(
	ctx context.Context, h *scalingv2.HorizontalPodAutoscaler, st *scalingv2.HorizontalPodAutoscalerStatus,
) error {
	for i := range st.Conditions { // a pass may have set a condition and reset it
		c := &st.Conditions[i]
		if was := condition(&h.Status, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	if apiequality.Semantic.DeepEqual(&h.Status, st) {
		return nil
	}
	n := *h // a shallow copy: the rest is only encoded
	n.Status = *st
	_, err := c.env.Client.AutoscalingV2().HorizontalPodAutoscalers(h.Namespace).UpdateStatus(ctx, &n,
		metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if !apierrors.IsConflict(err) {
			c.env.Events.Event(h, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return fmt.Errorf("update status: %w", err)
	}
	return nil
}
