// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/apiserver/access"
	"keelson/apiserver/fairness"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
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

// fairnessHandlers update the controller and the status of FlowSchemas from the stored FlowSchemas and
// PriorityLevelConfigurations.
func fairnessHandlers(controller *fairness.Controller, status *flowSchemaStatus) []access.EventHandler {
	var out []access.EventHandler
	for _, resource := range []string{"prioritylevelconfigurations", "flowschemas"} {
		out = append(out, access.EventHandler{
			Resource: flowcontrolv1.SchemeGroupVersion.WithResource(resource),
			Set: func(o runtime.Object) {
				controller.Set(o)
				status.set(o)
			},
			Remove: func(o runtime.Object) {
				controller.Remove(o)
				status.remove(o)
			},
		})
	}
	return out
}

// seatCost is the cost of requests in seats.
type seatCost struct {
	served *resources.Served
	heavy  []string // paths of heavy routes
}

// of estimates the seats of a request: more for lists of many or large objects and for large writes.
func (c seatCost) of(rq *pipeline.Request) int {
	if slices.Contains(c.heavy, rq.Path) {
		return maxSeats
	}
	if !rq.ReadOnly() {
		if rq.Length < 0 { // unknown length: count it as the largest
			return maxSeats
		}
		return int(min(1+rq.Length/bodyPerSeat, maxSeats))
	}
	if rq.Verb != "list" || rq.Name != "" {
		return 1
	}
	res := c.served.Find(rq.GVR())
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
