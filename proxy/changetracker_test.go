// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/apitest"
	"keelson/client"
	"keelson/client/clienttest"
)

// TestFirstBatchIsWhole: the first batch has all objects of the initial lists, so that none of them is handled a second
// time after the whole table was written.
func TestFirstBatchIsWhole(t *testing.T) {
	const n = 2000
	objects := []runtime.Object{apitest.Node("node")}
	for i := range n {
		objects = append(objects, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s%d", i)},
		})
	}
	proxy, err := New(Config{
		Client:   &client.Client{Interface: client.Plain(clienttest.New(objects...))},
		NodeName: "node",
		Table:    "none",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got *changeBatch
	if err := proxy.runInformers(ctx, func() {
		got = proxy.tracker.take()
		cancel()
	}); err != nil {
		t.Fatal(err)
	}
	if got == nil || len(got.services) != n || got.node == nil {
		t.Errorf("first batch: got %d services, want %d and the node", len(got.services), n)
	}
}
