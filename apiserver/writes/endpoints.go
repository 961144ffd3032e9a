// SPDX-License-Identifier: Apache-2.0

package writes

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/event"
)

// recordEndpoints records in the request's mark the pods that an EndpointSlice lists as ready and did not before. old
// is nil for a new slice.
func recordEndpoints(rq *pipeline.Request, obj, old kind.Object) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	rq.ExtraMarks = nil // of an attempt that ended in a conflict
	var wasReady map[types.UID]bool
	if before, ok := old.(*discoveryv1.EndpointSlice); ok && before != nil {
		wasReady = make(map[types.UID]bool, len(before.Endpoints))
		for i := range before.Endpoints {
			if pod := readyPod(before, i); pod != nil {
				wasReady[pod.UID] = true
			}
		}
	}
	for i := range slice.Endpoints {
		pod := readyPod(slice, i)
		if pod == nil || wasReady[pod.UID] {
			continue
		}
		rq.ExtraMarks = append(rq.ExtraMarks, event.Event{
			Step: event.StepEndpoint,
			Subject: event.Subject{
				Resource:  "pods",
				Namespace: pod.Namespace,
				Name:      pod.Name,
				UID:       string(pod.UID),
			},
			Detail: &event.Endpoint{Service: slice.Labels[discoveryv1.LabelServiceName], Slice: slice.Name},
		})
	}
}

// readyPod is the pod of an endpoint, if the endpoint is ready and the pod is in the slice's namespace.
func readyPod(s *discoveryv1.EndpointSlice, i int) *corev1.ObjectReference {
	e := &s.Endpoints[i]
	ref := e.TargetRef
	if ref == nil || ref.Kind != "Pod" || ref.UID == "" || ref.Namespace != s.Namespace ||
		e.Conditions.Ready != nil && !*e.Conditions.Ready {
		return nil
	}
	return ref
}
