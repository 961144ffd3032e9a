// SPDX-License-Identifier: Apache-2.0

// Package ttlafterfinished deletes finished Jobs, with their pods, after spec.ttlSecondsAfterFinished. The table of
// controllers starts it. It never deletes Jobs without that field.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
)

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct{ deletionDelay prometheus.Histogram }

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	return &Metrics{prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: "ttl_after_finished_controller",
		Name:      "job_deletion_duration_seconds",
		Help:      "The time it took to delete the job since it became eligible for deletion",
		Buckets:   prometheus.ExponentialBuckets(0.1, 2, 14),
	})}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.deletionDelay} }

type controller struct {
	env     *framework.Env
	loop    *framework.Loop[framework.Key]
	jobs    cache.Indexer
	metrics *Metrics
}

// New registers handlers with the shared informers; Run does the work.
func New(env *framework.Env, metrics *Metrics) (framework.Controller, error) {
	c := &controller{env: env, metrics: metrics}
	c.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, c.sync)
	jobs := batchinformers.New(env.Shared.Scoped()).Jobs().Informer()
	c.jobs = jobs.GetIndexer()
	return c, framework.On(c.loop, jobs, framework.Handlers[*batchv1.Job]{
		Add:    c.changed,
		Update: func(_, j *batchv1.Job) { c.changed(j) },
	})
}

// Run implements framework.Controller.
func (c *controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *controller) changed(j *batchv1.Job) {
	if t := expiry(j); !t.IsZero() {
		c.loop.AddAfter(framework.KeyOf(j), time.Until(t))
	}
}

// expiry is when j is to be deleted; zero: never.
func expiry(j *batchv1.Job) time.Time {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue &&
			!c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second)
		}
	}
	return time.Time{}
}

func (c *controller) sync(ctx context.Context, key framework.Key) error {
	obj, ok, err := c.jobs.GetByKey(key.String())
	if err != nil || !ok {
		return err
	}
	job, ok := obj.(*batchv1.Job)
	if !ok {
		return nil
	}
	at := expiry(job)
	if at.IsZero() {
		return nil
	}
	if wait := time.Until(at); wait > 0 {
		c.loop.AddAfter(key, wait)
		return nil
	}
	// The TTL may have just been extended: the version protects against that.
	foreground := metav1.DeletePropagationForeground
	err = c.env.Client.BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete expired job: %w", err)
	}
	c.metrics.deletionDelay.Observe(time.Since(at).Seconds())
	return nil
}
