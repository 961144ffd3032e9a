// SPDX-License-Identifier: Apache-2.0

// Package cronjob creates Jobs on the schedules of CronJobs (batch/v1) and deletes old ones. The table of controllers
// starts it. plan.go decides from a CronJob, its Jobs and the time; this file acts. A CronJob has one timer for its
// next start, and none while it is suspended or its schedule is invalid. The controller never looks at pods.
package cronjob

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/event"
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// Metrics are Kubernetes' metrics of this controller.
type Metrics struct{ skew prometheus.Histogram }

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	return &Metrics{prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: "cronjob_controller",
		Name:      "job_creation_skew_duration_seconds",
		Help:      "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
		Buckets:   prometheus.ExponentialBuckets(1, 2, 10),
	})}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.skew} }

// Controller handles all CronJobs.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[framework.Key]
	crons   cache.Indexer
	jobs    cache.Indexer
	metrics *Metrics

	mu sync.Mutex
	// lastWritten is the resourceVersion of each CronJob after our last status write: an older version in the cache
	// lacks active jobs.
	lastWritten map[types.UID]string
}

// New registers handlers with the shared informers; Run does the work.
func New(env *framework.Env, metrics *Metrics) (framework.Controller, error) {
	controller := &Controller{env: env, metrics: metrics, lastWritten: map[types.UID]string{}}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	crons := batchinformers.New(env.Shared.Scoped()).CronJobs().Informer()
	jobs := batchinformers.New(env.Shared.Scoped()).Jobs().Informer()
	if err := framework.EnsureIndex(jobs, framework.ByController, framework.IndexByController); err != nil {
		return nil, err
	}
	controller.crons = crons.GetIndexer()
	controller.jobs = jobs.GetIndexer()
	err := errors.Join(
		framework.On(controller.loop, crons, framework.Handlers[*batchv1.CronJob]{
			Add:    func(cj *batchv1.CronJob) { controller.loop.Add(framework.KeyOf(cj)) },
			Update: controller.updated,
			Delete: controller.deleted,
		}),
		framework.On(controller.loop, jobs, framework.Handlers[*batchv1.Job]{
			Add: controller.jobChanged,
			Update: func(old, cur *batchv1.Job) {
				if metav1.GetControllerOfNoCopy(cur) == nil {
					controller.jobChanged(old)
				}
				controller.jobChanged(cur)
			},
			Delete: controller.jobChanged,
		}),
	)
	return controller, err
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// updated schedules the next start of a changed schedule. Earlier times do not count, because the schedule did not
// exist then.
func (c *Controller) updated(old, cur *batchv1.CronJob) {
	if old.UID != cur.UID {
		c.deleted(old)
	}
	if old.UID == cur.UID && (old.Spec.Schedule != cur.Spec.Schedule || !equality.Semantic.DeepEqual(old.Spec.TimeZone,
		cur.Spec.TimeZone)) {
		var p plan
		now := time.Now()
		if s := p.parse(cur); s != nil {
			if next := s.Next(now); !next.IsZero() {
				c.loop.AddAfter(framework.KeyOf(cur), next.Sub(now)+startDelay)
				return
			}
		}
	}
	c.loop.Add(framework.KeyOf(cur))
}

func (c *Controller) deleted(cj *batchv1.CronJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lastWritten, cj.UID)
}

func (c *Controller) jobChanged(j *batchv1.Job) {
	if ref := metav1.GetControllerOfNoCopy(j); ref != nil && ref.Kind == kind.Kind {
		c.loop.Add(framework.Key{Namespace: j.Namespace, Name: ref.Name})
	}
}

// cacheStale reports whether cj is older than the controller's last write.
func (c *Controller) cacheStale(cj *batchv1.CronJob) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	order, err := resourceversion.CompareResourceVersion(cj.ResourceVersion, c.lastWritten[cj.UID])
	return err == nil && order < 0
}

// sync is one pass over one CronJob.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	begin := time.Now()
	obj, ok, err := c.crons.GetByKey(key.String())
	if err != nil || !ok {
		return err
	}
	cj, ok := obj.(*batchv1.CronJob)
	if !ok || c.cacheStale(cj) {
		return nil // the update event will requeue it
	}
	objs, err := c.jobs.ByIndex(framework.ByController, string(cj.UID))
	if err != nil {
		return err
	}
	jobs := make([]*batchv1.Job, 0, len(objs))
	for _, o := range objs {
		if j, ok := o.(*batchv1.Job); ok {
			jobs = append(jobs, j)
		}
	}
	p := decide(cj, jobs, begin)
	err = c.apply(ctx, key, cj, &p, begin)
	for _, e := range p.events {
		c.env.Events.Event(cj, e.kind, e.reason, e.message)
	}
	if writeErr := c.writeStatus(ctx, cj, &p.status); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	if err == nil && !p.next.IsZero() {
		c.loop.AddAfter(key, time.Until(p.next)+startDelay)
	}
	return err
}

