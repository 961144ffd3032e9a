// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/event"
	"keelson/kubelet/holdback"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// loop is the goroutine of a worker. It shares the worker's inbox, eviction and observed pod with others. All else is
// its own, and its methods run on that goroutine, except the work that they pass to launch.
type loop struct {
	env      *Env
	uid      string
	static   bool
	subject  event.Subject // of its marks
	inbox    *inbox
	eviction *eviction
	observed *atomic.Pointer[runtimestate.Pod]
	starter  starter     // for actions
	stops    stopRecords // for actions

	s   state
	ops sync.WaitGroup // actions under way
}

// state is what the loop remembers from one round to the next.
type state struct {
	seen       time.Time // when the kubelet first saw the pod
	actions    actions
	containers containers
	admission  admission
	volumes    volumes
	start      startTurn
	resizes    resizes
	report     reported
	end        *decide.End
	downward   string // what the downward API last showed
	readErr    int    // how often the runtime could not be read, in a row

	recalled  bool // what an earlier run of the kubelet knew is taken over
	deleted   bool // the API object is deleted
	forgotten bool // the pod's last traces are removed: the worker ends
}

// volumes is how far the pod's volumes are.
type volumes struct {
	done     bool      // set up at least once
	dirty    bool      // what they show has changed
	refresh  time.Time // when tokens are due; zero: never
	tornDown bool
}

func newLoop(env *Env, p *corev1.Pod, seen time.Time, w *Worker) *loop {
	uid := string(p.UID)
	subject := event.Subject{
		Resource:  "pods",
		Namespace: p.Namespace,
		Name:      p.Name,
		UID:       uid,
	}
	return &loop{
		env:      env,
		uid:      uid,
		static:   podinfo.Static(p),
		subject:  subject,
		inbox:    &w.inbox,
		eviction: &w.eviction,
		observed: &w.observed,
		starter: starter{
			env:     env,
			uid:     uid,
			subject: subject,
			inbox:   &w.inbox,
			pulls:   &pulls{},
		},
		stops: stopRecords{dir: filepath.Join(env.Volumes.PodDir(uid), "stops"), log: env.Log},
		s: state{
			seen:       seen,
			actions:    newActions(),
			containers: newContainers(),
			start: startTurn{
				subject: holdback.Subject{UID: uid, Namespace: p.Namespace, Name: p.Name},
			},
		},
	}
}

// run runs rounds until nothing of the pod is left, or ctx is done.
func (l *loop) run(ctx context.Context) (gone bool) {
	defer l.leaveUnfinished() // after the actions have ended
	defer l.ops.Wait()
	opctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	l.markSeen()
	for create := true; ; create = false {
		begin := time.Now()
		next := l.step(opctx)
		l.env.Metrics.PodStep(create, time.Since(begin))
		if l.s.forgotten {
			l.eviction.complete()
			l.ops.Wait() // a mirror's deletion may be under way
			return true
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return false
		case <-l.inbox.wake.C():
		case <-timer.C:
		}
	}
}

// launch runs an action concurrently with the loop. work returns what the loop then applies.
func (l *loop) launch(ctx context.Context, a decide.Action, work func(ctx context.Context) func()) {
	key := a.Key()
	ctx = l.s.actions.begin(ctx, a)
	l.ops.Go(func() {
		apply := work(ctx) // its context ends once the loop has applied it
		l.inbox.finish(result{key, apply})
	})
}

// markSeen sends the mark of a pod from the API. The reader of the file marks a static pod.
func (l *loop) markSeen() {
	if l.static {
		return
	}
	l.env.Marks.Emit(event.Event{
		Step:      event.StepSeen,
		Component: l.env.Component,
		At:        l.s.seen,
		Subject:   l.subject,
		Detail:    &event.Seen{Source: "api"},
	})
}
