// SPDX-License-Identifier: Apache-2.0

// Package replicaset maintains the number of pods of every ReplicaSet. The table of controllers starts it;
// internal/replica does the work. It never touches pods that another controller owns.
package replicaset

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/controllers/framework"
	"keelson/controllers/internal/replica"
)

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	c, err := replica.New(env, sets{env.Client, appsinformers.New(env.Shared.Scoped()).ReplicaSets().Informer()})
	if err != nil {
		return nil, fmt.Errorf("replicaset controller: %w", err)
	}
	return c, nil
}

type sets struct {
	client   *client.Client
	informer cache.SharedIndexInformer
}

func (sets) GVK() schema.GroupVersionKind          { return appsv1.SchemeGroupVersion.WithKind("ReplicaSet") }
func (sets) Resource() string                      { return "replicasets" }
func (s sets) Informer() cache.SharedIndexInformer { return s.informer }

func (sets) Of(obj any) *appsv1.ReplicaSet {
	set, _ := obj.(*appsv1.ReplicaSet)
	return set
}

func (s sets) Sets(namespace string) framework.StatusClient[*appsv1.ReplicaSet] {
	return s.client.AppsV1().ReplicaSets(namespace)
}
