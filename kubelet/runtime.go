// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/observed"
)

// watchRuntime wakes the workers whose pods the runtime has news of, until ctx is done. A runtime without events is listed every
// second instead; one with events every 5 minutes, as a safety net.
func (k *Kubelet) watchRuntime(ctx context.Context) {
	var net *time.Timer
	armed := make(chan struct{})
	net = time.AfterFunc(relistEvery, func() {
		<-armed
		k.everyPodIsStale()
		net.Reset(relistEvery)
	})
	close(armed)
	defer net.Stop()
	for ctx.Err() == nil {
		err := k.follow(ctx, func() { net.Reset(relistEvery) })
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			k.relist(ctx)
			return
		}
		k.cfg.Log.Warn("listen to the container runtime", "err", err)
		k.everyPodIsStale()
		k.node.Changed()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// nodeIsStale looks at everything again after an event of no pod. One that names no container either is about the runtime itself.
func (k *Kubelet) nodeIsStale(e *runtimeapi.ContainerEventResponse) {
	if e.GetContainerId() != "" {
		k.everyPodIsStale()
		return
	}
	k.node.Changed()
	for _, w := range k.all() {
		w.NodeChanged()
	}
}

func (k *Kubelet) everyPodIsStale() {
	for _, w := range k.all() {
		w.Stale()
	}
}

// follow hears one stream of events to its end.
func (k *Kubelet) follow(ctx context.Context, heard func()) error {
	stream, err := k.cfg.Runtime.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	k.everyPodIsStale() // what happened before the stream began
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		heard()
		uid := e.GetPodSandboxStatus().GetMetadata().GetUid()
		if uid == "" && len(e.GetContainersStatuses()) > 0 {
			uid = e.GetContainersStatuses()[0].GetLabels()[observed.LabelPodUID]
		}
		if uid == "" {
			k.nodeIsStale(e) // a container that is gone, of a sandbox that is gone, or the node's network
			continue
		}
		if w := k.worker(uid); w != nil {
			w.Stale()
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
		now, err := k.states(ctx)
		if err != nil {
			continue // it is asked again in a second; the node's condition tells of a runtime that is down
		}
		for uid, s := range now {
			if !maps.Equal(before[uid], s) {
				if w := k.worker(uid); w != nil {
					w.Stale()
				}
			}
		}
		for uid := range before {
			if w := k.worker(uid); w != nil && now[uid] == nil {
				w.Stale()
			}
		}
		before = now
	}
}

func (k *Kubelet) states(ctx context.Context) (map[string]map[string]int32, error) {
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
		note(b.GetLabels()[observed.LabelPodUID], b.GetId(), int32(b.GetState()))
	}
	for _, c := range list.GetContainers() {
		note(c.GetLabels()[observed.LabelPodUID], c.GetId(), int32(c.GetState()))
	}
	return out, nil
}
