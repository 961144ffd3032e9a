// SPDX-License-Identifier: Apache-2.0

package everykind

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
)

// emptySource has no objects and notes which resources it is asked for.
type emptySource struct {
	mu    sync.Mutex
	asked []string
}

func (s *emptySource) List(
	context.Context, schema.GroupVersionResource, string, metav1.ListOptions,
) ([]runtime.Object, string, error) {
	return nil, "1", nil
}

func (s *emptySource) Watch(
	_ context.Context, gvr schema.GroupVersionResource, _ string, _ metav1.ListOptions,
) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, gvr.Resource)
	return watch.NewFake(), nil
}

// TestInformersAskTheSource: in each group the informer of a kind that agents follow asks the source.
func TestInformersAskTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &emptySource{}
		c, err := client.InProcess(http.NotFoundHandler(), src, "test")
		if err != nil {
			t.Fatal(err)
		}
		factory := Informers(c, client.Scope{})
		for _, inf := range []cache.SharedIndexInformer{
			factory.Core().V1().Pods().Informer(), factory.Apps().V1().ReplicaSets().Informer(),
			factory.Batch().V1().Jobs().Informer(),
			factory.Coordination().V1().Leases().Informer(), factory.Discovery().V1().EndpointSlices().Informer(),
			factory.Policy().V1().PodDisruptionBudgets().Informer(), factory.Rbac().V1().Roles().Informer(),
			factory.Scheduling().V1().PriorityClasses().Informer(), factory.Storage().V1().CSINodes().Informer(),
		} {
			inf.GetStore()
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.StartWithContext(ctx)
		synctest.Wait()
		cancel()
		factory.Shutdown()
		slices.Sort(src.asked)
		want := []string{
			"csinodes", "endpointslices", "jobs", "leases", "poddisruptionbudgets", "pods", "priorityclasses",
			"replicasets", "roles",
		}
		if !slices.Equal(src.asked, want) {
			t.Errorf("the source was asked for %q, want %q", src.asked, want)
		}
	})
}
