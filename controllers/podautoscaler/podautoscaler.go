// SPDX-License-Identifier: Apache-2.0

// Package podautoscaler scales the targets of HorizontalPodAutoscalers, any kind with a scale subresource, so that metrics approach their
// target values. The table of controllers starts it. Every 15 seconds by default it reads an autoscaler's target and metrics (fetch.go:
// from metrics.k8s.io, custom.metrics.k8s.io and external.metrics.k8s.io), decides with pure functions (plan.go, replicas.go, behavior.go),
// and writes the scale and the autoscaler's status. Without autoscalers it does nothing. It never touches pods.
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
	env    *framework.Env
	loop   *framework.Loop[framework.Key]
	hpas   scalinglisters.HorizontalPodAutoscalerLister
	pods   corelisters.PodLister
	scaler scaler
	api    metricsAPI
	cfg    Config
	number atomic.Int64 // autoscalers counted in the metrics

	mu    sync.Mutex
	known map[framework.Key]*memory
}

// memory is the state of an autoscaler between passes. Only its own pass uses past.
type memory struct {
	uid      types.UID
	past     history
	selector labels.Selector // of its target's pods; nil: unknown
}

// New registers handlers with the shared informers.
func New(env *framework.Env, cfg *Config) (framework.Controller, error) {
	bounded, err := boundedDiscovery(env.Client.Config)
	if err != nil {
		return nil, err
	}
	api := metricsReader{bounded}
	return build(env, cfg.orDefaults(), api, scales{api, env.Client.Dynamic})
}

func build(env *framework.Env, cfg Config, api metricsAPI, s scaler) (*Controller, error) {
	hpas, pods := autoscalinginformers.New(env.Shared.Scoped()).HorizontalPodAutoscalers(), coreinformers.New(env.Shared.Scoped()).Pods()
	c := &Controller{env: env, hpas: hpas.Lister(), pods: pods.Lister(), scaler: s, api: api, cfg: cfg, known: map[framework.Key]*memory{}}
	c.loop = framework.NewLoop(env.Queue, max(env.Workers, 1), env.Log, c.sync)
	err := framework.On(c.loop, hpas.Informer(), framework.Handlers[*scalingv2.HorizontalPodAutoscaler]{
		Add: func(h *scalingv2.HorizontalPodAutoscaler) {
			c.count(1)
			c.loop.Add(framework.KeyOf(h))
		},
		Update: func(old, cur *scalingv2.HorizontalPodAutoscaler) {
			if old.UID != cur.UID || !apiequality.Semantic.DeepEqual(old.Spec, cur.Spec) { // not when its own status is written
				c.loop.Add(framework.KeyOf(cur))
			}
		},
		Delete: func(h *scalingv2.HorizontalPodAutoscaler) {
			c.count(-1)
			c.loop.Add(framework.KeyOf(h))
		},
	})
	c.loop.WaitFor(pods.Informer().HasSyncedChecker())
	return c, err
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	defer c.unmeasured()
	return c.loop.Run(ctx, ready)
}

// unmeasured removes the autoscalers from the metrics: the next leader reports them.
func (c *Controller) unmeasured() {
	metrics().number.Sub(float64(c.number.Swap(0)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.known {
		metrics().desired.DeleteLabelValues(key.Namespace, key.Name)
	}
}

// count counts added (1) or removed (-1) autoscalers.
func (c *Controller) count(n int64) {
	c.number.Add(n)
	metrics().number.Add(float64(n))
}

// sync runs one pass and schedules the next after a period, even after an error, which rarely resolves sooner.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	h, err := c.hpas.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		delete(c.known, key)
		c.mu.Unlock()
		metrics().desired.DeleteLabelValues(key.Namespace, key.Name)
		return nil
	}
	if err != nil {
		return err
	}
	if h.DeletionTimestamp == nil {
		begin := time.Now()
		o, all, err := c.pass(ctx, key, h)
		if ctx.Err() == nil {
			metrics().pass(o, all, time.Since(begin))
		}
		if err != nil && ctx.Err() == nil {
			c.env.Log.Debug("sync autoscaler, will retry", "hpa", key, "err", err)
		}
	}
	c.loop.AddAfter(key, c.cfg.SyncPeriod)
	return nil
}

