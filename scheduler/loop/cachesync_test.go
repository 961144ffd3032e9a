// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/framework"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
)

// TestKindThatTheServerHasNot: a plugin that looks at a typed resource which the server does not serve keeps no pod
// from being scheduled.
func TestKindThatTheServerHasNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(schedtest.Node("node-1"), schedtest.Pod("a"))
		c.Resources = []*metav1.APIResourceList{
			{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod"}}},
		}
		templates := corev1.SchemeGroupVersion.WithResource("podtemplates")
		c.PrependReactor("list", templates.Resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(templates.GroupResource(), "")
		})
		var said strings.Builder
		cfg := loop.Config{
			Client:      &client.Client{Interface: client.Plain(c)},
			Log:         slog.New(slog.NewTextHandler(&said, nil)),
			Parallelism: 1,
		}
		with(framework.Registry{"LooksAt": func(_ any, h *framework.Handle) (*framework.Plugin, error) {
			_ = h.Informers.Core().V1().PodTemplates().Informer()
			return &framework.Plugin{
				Name:   "LooksAt",
				Events: []framework.ClusterEventWithHint{{Kinds: framework.Objects, Resource: templates}},
			}, nil
		}})(&cfg)
		s, err := loop.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		ready := make(chan struct{})
		go func() { done <- s.Run(ctx, func() { close(ready) }) }() // ends with ctx
		select {
		case <-ready:
		case <-time.After(time.Hour):
			t.Error("it waits for what the server has not")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := `kind=PodTemplate apiVersion=v1`; !strings.Contains(said.String(), want) {
			t.Errorf("the log says %s, want %s", said.String(), want)
		}
	})
}
