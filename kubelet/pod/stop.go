// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
)

// minGrace is what a container gets at least, in seconds, when its pre-stop hook or other containers of the pod have
// used the grace period up.
const minGrace = 2

// beginStop stops one container, or runs its pre-stop hook only. The Killing event and the pre-stop hook happen once,
// and the grace period begins once, even if the stop is requested again, or the kubelet is restarted. A hook that the
// restart has interrupted runs again.
func (l *loop) beginStop(ctx context.Context, in decide.Input, action decide.Action) {
	container, kind := podinfo.Find(in.Pod, action.Container)
	if container == nil { // a pod that only the runtime has
		container = &corev1.Container{Name: action.Container}
		kind = podinfo.Main
	}
	stop, announced := l.endOf(action)
	if !announced && action.Event != "" {
		l.env.Events.Event(containerRef(in.Pod, container, kind), corev1.EventTypeNormal, "Killing", action.Event)
		l.env.Log.Info("killing container", "pod", in.Pod.Namespace+"/"+in.Pod.Name, "container", container.Name,
			"grace",
			time.Duration(action.Grace)*time.Second, "why", action.Event)
	}
	hook := action.Hook && !stop.Hooked && container.Lifecycle != nil && container.Lifecycle.PreStop != nil
	begun := stop
	begun.Hooked = true
	l.s.containers.run(action.ID).stop = &begun
	l.launch(ctx, action, func(ctx context.Context) func() {
		rest := action
		rest.Grace = stop.left(action.Grace, time.Now())
		if hook {
			l.starter.preStop(ctx, in, rest, container, kind)
			stop.Hooked = ctx.Err() == nil
			l.stops.keep(action.ID, stop)
			rest.Grace = stop.left(action.Grace, time.Now())
		}
		if action.Op == decide.OpPreStop {
			return nil
		}
		return l.stopOne(ctx, in, rest)
	})
}

// endOf returns how far the end of a container has come; begun is false if it begins now. A shorter grace period
// begins now, too.
func (l *loop) endOf(action decide.Action) (stop stopping, begun bool) {
	if known := l.s.containers.run(action.ID).stop; known != nil {
		stop = *known
		begun = true
	} else {
		stop, begun = l.stops.recall(action.ID)
	}
	if begun && action.Grace >= stop.Grace {
		return stop, true
	}
	stop.Began = time.Now()
	stop.Grace = action.Grace
	l.stops.keep(action.ID, stop)
	return stop, begun
}

func (l *loop) stopOne(ctx context.Context, in decide.Input, action decide.Action) func() {
	if ctx.Err() != nil {
		return nil // requested again with a shorter grace period
	}
	_, err := l.env.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
		ContainerId: action.ID,
		Timeout:     action.Grace,
	})
	if ctx.Err() != nil {
		return nil
	}
	return l.retry(ctx, action, in.Pod, "stop container", err)
}