// pass reads, decides and acts.
func (c *Controller) pass(ctx context.Context, key framework.Key, h *scalingv2.HorizontalPodAutoscaler) (o outcome, all []computed, err error) {
	now := time.Now()
	o = outcome{none, internal}
	t, err := c.scaler.Get(ctx, h.Namespace, &h.Spec.ScaleTargetRef)
	if err != nil {
		if ctx.Err() != nil {
			return o, nil, err
		}
		c.env.Events.Event(h, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		st := h.Status.DeepCopy()
		setCondition(st, scalingv2.AbleToScale, false, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err), now)
		return o, nil, c.write(ctx, h, st)
	}
	m := c.remember(key, h, t.spec, now)
	s := &snapshot{hpa: h, scale: t.scale, past: &m.past, now: now, cfg: &c.cfg}
	if measures(h, t.spec) {
		c.gather(ctx, key, s)
		if ctx.Err() != nil {
			return o, nil, ctx.Err()
		}
	}
	p := decide(s)
	o.fault = p.fault
	if p.recommended >= 0 {
		m.past.recommend(h, p.recommended, now)
	}
	if p.rescale {
		if err := c.scaler.Set(ctx, t, p.replicas); err != nil {
			p.failed(s, err)
			if o.fault == none {
				o.fault = internal
			}
		} else {
			p.rescaled(s)
			o.action = direction(t.spec, p.replicas)
			m.past.changed(h, t.spec, p.replicas, now)
			c.env.Log.Info("scaled", "hpa", key, "from", t.spec, "to", p.replicas, "reason", p.reason)
		}
	}
	for _, e := range p.events {
		c.env.Events.Event(h, e.kind, e.reason, e.message)
	}
	metrics().desired.WithLabelValues(key.Namespace, key.Name).Set(float64(p.status.DesiredReplicas))
	if err = c.write(ctx, h, p.status); err != nil && o.fault == none {
		o.fault = internal
	}
	return o, p.computed, err
}

// remember returns the state of an autoscaler. A new history begins with the current replicas.
func (c *Controller) remember(key framework.Key, h *scalingv2.HorizontalPodAutoscaler, current int32, now time.Time) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.known[key]
	if m == nil || m.uid != h.UID {
		m = &memory{uid: h.UID, past: history{recommended: []moment{{current, now}}, cfg: &c.cfg}}
		c.known[key] = m
	}
	return m
}

// gather reads the pods and the metrics.
func (c *Controller) gather(ctx context.Context, key framework.Key, s *snapshot) {
	h := s.hpa
	s.fetched = make([]fetched, len(h.Spec.Metrics))
	selector, err := labels.Parse(s.scale.selector)
	if s.selected = err; err != nil || s.scale.selector == "" {
		c.selects(key, nil)
		return
	}
	c.selects(key, selector)
	if s.pods, s.selected = c.pods.Pods(h.Namespace).List(selector); s.selected != nil {
		return
	}
	if s.rivals = c.rivals(key, s.pods); len(s.rivals) > 1 {
		return
	}
	for i := range h.Spec.Metrics {
		begin := time.Now()
		s.fetched[i] = fetch(ctx, c.api, h, &h.Spec.Metrics[i], selector)
		s.fetched[i].took = time.Since(begin)
	}
}

func (c *Controller) selects(key framework.Key, selector labels.Selector) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.known[key]; m != nil {
		m.selector = selector
	}
}

// rivals are all autoscalers of the namespace that select one of the pods.
func (c *Controller) rivals(key framework.Key, pods []*corev1.Pod) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for other, m := range c.known {
		if other.Namespace != key.Namespace || m.selector == nil {
			continue
		}
		if other == key || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return m.selector.Matches(labels.Set(p.Labels)) }) {
			out = append(out, other.String())
		}
	}
	slices.Sort(out)
	return out
}

// write writes the status if it differs.
func (c *Controller) write(ctx context.Context, h *scalingv2.HorizontalPodAutoscaler, st *scalingv2.HorizontalPodAutoscalerStatus) error {
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
	_, err := c.env.Client.AutoscalingV2().HorizontalPodAutoscalers(h.Namespace).UpdateStatus(ctx, &n, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if !apierrors.IsConflict(err) {
			c.env.Events.Event(h, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return fmt.Errorf("update status: %w", err)
	}
	return nil
}
