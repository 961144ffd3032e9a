// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/apiserver/fairness"
	"keelson/apiserver/pipeline"
)

const (
	defaultSeats = 600
	// maxQueueTime is how long a request may wait for a seat, a quarter of its total time-out.
	maxQueueTime = 15 * time.Second
	// A list needs one more seat per so many objects or stored bytes, a write per so many bytes of body, up to
	// maxSeats.
	objectsPerSeat = 100
	bytesPerSeat   = 512 << 10
	bodyPerSeat    = 256 << 10
	maxSeats       = 10
)

// fairness creates the controller and updates it from the stored FlowSchemas and PriorityLevelConfigurations.
func (s *Server) fairness() *fairness.Controller {
	seats := s.config.Seats
	if seats == 0 {
		seats = defaultSeats
	}
	controller := fairness.New(seats, maxQueueTime)
	row := s.reader.resources[flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")]
	s.flowSchemaStatus = newFlowSchemaStatus(row.Storage, row.FieldManagers["status"], s.log)
	for _, resource := range []string{"prioritylevelconfigurations", "flowschemas"} {
		s.eventHandlers = append(s.eventHandlers, EventHandler{
			Resource: flowcontrolv1.SchemeGroupVersion.WithResource(resource),
			Set: func(o runtime.Object) {
				controller.Set(o)
				s.flowSchemaStatus.set(o)
			},
			Remove: func(o runtime.Object) {
				controller.Remove(o)
				s.flowSchemaStatus.remove(o)
			},
		})
	}
	s.metrics.Registry.MustRegister(fairnessMetrics{controller}, objectMetrics{s})
	return controller
}

// cost estimates the seats of a request: more for lists of many or large objects and for large writes.
func (s *Server) cost(rq *pipeline.Request) int {
	if !rq.ReadOnly() {
		if rq.Length < 0 { // unknown length: count it as the largest
			return maxSeats
		}
		return int(min(1+rq.Length/bodyPerSeat, maxSeats))
	}
	if rq.Verb != "list" || rq.Name != "" {
		return 1
	}
	res := s.handler.Resource(rq.GVR())
	if res == nil || res.Storage == nil {
		return 1
	}
	count, size := res.Storage.Size()
	if rq.Limit > 0 && rq.Limit < int64(count) { // one page only
		size = int(float64(size) * float64(rq.Limit) / float64(count))
		count = int(rq.Limit)
	}
	return min(1+max(count/objectsPerSeat, size/bytesPerSeat), maxSeats)
}
