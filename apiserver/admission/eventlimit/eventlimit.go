// SPDX-License-Identifier: Apache-2.0

// Package eventlimit is the EventRateLimit admission plugin: it limits the rate of events, in total and by namespace,
// user or source, so that a faulty component cannot fill the store. Off by default; the limits come from the admission
// configuration. It never modifies an object.
package eventlimit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"keelson/apiserver/admission"
)

// defaultKeys is the default number of remembered keys per limit; the least recently used one is dropped.
const defaultKeys = 4096

// Plugin is the admission plugin.
type Plugin struct {
	limits []*limiter
	now    func() time.Time
}

// New returns a plugin that enforces limits, which are valid.
func New(limits []Limit) *Plugin {
	plugin := &Plugin{now: time.Now}
	for _, l := range limits {
		size := int(l.CacheSize)
		switch {
		case l.Type == Server:
			size = 1
		case size == 0:
			size = defaultKeys
		}
		plugin.limits = append(plugin.limits, &limiter{Limit: l, keys: lru.New(size)})
	}
	return plugin
}

// Name is the plugin's name.
func (*Plugin) Name() string { return "EventRateLimit" }

// Validate counts new and changed events of the core group, and rejects those above a limit. A dry run does not count.
func (p *Plugin) Validate(_ context.Context, r *admission.Request) error {
	if r.Kind.Kind != "Event" || r.Kind.Group != "" || r.DryRun ||
		r.Operation != admission.Create && r.Operation != admission.Update {
		return nil
	}
	var refusal error
	for _, l := range p.limits { // every limit counts the event, even if another one rejects it
		if key := keyOf(l.Type, r); !l.allow(key, p.now()) {
			refusal = apierrors.NewTooManyRequestsError(fmt.Sprintf("limit reached on type %v for key %v", l.Type, key))
		}
	}
	return refusal
}

// limiter is a limit with a token bucket per key.
type limiter struct {
	Limit
	mu   sync.Mutex
	keys *lru.Cache
}

func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, _ := l.keys.Get(key)
	bucket, ok := known.(*rate.Limiter)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(l.QPS), int(l.Burst))
		l.keys.Add(key, bucket)
	}
	return bucket.AllowN(now, 1)
}

func keyOf(t Type, r *admission.Request) string {
	switch t {
	case Namespace:
		return r.Namespace
	case User:
		if r.User != nil {
			return r.User.Name
		}
	case SourceAndObject:
		if e, ok := r.Object.(*corev1.Event); ok {
			about := e.InvolvedObject
			return strings.Join([]string{
				e.Source.Component, e.Source.Host, about.Kind, about.Namespace, about.Name, string(about.UID),
				about.APIVersion,
			}, "")
		}
	case Server:
	}
	return ""
}
