// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
)

// TestDeletedBeforeTheWatch: an informer learns of a pod that was deleted after its list and before its watch.
func TestDeletedBeforeTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := New(apitest.Pod("stays"), apitest.Pod("goes"))
		first := true
		clientset.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			if first {
				first = false
				if err := clientset.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default",
					"goes"); err != nil {
					t.Error(err)
				}
			}
			return false, nil, nil
		})
		factory := informers.NewSharedInformerFactory(clientset, 0)
		pods := factory.Core().V1().Pods().Lister()
		done := make(chan struct{})
		factory.Start(done)
		factory.WaitForCacheSync(done)
		synctest.Wait()
		all, err := pods.List(labels.Everything())
		if err != nil || len(all) != 1 || all[0].Name != "stays" {
			t.Errorf("the informer has %v, %v; want the pod that stays", all, err)
		}
		close(done)
		factory.Shutdown()
	})
}

// TestUnreadEvents: a thousand events wait for a watcher that does not read.
func TestUnreadEvents(t *testing.T) {
	c := New()
	watcher, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for i := range 500 {
		if _, err := c.CoreV1().Pods("default").Create(t.Context(), apitest.Pod(fmt.Sprint(i)),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		if e := <-watcher.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Pod).Name != fmt.Sprint(i) {
			t.Fatalf("event %d: %s of %v", i, e.Type, e.Object)
		}
	}
}

// TestUntil: what waits is asked when an object of its resource changes, and at no other time.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := New()
		pods := clientset.CoreV1().Pods("default")
		go func() { // ends with the second creation
			for _, name := range []string{"a", "b"} {
				time.Sleep(50 * time.Second)
				if _, err := pods.Create(context.WithoutCancel(t.Context()), apitest.Pod(name),
					metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		}()
		asked := 0
		Until(t, clientset.Tracker(), corev1.SchemeGroupVersion.WithResource("pods"), "two pods", func() bool {
			asked++
			all, err := pods.List(t.Context(), metav1.ListOptions{})
			return err == nil && len(all.Items) == 2
		})
		if asked != 3 {
			t.Errorf("asked %d times, want 3", asked)
		}
	})
}
