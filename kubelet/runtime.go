// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/pod"
	"keelson/kubelet/runtimestate"
)

// watchRuntime wakes the workers of pods that have changed in the runtime, until ctx is done. A runtime without
// container events is listed every second instead; one with events also every 5 minutes.
func (k *Kubelet) watchRuntime(ctx context.Context) {
	var resync *time.Timer
	armed := make(chan struct{})
	resync = time.AfterFunc(resyncPeriod, func() {
		<-armed
		k.relistAllPods()
		resync.Reset(resyncPeriod)
	})
	close(armed)
	defer resync.Stop()
	for ctx.Err() == nil {
		err := k.readContainerEvents(ctx, func() { resync.Reset(resyncPeriod) })
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			k.relist(ctx)
			return
		}
		k.cfg.Log.Warn("listen to the container runtime", "err", err)
		k.relistAllPods()
		k.node.Changed()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// handleNodeEvent handles an event without a pod. One without a container is about the runtime itself.
func (k *Kubelet) handleNodeEvent(e *runtimeapi.ContainerEventResponse) {
	if e.GetContainerId() != "" {
		k.relistAllPods()
		return
	}
	k.node.Changed()
	for _, w := range k.allWorkers() {
		w.Notify(pod.NodeChanged)
	}
}

func (k *Kubelet) relistAllPods() {
	for _, w := range k.allWorkers() {
		w.Notify(pod.RuntimeChanged)
	}
}

// readContainerEvents reads one stream of container events to its end.
func (k *Kubelet) readContainerEvents(ctx context.Context, received func()) error {
	stream, err := k.cfg.Runtime.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	k.relistAllPods() // what happened before the stream began
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
			k.handleNodeEvent(e) // a container that is gone, of a sandbox that is gone, or the node's network
			continue
		}
		if w := k.worker(uid); w != nil {
			w.Notify(pod.RuntimeChanged)
		}
	}
}

// relist compares the runtime's lists every second.
func (k *Kubelet) relist(ctx context.Context) {
	before := map[string]map[string]int32{} // pod -> sandbox or container -> state
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now, err := k.containerStates(ctx)
		if err != nil {
			continue // it is asked again in a second; the node's condition tells of a runtime that is down
		}
		for uid, s := range now {
			if !maps.Equal(before[uid], s) {
				if w := k.worker(uid); w != nil {
					w.Notify(pod.RuntimeChanged)
				}
			}
		}
		for uid := range before {
			if w := k.worker(uid); w != nil && now[uid] == nil {
				w.Notify(pod.RuntimeChanged)
			}
		}
		before = now
	}
}

func (k *Kubelet) containerStates(ctx context.Context) (map[string]map[string]int32, error) {
	boxes, err := k.cfg.Runtime.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	list, err := k.cfg.Runtime.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
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
