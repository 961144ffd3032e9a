// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/delivery"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/event"
)

// Sources makes the sources of the agents in this process. It is safe for concurrent use.
type Sources struct {
	served     *resources.Served
	authorizer auth.Authorizer
	marks      *event.Recorder
	stopping   <-chan struct{}
	watches    sync.WaitGroup
}

// NewSources returns the sources of all served resources. Their watches end when stopping is closed.
func NewSources(
	served *resources.Served, authorizer auth.Authorizer, marks *event.Recorder, stopping <-chan struct{},
) *Sources {
	return &Sources{
		served:     served,
		authorizer: authorizer,
		marks:      marks,
		stopping:   stopping,
	}
}

// As returns the cached objects as seen by u.
func (s *Sources) As(u *auth.User) *Source { return &Source{s, u} }

// Wait returns when all watches have ended.
func (s *Sources) Wait() { s.watches.Wait() }

// Source passes the cache's objects to an in-process client without encoding them. It calls the authorizer like a
// request. It implements client.Source.
type Source struct {
	of   *Sources
	user *auth.User
}

func (s *Source) allowed(
	ctx context.Context, verb string, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) error {
	attrs := &auth.Attributes{
		User:            s.user,
		Verb:            verb,
		Group:           gvr.Group,
		Version:         gvr.Version,
		Resource:        gvr.Resource,
		Namespace:       namespace,
		ResourceRequest: true,
	}
	// As in the pipeline, the authorizer sees the selectors; an invalid one is rejected later.
	if sel, err := fields.ParseSelector(opts.FieldSelector); err == nil {
		attrs.FieldSelector = sel.Requirements()
		attrs.Name, _ = sel.RequiresExactMatch("metadata.name")
	}
	if sel, err := labels.Parse(opts.LabelSelector); err == nil {
		attrs.LabelSelector, _ = sel.Requirements()
	}
	d, err := s.of.authorizer.Authorize(ctx, attrs)
	switch {
	case d.Verdict == auth.Allow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return pipeline.Forbidden(attrs, d.Reason)
}

// List returns the matching objects and their revision.
func (s *Source) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) ([]runtime.Object, string, error) {
	if err := s.allowed(ctx, "list", gvr, namespace, opts); err != nil {
		return nil, "", err
	}
	storage, q, err := s.query(gvr, namespace, opts)
	if err != nil {
		return nil, "", err
	}
	page, err := storage.List(ctx, q)
	if err != nil {
		return nil, "", err
	}
	out, rv := runtimeObjects(page)
	return out, rv, nil
}

func (s *Source) query(
	gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (objects.Storage, objects.ListQuery, error) {
	q, err := listOptions(namespace, opts)
	if err != nil {
		return nil, q, apierrors.NewBadRequest(err.Error())
	}
	res := s.of.served.Find(gvr)
	if res == nil || res.Storage == nil {
		return nil, q, wire.NotFoundPath()
	}
	return res.Storage, q, nil
}

// Watch delivers changes until Stop, the end of ctx or of the server, an Error event, or the time-out
// opts.TimeoutSeconds (0: none).
func (s *Source) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	if err := s.allowed(ctx, "watch", gvr, namespace, opts); err != nil {
		return nil, err
	}
	storage, query, err := s.query(gvr, namespace, opts)
	if err != nil {
		return nil, err
	}
	life := time.Duration(math.MaxInt64)
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		life = time.Duration(min(*opts.TimeoutSeconds, int64(life/time.Second))) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, life)
	events, err := storage.Watch(ctx, query)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &sourceWatch{
		out:        make(chan watch.Event, 64),
		cancel:     cancel,
		deliveries: delivery.New(s.of.marks, s.user, gvr.GroupResource(), &query),
	}
	s.of.watches.Go(func() { w.run(ctx, events, s.of.stopping) })
	return w, nil
}

// sourceWatch converts events for client-go.
type sourceWatch struct {
	out        chan watch.Event
	cancel     context.CancelFunc
	deliveries *delivery.Recorder
	once       sync.Once
}

// ResultChan is closed at the end of the watch.
func (w *sourceWatch) ResultChan() <-chan watch.Event { return w.out }

// Stop ends the watch; it may be called twice.
func (w *sourceWatch) Stop() { w.once.Do(w.cancel) }

func (w *sourceWatch) run(ctx context.Context, events objects.Watch, stopping <-chan struct{}) {
	defer close(w.out)
	defer w.cancel()
	for {
		var out watch.Event
		var given objects.Event
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			return
		case ev, ok := <-events.Events():
			if ok {
				given = ev
				out = watch.Event{Type: ev.Type, Object: ev.Entry.Object}
				break
			}
			err := events.Err()
			if err == nil {
				return
			}
			out = watch.Event{Type: watch.Error, Object: wire.Status(err)}
		}
		select {
		case w.out <- out:
		case <-ctx.Done():
			return
		case <-stopping:
			return
		}
		if out.Type == watch.Error {
			return
		}
		w.deliveries.Delivered(&given)
	}
}
