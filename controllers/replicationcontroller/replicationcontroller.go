// SPDX-License-Identifier: Apache-2.0

// Package replicationcontroller maintains the number of pods of every ReplicationController. The table of controllers
// starts it; internal/replica does the work on a converted ReplicaSet (convert.go). It never touches pods that another
// controller owns.
package replicationcontroller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/controllers/framework"
	"keelson/controllers/internal/replica"
)

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	c, err := replica.New(env, controllers{
		env.Client, coreinformers.New(env.Shared.Scoped()).ReplicationControllers().Informer(),
	})
	if err != nil {
		return nil, fmt.Errorf("replicationcontroller controller: %w", err)
	}
	return c, nil
}

type controllers struct {
	client   *client.Client
	informer cache.SharedIndexInformer
}

var gvk = corev1.SchemeGroupVersion.WithKind("ReplicationController")

func (controllers) GVK() schema.GroupVersionKind          { return gvk }
func (controllers) Resource() string                      { return "replicationcontrollers" }
func (c controllers) Informer() cache.SharedIndexInformer { return c.informer }

func (controllers) Of(obj any) *appsv1.ReplicaSet {
	rc, ok := obj.(*corev1.ReplicationController)
	if !ok {
		return nil
	}
	return toSet(rc)
}

func (c controllers) Sets(namespace string) framework.StatusClient[*appsv1.ReplicaSet] {
	return converted{c.client.CoreV1().ReplicationControllers(namespace)}
}

// converted reads and writes replication controllers as the sets that stand for them.
type converted struct {
	client framework.StatusClient[*corev1.ReplicationController]
}

func (c converted) Get(ctx context.Context, name string, o metav1.GetOptions) (*appsv1.ReplicaSet, error) {
	rc, err := c.client.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return toSet(rc), nil
}

func (c converted) UpdateStatus(
	ctx context.Context, set *appsv1.ReplicaSet, o metav1.UpdateOptions,
) (*appsv1.ReplicaSet, error) {
	rc, err := c.client.UpdateStatus(ctx, fromSet(set, set.Status), o)
	if err != nil {
		return nil, err
	}
	return toSet(rc), nil
}
