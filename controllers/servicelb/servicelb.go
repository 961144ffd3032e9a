// SPDX-License-Identifier: Apache-2.0

// Package servicelb serves Services of type LoadBalancer with the cluster's own nodes: the status shows the addresses
// of nodes where the ports are free, with the mode Proxy, and the service proxy of each of these nodes forwards
// connections to the endpoints. The table of controllers starts it under the name of kube-controller-manager's cloud
// load balancer controller. Services with a loadBalancerClass belong to others. It never calls a cloud, and writes only
// status and finalizer of Services.
package servicelb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"keelson/controllers/framework"
)

// finalizer blocks the deletion of a Service until its load balancer is removed.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// all is the only key, because the result for one Service depends on the others.
var all = framework.Key{Name: "all"}

// Controller handles load balancers.
type Controller struct {
	env        *framework.Env
	loop       *framework.Loop[framework.Key]
	services   corelisters.ServiceLister
	nodes      corelisters.NodeLister
	pods       corelisters.PodLister
	slices     discoverylisters.EndpointSliceLister
	lastEvents map[string]string // the last event by UID; used only by the loop
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	disc := discoveryinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:        env,
		services:   core.Services().Lister(),
		nodes:      core.Nodes().Lister(),
		pods:       core.Pods().Lister(),
		slices:     disc.EndpointSlices().Lister(),
		lastEvents: map[string]string{},
	}
	// one worker, because all Services share the ports
	controller.loop = framework.NewLoop(env.Queue, 1, env.Log, controller.sync)
	wake := func() { controller.loop.Add(all) }
	err := errors.Join(
		framework.On(controller.loop, core.Services().Informer(), framework.Each(func(s *corev1.Service) {
			if managed(s) || slices.Contains(s.Finalizers, finalizer) {
				wake()
			}
		})),
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{
			Add:    func(*corev1.Node) { wake() },
			Delete: func(*corev1.Node) { wake() },
			Update: func(old, cur *corev1.Node) {
				if !slices.Equal(loadBalancerAddresses(old), loadBalancerAddresses(cur)) ||
					kubeletPort(old) != kubeletPort(cur) {
					wake()
				}
			},
		}),
		framework.On(controller.loop, core.Pods().Informer(), framework.Handlers[*corev1.Pod]{
			Add:    func(p *corev1.Pod) { controller.podChanged(p) },
			Delete: func(p *corev1.Pod) { controller.podChanged(p) },
			Update: func(old, cur *corev1.Pod) {
				if old.Spec.NodeName != cur.Spec.NodeName || finished(old) != finished(cur) {
					controller.podChanged(cur)
				}
			},
		}),
		framework.On(controller.loop, disc.EndpointSlices().Informer(), framework.Each(controller.sliceChanged)),
	)
	if err != nil {
		return nil, fmt.Errorf("load balancers: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (c *Controller) podChanged(p *corev1.Pod) {
	if p.Spec.NodeName != "" && len(hostPorts(p)) > 0 {
		c.loop.Add(all)
	}
}

// apiService is the Service of the API servers, in the namespace default.
const apiService = "kubernetes"

// sliceChanged matters only for the traffic policy Local, and for the ports of API servers.
func (c *Controller) sliceChanged(s *discoveryv1.EndpointSlice) {
	if s.Namespace == metav1.NamespaceDefault && s.Labels[discoveryv1.LabelServiceName] == apiService {
		c.loop.Add(all)
		return
	}
	svc, err := c.services.Services(s.Namespace).Get(s.Labels[discoveryv1.LabelServiceName])
	if err == nil && managed(svc) && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		c.loop.Add(all)
	}
}

func (c *Controller) sync(ctx context.Context, _ framework.Key) error {
	svcs, err := c.services.List(labels.Everything())
	if err != nil {
		return err
	}
	svcs = slices.DeleteFunc(svcs, func(s *corev1.Service) bool {
		return !managed(s) && !slices.Contains(s.Finalizers, finalizer)
	})
	if len(svcs) == 0 {
		clear(c.lastEvents)
		return nil
	}
	nodes, err := c.servingNodes()
	if err != nil {
		return err
	}
	plans := plan(svcs, nodes, serverPorts(c.slicesOf(metav1.NamespaceDefault, apiService)), c.hosts)
	reasons := map[string]string{}
	var errs []error
	for _, svc := range svcs {
		o, ours := plans[svc]
		if !ours {
			errs = append(errs, c.write(ctx, svc, nil, false))
			continue
		}
		if err := c.write(ctx, svc, o.ingress, true); err != nil {
			errs = append(errs, err)
			continue
		}
		c.recordEvent(svc, o)
		reasons[string(svc.UID)] = o.reason
	}
	c.lastEvents = reasons
	return errors.Join(errs...)
}

func (c *Controller) recordEvent(svc *corev1.Service, o outcome) {
	if why, before := c.lastEvents[string(svc.UID)]; before && why == o.reason || !before &&
		o.reason == "" && slices.Contains(svc.Finalizers, finalizer) {
		return // reported already, or before this process started
	}
	if o.reason != "" {
		c.env.Events.Event(svc, corev1.EventTypeWarning, "SyncLoadBalancerFailed",
			"No address for the load balancer: "+o.reason)
	} else {
		c.env.Events.Event(svc, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	}
}

func (c *Controller) hosts(svc *corev1.Service) map[string]bool {
	return hostsOf(c.slicesOf(svc.Namespace, svc.Name))
}

func (c *Controller) slicesOf(namespace, service string) []*discoveryv1.EndpointSlice {
	in, err := c.slices.EndpointSlices(namespace).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil // a lister over a cache returns no error
	}
	return in
}

func (c *Controller) servingNodes() ([]node, error) {
	list, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	taken := map[string]map[port]string{}
	for _, p := range pods {
		if p.Spec.NodeName == "" || finished(p) {
			continue
		}
		for _, hp := range hostPorts(p) {
			if taken[p.Spec.NodeName] == nil {
				taken[p.Spec.NodeName] = map[port]string{}
			}
			taken[p.Spec.NodeName][hp] = "a host port of pod " + p.Namespace + "/" + p.Name
		}
	}
	var out []node
	for _, n := range list {
		if addrs := loadBalancerAddresses(n); len(addrs) > 0 {
			if taken[n.Name] == nil {
				taken[n.Name] = map[port]string{}
			}
			taken[n.Name][kubeletPort(n)] = "its kubelet's"
			out = append(out, node{n.Name, addrs, taken[n.Name]})
		}
	}
	return out, nil
}

// write writes status and finalizer in one status update, as cloud controllers do.
func (c *Controller) write(
	ctx context.Context, svc *corev1.Service, ingress []corev1.LoadBalancerIngress, guard bool,
) error {
	if slices.Contains(svc.Finalizers, finalizer) == guard &&
		equality.Semantic.DeepEqual(svc.Status.LoadBalancer.Ingress, ingress) {
		return nil
	}
	next := svc.DeepCopy()
	next.Status.LoadBalancer.Ingress = ingress
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
	if guard {
		next.Finalizers = append(next.Finalizers, finalizer)
	}
	_, err := c.env.Client.CoreV1().Services(svc.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it was deleted, or its change event is coming
	}
	if err != nil {
		return fmt.Errorf("write the load balancer of %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}
