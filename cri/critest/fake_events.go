// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// watchers are the open streams of events.
type watchers struct {
	mu   sync.Mutex
	subs map[chan *runtimeapi.ContainerEventResponse]struct{}
}

// GetContainerEvents streams events until the caller disconnects. The stream of a slow caller ends; it never misses
// single events.
func (w *watchers) GetContainerEvents(
	_ *runtimeapi.GetEventsRequest, s grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	ch := make(chan *runtimeapi.ContainerEventResponse, 1024)
	w.mu.Lock()
	w.subs[ch] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.subs, ch)
		w.mu.Unlock()
	}()
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				return status.Error(codes.ResourceExhausted, "container events: the reader is too slow")
			}
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// Watchers counts the open streams of GetContainerEvents.
func (w *watchers) Watchers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.subs)
}

// send sends an event to all streams, and ends those that are full.
func (w *watchers) send(e *runtimeapi.ContainerEventResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.subs {
		select {
		case ch <- e:
		default:
			delete(w.subs, ch)
			close(ch)
		}
	}
}

func (p *pods) emitLocked(id string, s *sandbox, t runtimeapi.ContainerEventType) {
	if p.watchers.Watchers() == 0 {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: t, CreatedAt: time.Now().UnixNano()}
	if s != nil {
		e.PodSandboxStatus = s.status()
		e.ContainersStatuses = p.statusesLocked(s.id)
	}
	p.watchers.send(e)
}

func (p *pods) statusesLocked(sandboxID string) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, c := range sortedValues(p.containers) {
		if c.sandbox == sandboxID {
			out = append(out, c.status())
		}
	}
	return out
}
