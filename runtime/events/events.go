// SPDX-License-Identifier: Apache-2.0

// Package events sends the events of sandboxes and containers to the streams of CRI's GetContainerEvents. sandbox,
// container and podnet send; runtime/server serves the streams. It never waits for a reader.
package events

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
)

// Broker sends events to the streams of GetContainerEvents. The stream of a slow client is closed, so that it never
// misses an event without noticing.
type Broker struct {
	table *pods.Table

	mu   sync.Mutex // taken last: no record or table is read while it is held
	subs map[chan *runtimeapi.ContainerEventResponse]struct{}
}

const eventQueue = 4096

// New makes a Broker without streams. The table has the containers that an event of a sandbox describes.
func New(table *pods.Table) *Broker {
	return &Broker{table: table, subs: map[chan *runtimeapi.ContainerEventResponse]struct{}{}}
}

func (b *Broker) send(e *runtimeapi.ContainerEventResponse) {
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

func (b *Broker) listening() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) > 0
}

// Send sends an event of a sandbox or one of its containers, with the status of the sandbox and all its
// containers.
func (b *Broker) Send(sb *pods.Sandbox, id string, t runtimeapi.ContainerEventType) {
	if !b.listening() {
		return
	}
	b.send(&runtimeapi.ContainerEventResponse{
		ContainerId:        id,
		ContainerEventType: t,
		CreatedAt:          time.Now().UnixNano(),
		PodSandboxStatus:   sb.Status(),
		ContainersStatuses: b.table.StatusesOf(sb.ID),
	})
}

// SendUnassigned sends an event without a sandbox: the client asks for the runtime's status.
func (b *Broker) SendUnassigned() {
	b.send(&runtimeapi.ContainerEventResponse{
		ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		CreatedAt:          time.Now().UnixNano(),
	})
}

// Stream sends events to out until the client disconnects.
func (b *Broker) Stream(out grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	ch := make(chan *runtimeapi.ContainerEventResponse, eventQueue)
	b.mu.Lock()
	b.subs[ch] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.subs, ch)
		b.mu.Unlock()
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
