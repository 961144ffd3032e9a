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
	// longestInQueue is how long a request waits for a seat, a quarter of what it may take in all.
	longestInQueue = 15 * time.Second
	// A list takes a seat more for so many objects, up to a limit.
	objectsPerSeat = 100
	mostSeats      = 10
)

// fairness makes the limiter and lets it follow the stored flow schemas and priority levels.
func (s *Server) fairness() *fairness.Controller {
	seats := s.config.Seats
	if seats == 0 {
		seats = defaultSeats
	}
	f := fairness.New(seats, longestInQueue)
	row := s.reader.resources[flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")]
	s.dangling = newDangling(row.Storage, row.Fields["status"], s.log)
	for _, resource := range []string{"prioritylevelconfigurations", "flowschemas"} {
		s.follow = append(s.follow, Follower{
			Resource: flowcontrolv1.SchemeGroupVersion.WithResource(resource),
			Set: func(o runtime.Object) {
				f.Set(o)
				s.dangling.set(o)
			},
			Remove: func(o runtime.Object) {
				f.Remove(o)
				s.dangling.remove(o)
			},
		})
	}
	s.metrics.Registry.MustRegister(fairnessMetrics{f}, objectMetrics{s})
	return f
}

// width estimates how many seats a request takes: lists of many objects more.
func (s *Server) width(rq *pipeline.Request) int {
	if rq.Verb != "list" || rq.Name != "" {
		return 1
	}
	res := s.reader.resources[rq.GVR()]
	if res == nil || res.Storage == nil {
		return 1
	}
	counted, ok := res.Storage.(interface{ Count() int })
	if !ok {
		return 1
	}
	return min(1+counted.Count()/objectsPerSeat, mostSeats)
}
