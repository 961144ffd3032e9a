// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/servertest"
)

// TestListsCostTheirSize: a list takes seats for what it writes, whatever lies between the resource and its cache.
func TestListsCostTheirSize(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.TwoVersions(nil))
	const many = 250
	for i := range many {
		name := fmt.Sprintf("s%d", i)
		if _, err := custom.In("v1", "servers").Create(t.Context(),
			servertest.Object("example.com/v1", "Server", "ns", name, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{
				Name:      name,
				Namespace: "ns",
			},
			InvolvedObject: corev1.ObjectReference{Namespace: "ns"},
		}
		if _, err := custom.Clients(t).CoreV1().Events("ns").Create(t.Context(), e,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		group, version, resource string
		limit                    int64
		want                     int
	}{
		{"example.com", "v1", "servers", 0, 3},
		{"example.com", "v2", "servers", 0, 3},
		{"example.com", "v2", "servers", 50, 1},
		{"", "v1", "events", 0, 3},
		{"events.k8s.io", "v1", "events", 0, 3},
		{"", "v1", "componentstatuses", 0, 1},
	} {
		rq := &pipeline.Request{Info: pipeline.Info{
			IsResource: true,
			Verb:       "list",
			Group:      tc.group,
			Version:    tc.version,
			Resource:   tc.resource,
			Limit:      tc.limit,
		}}
		if got := custom.Cost(rq); got != tc.want {
			t.Errorf("a list of %s/%s %s, limit %d: %d seats, want %d", tc.group, tc.version, tc.resource, tc.limit,
				got, tc.want)
		}
	}
}
