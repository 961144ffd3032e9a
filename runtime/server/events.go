// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
)

// broker sends events to the streams of GetContainerEvents. The stream of a slow client is closed, so that it never
// misses an event without noticing.
type broker struct {
	mu   sync.Mutex
	subs map[chan *runtimeapi.ContainerEventResponse]struct{}
}

const eventQueue = 4096

func newBroker() *broker {
	return &broker{subs: map[chan *runtimeapi.ContainerEventResponse]struct{}{}}
}

func (b *broker) send(e *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subs {
		select {
		case ch <- e:
		default:
			delete(b.subs, ch)
			close(ch)
		}
	}
}

func (b *broker) listening() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) > 0
}

// sendEvent sends an event of a sandbox or one of its containers, with the status of the sandbox and all its
// containers.
func (s *Server) sendEvent(sb *pods.Sandbox, id string, t runtimeapi.ContainerEventType) {
	if !s.events.listening() {
		return
	}
	s.events.send(&runtimeapi.ContainerEventResponse{
		ContainerId:        id,
		ContainerEventType: t,
		CreatedAt:          time.Now().UnixNano(),
		PodSandboxStatus:   sb.Status(),
		ContainersStatuses: s.table.StatusesOf(sb.ID),
	})
}

// GetContainerEvents streams events until the client disconnects.
func (s *Server) GetContainerEvents(
	_ *runtimeapi.GetEventsRequest, out grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	ch := make(chan *runtimeapi.ContainerEventResponse, eventQueue)
	s.events.mu.Lock()
	s.events.subs[ch] = struct{}{}
	s.events.mu.Unlock()
	defer func() {
		s.events.mu.Lock()
		delete(s.events.subs, ch)
		s.events.mu.Unlock()
	}()
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				return status.Error(codes.ResourceExhausted, "container events: the reader is too slow")
			}
			if err := out.Send(e); err != nil {
				return err
			}
		case <-out.Context().Done():
			return nil
		}
	}
}
