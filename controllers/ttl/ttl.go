// SPDX-License-Identifier: Apache-2.0

// Package ttl annotates each node with how long its kubelet may cache secrets and config maps: the more nodes, the
// longer. The table of controllers starts it. It writes only that annotation.
package ttl

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
)

// steps are ranges of cluster sizes with their seconds. They overlap, so that one node more or less does not change all
// others.
var steps = []struct{ least, most, seconds int }{
	{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, int(^uint(0) >> 1), 300},
}

// nextStep is the step for n nodes after step.
func nextStep(step, n int) int {
	for n > steps[step].most {
		step++
	}
	for n < steps[step].least {
		step--
	}
	return step
}

// Controller annotates nodes.
type Controller struct {
	env   *framework.Env
	loop  *framework.Loop[framework.Key]
	nodes corelisters.NodeLister

	mu    sync.Mutex
	count int
	step  int
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	nodes := coreinformers.New(env.Shared.Scoped()).Nodes()
	controller := &Controller{env: env, nodes: nodes.Lister()}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := framework.On(controller.loop, nodes.Informer(), framework.Handlers[*corev1.Node]{
		Add: func(n *corev1.Node) {
			controller.nodesChanged(1)
			controller.loop.Add(framework.KeyOf(n))
		},
		// Other nodes are updated at their next change, which the kubelet makes every few minutes.
		Update: func(_, cur *corev1.Node) {
			if cur.Annotations[corev1.ObjectTTLAnnotationKey] != controller.desiredTTL() {
				controller.loop.Add(framework.KeyOf(cur))
			}
		},
		Delete: func(*corev1.Node) { controller.nodesChanged(-1) },
	})
	if err != nil {
		return nil, fmt.Errorf("ttl: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) nodesChanged(d int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += d
	c.step = nextStep(c.step, c.count)
}

// desiredTTL is the annotation's value.
func (c *Controller) desiredTTL() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strconv.Itoa(steps[c.step].seconds)
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	node, err := c.nodes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	want := c.desiredTTL()
	if node.Annotations[corev1.ObjectTTLAnnotationKey] == want {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{corev1.ObjectTTLAnnotationKey: want}},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate node %s: %w", node.Name, err)
	}
	return nil
}
