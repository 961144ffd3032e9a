// SPDX-License-Identifier: Apache-2.0

// Package controllertest gives controller tests an in-memory cluster: client-go's fake clientset with more of a
// server's behavior (generateName, UIDs, creation times, resourceVersion conflicts), and a runner for one controller.
// Only tests import it.
package controllertest

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/controllers/framework"
)

// Cluster is the in-memory cluster.
type Cluster struct {
	*client.Client
	Fake   *fake.Clientset
	Events *record.FakeRecorder
}

// New returns a cluster with objs; missing UIDs are set.
func New(objs ...runtime.Object) *Cluster {
	clientset := fake.NewClientset()
	v := &versioned{ObjectTracker: clientset.Tracker()}
	clientset.PrependReactor("*", "*", clienttesting.ObjectReaction(v))
	clienttest.Complete(&clientset.Fake, v)
	for _, o := range objs {
		a, err := meta.Accessor(o)
		if err != nil {
			panic(err)
		}
		v.stamp(a)
		if err := clientset.Tracker().Add(o); err != nil {
			panic(err)
		}
	}
	return &Cluster{
		Client: &client.Client{Interface: client.Plain(clientset)},
		Fake:   clientset,
		Events: record.NewFakeRecorder(1000),
	}
}

// Start builds a controller and runs it until the test ends.
func (c *Cluster) Start(t testing.TB, name string, build func(*framework.Env) (framework.Controller, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	shared := c.Informers(0, client.Scope{})
	ctl, err := build(&framework.Env{
		Name:   name,
		Queue:  framework.Queue{Name: name},
		Client: c.Client,
		Shared: shared,
		Events: c.Events,
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("build %s: %v", name, err)
	}
	done := make(chan error, 1)
	shared.Start(ctx.Done())
	go func() { done <- ctl.Run(ctx, func() {}) }() // ends with the test, which waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
		shared.Shutdown()
	})
}

// EventsSeen returns the events recorded so far, oldest first, as "Normal Reason message".
func (c *Cluster) EventsSeen() []string {
	var all []string
	for {
		select {
		case e := <-c.Events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// versioned sets the fields that a server sets.
type versioned struct {
	clienttesting.ObjectTracker
	last atomic.Int64
}

func (v *versioned) stamp(obj metav1.Object) {
	n := v.last.Add(1)
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(fmt.Sprintf("%s%05d", obj.GetGenerateName(), n))
	}
	if obj.GetUID() == "" {
		obj.SetUID(types.UID(fmt.Sprintf("uid-%05d", n)))
	}
	if t := obj.GetCreationTimestamp(); t.IsZero() {
		obj.SetCreationTimestamp(metav1.NewTime(time.Now()))
	}
	obj.SetResourceVersion(strconv.FormatInt(n, 10))
}

func (v *versioned) Create(
	gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.CreateOptions,
) error {
	if a, err := meta.Accessor(obj); err == nil {
		v.stamp(a)
	}
	return v.ObjectTracker.Create(gvr, obj, ns, opts...)
}

func (v *versioned) Update(
	gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.UpdateOptions,
) error {
	if err := v.check(gvr, obj, ns); err != nil {
		return err
	}
	return v.ObjectTracker.Update(gvr, obj, ns, opts...)
}

func (v *versioned) Patch(
	gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.PatchOptions,
) error {
	if err := v.check(gvr, obj, ns); err != nil {
		return err
	}
	return v.ObjectTracker.Patch(gvr, obj, ns, opts...)
}

// check rejects obj if its resourceVersion differs from the stored one; else it sets the next one.
func (v *versioned) check(gvr schema.GroupVersionResource, obj runtime.Object, ns string) error {
	a, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	old, err := v.Get(gvr, ns, a.GetName())
	if err != nil {
		return err
	}
	o, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	if rv := a.GetResourceVersion(); rv != "" && rv != o.GetResourceVersion() {
		return apierrors.NewConflict(gvr.GroupResource(), a.GetName(),
			fmt.Errorf("stored is %s, given %s", o.GetResourceVersion(), rv))
	}
	if a.GetUID() == "" { // as a server does in an unconditional update
		a.SetUID(o.GetUID())
		a.SetCreationTimestamp(o.GetCreationTimestamp())
	}
	v.stamp(a)
	return nil
}
