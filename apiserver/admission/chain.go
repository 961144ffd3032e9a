// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/store"
)

// Chain is the ordered list of plugins. Mutate runs all mutators; then the handler defaults and validates; then Do
// runs all validators, and the write between them and the release of what they reserved.
type Chain struct {
	plugins []Plugin
	metrics *Metrics
	times   []times // of each plugin
}

// NewChain returns a chain that records the durations of its plugins in metrics, which may be nil.
func NewChain(metrics *Metrics, plugins ...Plugin) *Chain {
	return &Chain{plugins: plugins, metrics: metrics, times: make([]times, len(plugins)+1)}
}

// Plugins are the plugins in order. The slice must not be modified.
func (c *Chain) Plugins() []Plugin {
	if c == nil {
		return nil
	}
	return c.plugins
}

// Mutate runs the mutators in order and stops at the first error; it runs a second round if one requested it. ran,
// which may be nil, is called with each plugin's name. Request.Changes has what they changed.
func (c *Chain) Mutate(ctx context.Context, r *Request, ran func(name string)) error {
	w := c.watch(admit, r.Operation)
	err := c.mutate(ctx, r, &w, ran)
	if err == nil && r.reinvoke {
		r.Reinvocation = true
		err = c.mutate(ctx, r, &w, nil)
	}
	w.end(err)
	return err
}

func (c *Chain) mutate(ctx context.Context, r *Request, w *stopwatch, ran func(name string)) error {
	for i, plugin := range c.plugins {
		m, ok := plugin.(Mutator)
		if !ok {
			continue
		}
		r.currentPlugin = plugin.Name()
		err := m.Admit(ctx, r)
		w.lap(i, err)
		if err != nil {
			return err
		}
		if ran != nil {
			ran(plugin.Name())
		}
	}
	return nil
}

// ErrNothingStored is in the chain of the errors of a write that has stored nothing, where no other error says so.
var ErrNothingStored = errors.New("nothing was stored")

// Do runs the validators in order and then, unless one rejects r, write. What the validators have reserved is released
// if nothing was stored: after a rejection, a dry run, and a write that certainly failed. After another error it is
// kept, because the object may be stored.
func (c *Chain) Do(ctx context.Context, r *Request, write func() error) error {
	stored := false
	defer func() {
		if !stored {
			r.release()
		}
	}()
	if err := c.check(ctx, r); err != nil {
		return err
	}
	stored = !r.DryRun // also if write panics
	err := write()
	if certainlyFailed(err) {
		stored = false
	}
	return err
}

func (r *Request) release() {
	for _, release := range r.releases {
		release()
	}
	r.releases = nil
}

// certainlyFailed reports whether a write with this error has stored nothing. Only a rejection is certain: after other
// errors of the store the object may be there.
func certainlyFailed(err error) bool {
	for _, known := range []error{
		ErrNothingStored, store.ErrTooLarge, store.ErrNoSpace, store.ErrExists, store.ErrNotFound,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	if _, conflict := errors.AsType[*store.ConflictError](err); conflict {
		return true
	}
	s := apierrors.APIStatus(nil)
	return errors.As(err, &s) && s.Status().Code < http.StatusInternalServerError
}

// check runs the validators in order and stops at the first error.
func (c *Chain) check(ctx context.Context, r *Request) error {
	stopwatch := c.watch(validate, r.Operation)
	for i, p := range c.plugins {
		v, ok := p.(Validator)
		if !ok {
			continue
		}
		err := v.Validate(ctx, r)
		stopwatch.lap(i, err)
		if err != nil {
			stopwatch.end(err)
			return err
		}
	}
	stopwatch.end(nil)
	return nil
}

// The steps and operations as indices.
const (
	admit = iota
	validate
	steps
)

var operations = []Operation{Create, Update, Delete, Connect}

// times are the observers of one plugin by step, operation and rejection; created on first use.
type times [steps][4][2]atomic.Pointer[prometheus.Observer]

// stopwatch measures the plugins of one step of a request: each from the end of the one before. Without a chain it
// measures nothing.
type stopwatch struct {
	chain       *Chain
	step, op    int
	begin, last time.Time
}

func (c *Chain) watch(step int, op Operation) stopwatch {
	if c.metrics == nil {
		return stopwatch{}
	}
	w := stopwatch{chain: c, step: step, begin: time.Now()}
	for i, o := range operations {
		if o == op {
			w.op = i
		}
	}
	w.last = w.begin
	return w
}

func (w *stopwatch) lap(plugin int, err error) {
	if w.chain == nil {
		return
	}
	now := time.Now()
	w.observer(plugin, err).Observe(now.Sub(w.last).Seconds())
	w.last = now
}

// end records the whole step.
func (w *stopwatch) end(err error) {
	if w.chain != nil {
		w.observer(len(w.chain.plugins), err).Observe(time.Since(w.begin).Seconds())
	}
}

func (w *stopwatch) labels(err error) []string {
	step := StepAdmit
	if w.step == validate {
		step = StepValidate
	}
	return []string{step, string(operations[w.op]), strconv.FormatBool(err != nil)}
}

func (w *stopwatch) observer(plugin int, err error) prometheus.Observer {
	rejected := 0
	if err != nil {
		rejected = 1
	}
	slot := &w.chain.times[plugin][w.step][w.op][rejected]
	if o := slot.Load(); o != nil {
		return *o
	}
	var o prometheus.Observer
	if labels := w.labels(err); plugin == len(w.chain.plugins) {
		histogram := w.chain.metrics.step.WithLabelValues(labels...)
		summary := w.chain.metrics.stepSummary.WithLabelValues(labels...)
		o = prometheus.ObserverFunc(func(v float64) {
			histogram.Observe(v)
			summary.Observe(v)
		})
	} else {
		o = w.chain.metrics.plugin.WithLabelValues(append([]string{w.chain.plugins[plugin].Name()}, labels...)...)
	}
	slot.Store(&o)
	return o
}