// apply executes steps, and updates its status with the results.
func (c *Controller) apply(
	ctx context.Context, key framework.Key, cj *batchv1.CronJob, steps *plan, begin time.Time,
) error {
	for _, j := range steps.remove {
		if err := c.delete(ctx, cj, steps, j.Name, j.UID); err != nil {
			return err
		}
	}
	for _, r := range steps.missing {
		j, err := c.env.Client.BatchV1().Jobs(cj.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && j.UID != r.UID:
			steps.addEvent(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", r.Name)
			steps.removeActive(r.UID)
		case err != nil:
			return fmt.Errorf("look for active job %s: %w", r.Name, err)
		}
	}
	if err := c.reportUnexpected(ctx, steps); err != nil {
		return err
	}
	steps.applyConcurrencyPolicy(cj)
	if steps.due.IsZero() {
		return nil
	}
	if steps.replace {
		for _, r := range append([]corev1.ObjectReference(nil), steps.status.Active...) {
			if err := c.delete(ctx, cj, steps, r.Name, r.UID); err != nil {
				return err
			}
		}
	}
	return c.start(ctx, key, cj, steps, begin)
}

// reportUnexpected adds an event for each unexpected Job that the server has, too.
func (c *Controller) reportUnexpected(ctx context.Context, p *plan) error {
	for _, j := range p.unexpected {
		live, err := c.env.Client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("look for unexpected job %s: %w", j.Name, err)
		case live.UID == j.UID && live.DeletionTimestamp == nil:
			p.addEvent(corev1.EventTypeWarning, "UnexpectedJob",
				"Saw a job that the controller did not create or forgot: %s", j.Name)
		}
	}
	return nil
}

// delete deletes a Job with its pods.
func (c *Controller) delete(ctx context.Context, cj *batchv1.CronJob, steps *plan, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := c.env.Client.BatchV1().Jobs(cj.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &background,
		Preconditions:     &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		steps.addEvent(corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("delete job %s: %w", name, err)
	}
	steps.removeActive(uid)
	steps.addEvent(corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	return nil
}

// start creates the due Job and adds it to the active list.
func (c *Controller) start(
	ctx context.Context, key framework.Key, cj *batchv1.CronJob, steps *plan, begin time.Time,
) error {
	jobs := c.env.Client.BatchV1().Jobs(cj.Namespace)
	job, err := jobs.Create(ctx, jobFor(cj, steps.due), metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		steps.next = time.Time{} // the namespace is terminating: nothing can be created
		return nil
	case apierrors.IsAlreadyExists(err):
		// Either an earlier pass created it and failed to write the status, or another object has the name.
		if job, err = jobs.Get(ctx, name(cj, steps.due), metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read existing job: %w", err)
		}
		if !metav1.IsControlledBy(job, cj) {
			return nil
		}
	case err != nil:
		steps.addEvent(corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("create job: %w", err)
	default:
		c.metrics.skew.Observe(job.CreationTimestamp.Sub(steps.due).Seconds())
		steps.addEvent(corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", job.Name)
		c.env.Reconciled(event.Subject{
			Resource:  "cronjobs",
			Namespace: cj.Namespace,
			Name:      cj.Name,
			UID:       string(cj.UID),
		}, begin,
			&event.Reconcile{EventSeen: c.loop.QueuedAt(key), Wants: 1, Creates: []string{job.Name}}, nil)
	}
	steps.status.Active = append(steps.status.Active, corev1.ObjectReference{
		Kind:            "Job",
		Namespace:       job.Namespace,
		Name:            job.Name,
		UID:             job.UID,
		APIVersion:      batchv1.SchemeGroupVersion.String(),
		ResourceVersion: job.ResourceVersion,
	})
	steps.status.LastScheduleTime = &metav1.Time{Time: steps.due}
	return nil
}

// writeStatus writes st if it differs from the status of cj.
func (c *Controller) writeStatus(ctx context.Context, cj *batchv1.CronJob, st *batchv1.CronJobStatus) error {
	if equality.Semantic.DeepEqual(&cj.Status, st) {
		return nil
	}
	next := *cj
	next.Status = *st
	written, err := c.env.Client.BatchV1().CronJobs(cj.Namespace).UpdateStatus(ctx, &next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	c.recordWrite(cj, written.ResourceVersion)
	return nil
}

// recordWrite stores the version of our write, unless the CronJob was deleted meanwhile, because nothing would remove
// the entry.
func (c *Controller) recordWrite(cj *batchv1.CronJob, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	obj, ok, err := c.crons.GetByKey(framework.KeyOf(cj).String())
	if cur, is := obj.(*batchv1.CronJob); err == nil && ok && is && cur.UID == cj.UID {
		c.lastWritten[cj.UID] = version
	}
}
