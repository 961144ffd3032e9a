// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/objects"
)

// Source lists and watches for clients in this process: it hands out the cache's own objects, which are shared and must
// never be modified (P4). It has the shape of client.Source.
type Source struct {
	find func(schema.GroupVersionResource) objects.Storage
}

// NewSource returns a source over the storages that find knows; find returns nil for a resource that is not served.
func NewSource(find func(schema.GroupVersionResource) objects.Storage) *Source { return &Source{find} }

// Query is opts as a storage understands them.
func Query(namespace string, opts *metav1.ListOptions) (objects.ListQuery, error) {
	l, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return objects.ListQuery{}, apierrors.NewBadRequest(err.Error())
	}
	f, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return objects.ListQuery{}, apierrors.NewBadRequest(err.Error())
	}
	return objects.ListQuery{
		Namespace: namespace, Labels: l, Fields: f,
		ResourceVersion: opts.ResourceVersion, Match: string(opts.ResourceVersionMatch),
		Limit: opts.Limit, Continue: opts.Continue,
		SendInitialEvents: opts.SendInitialEvents, Bookmarks: opts.AllowWatchBookmarks,
	}, nil
}

func (s *Source) storage(gvr schema.GroupVersionResource) (objects.Storage, error) {
	if st := s.find(gvr); st != nil {
		return st, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), "")
}

// List returns the objects and the resourceVersion they were read at.
func (s *Source) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) ([]runtime.Object, string, error) {
	st, err := s.storage(gvr)
	if err != nil {
		return nil, "", err
	}
	opts.Limit, opts.Continue = 0, "" // pages save nothing here
	q, err := Query(namespace, &opts)
	if err != nil {
		return nil, "", err
	}
	list, err := st.List(ctx, q)
	if err != nil {
		return nil, "", err
	}
	items := make([]runtime.Object, len(list.Items))
	for i, e := range list.Items {
		items[i] = e.Object
	}
	return items, objects.FormatRevision(list.Revision), nil
}

// Watch starts a watch. It ends with ctx, by Stop or after opts.TimeoutSeconds.
func (s *Source) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	st, err := s.storage(gvr)
	if err != nil {
		return nil, err
	}
	q, err := Query(namespace, &opts)
	if err != nil {
		return nil, err
	}
	var cancel context.CancelFunc
	if opts.TimeoutSeconds != nil {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*opts.TimeoutSeconds)*time.Second)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	w, err := st.Watch(ctx, q)
	if err != nil {
		cancel()
		return nil, err
	}
	sw := &sourceWatch{results: make(chan watch.Event), cancel: cancel, done: ctx.Done()}
	go sw.forward(w) // ends when w does, which Stop and ctx make it do
	return sw, nil
}

// sourceWatch is an objects.Watch as client-go knows watches.
type sourceWatch struct {
	results chan watch.Event
	done    <-chan struct{}
	stop    sync.Once
	cancel  context.CancelFunc
}

func (w *sourceWatch) ResultChan() <-chan watch.Event { return w.results }

func (w *sourceWatch) Stop() { w.stop.Do(w.cancel) }

func (w *sourceWatch) forward(from objects.Watch) {
	defer close(w.results)
	defer w.Stop()
	for ev := range from.Events() {
		if !w.send(watch.Event{Type: ev.Type, Object: ev.Entry.Object}) {
			return
		}
	}
	if err := from.Err(); err != nil {
		w.send(watch.Event{Type: watch.Error, Object: statusOf(err)})
	}
}

func (w *sourceWatch) send(ev watch.Event) bool {
	select {
	case w.results <- ev:
		return true
	case <-w.done:
		return false
	}
}

func statusOf(err error) *metav1.Status {
	var s apierrors.APIStatus
	if errors.As(err, &s) {
		status := s.Status()
		return &status
	}
	status := apierrors.NewInternalError(fmt.Errorf("watch ended: %w", err)).Status()
	return &status
}
