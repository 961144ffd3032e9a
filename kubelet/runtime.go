// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/node"
	"keelson/kubelet/pod"
	"keelson/kubelet/runtimestate"
)

// runtimeWatch notifies the workers of what changes in the container runtime.
type runtimeWatch struct {
	runtime runtimeapi.RuntimeServiceClient
	workers *workers
	self    *node.Self
	log     *slog.Logger
}

// resyncPeriod is the time after which all pods are listed again if the runtime has sent no event.
const resyncPeriod = 5 * time.Minute

// run wakes the workers of pods that have changed in the runtime, until ctx is done. A runtime without
// container events is listed every second instead; one with events also every 5 minutes.
func (r *runtimeWatch) run(ctx context.Context) {
	var resync *time.Timer
	armed := make(chan struct{})
	resync = time.AfterFunc(resyncPeriod, func() {
		<-armed
		r.workers.notifyAll(pod.RuntimeChanged)
		resync.Reset(resyncPeriod)
	})
	close(armed)
	defer resync.Stop()
	for ctx.Err() == nil {
		err := r.readContainerEvents(ctx, func() { resync.Reset(resyncPeriod) })
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			r.relist(ctx)
			return
		}
		r.log.Warn("listen to the container runtime", "err", err)
		r.workers.notifyAll(pod.RuntimeChanged)
		r.self.Changed()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// handleNodeEvent handles an event without a pod. One without a container is about the runtime itself.
func (r *runtimeWatch) handleNodeEvent(e *runtimeapi.ContainerEventResponse) {
	if e.GetContainerId() != "" {
		r.workers.notifyAll(pod.RuntimeChanged)
		return
	}
	r.self.Changed()
	r.workers.notifyAll(pod.NodeChanged)
}

// readContainerEvents reads one stream of container events to its end.
func (r *runtimeWatch) readContainerEvents(ctx context.Context, received func()) error {
	stream, err := r.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	r.workers.notifyAll(pod.RuntimeChanged) // what happened before the stream began
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		received()
		uid := e.GetPodSandboxStatus().GetMetadata().GetUid()
		if uid == "" && len(e.GetContainersStatuses()) > 0 {
			uid = e.GetContainersStatuses()[0].GetLabels()[runtimestate.LabelPodUID]
		}
		if uid == "" {
			r.handleNodeEvent(e) // a container that is gone, of a sandbox that is gone, or the node's network
			continue
		}
		r.workers.notify(uid, pod.RuntimeChanged)
	}
}

// relist compares the runtime's lists every second.
func (r *runtimeWatch) relist(ctx context.Context) {
	before := map[string]map[string]int32{} // pod -> sandbox or container -> state
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now, err := r.containerStates(ctx)
		if err != nil {
			continue // tried again in a second; the node's condition reports a runtime that is down
		}
		for uid, s := range now {
			if !maps.Equal(before[uid], s) {
				r.workers.notify(uid, pod.RuntimeChanged)
			}
		}
		for uid := range before {
			if now[uid] == nil {
				r.workers.notify(uid, pod.RuntimeChanged)
			}
		}
		before = now
	}
}

func (r *runtimeWatch) containerStates(ctx context.Context) (map[string]map[string]int32, error) {
	boxes, err := r.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	list, err := r.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]int32{}
	note := func(uid, id string, state int32) {
		if out[uid] == nil {
			out[uid] = map[string]int32{}
		}
		out[uid][id] = state
	}
	for _, b := range boxes.GetItems() {
		note(b.GetLabels()[runtimestate.LabelPodUID], b.GetId(), int32(b.GetState()))
	}
	for _, c := range list.GetContainers() {
		note(c.GetLabels()[runtimestate.LabelPodUID], c.GetId(), int32(c.GetState()))
	}
	return out, nil
}
