// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/lib/signal"
	"keelson/proxy/services"
)

// changeTracker runs the informers and records which Services have changed since the loop last called take.
type changeTracker struct {
	wake     signal.Signal // there are changes
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	self     string // the name of this node

	mu      sync.Mutex
	synced  bool
	changed map[types.NamespacedName]seen
	node    bool
}

// seen describes the changes of one Service since the last batch, for metrics and marks.
type seen struct {
	at time.Time // when the informer delivered the first of its changes
	// trigger is the time of the pod or Service change that caused the first of them; zero: unknown.
	trigger time.Time
	slices  int
	service bool
}

// changeBatch holds the changes since the last batch.
type changeBatch struct {
	services map[types.NamespacedName]seen
	node     *corev1.Node
}

const byService = "service"

func (f *changeTracker) init(self string) {
	f.self = self
	f.wake = signal.New()
	f.changed = map[types.NamespacedName]seen{}
}

// runInformers runs the informers. It is ready when they have listed everything.
func (p *Proxy) runInformers(ctx context.Context, ready func()) error {
	const notOurs = "!" + services.LabelProxyName + ",!" + services.LabelHeadless
	objects := p.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) { o.LabelSelector = notOurs }})
	self := p.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		if !p.cfg.Options.ExternalIPs { // otherwise the addresses of all nodes matter
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, p.cfg.NodeName).String()
		}
	}})
	changeTracker := &p.tracker
	changeTracker.services = coreinformers.New(objects.Scoped()).Services().Informer()
	changeTracker.slices = discoveryinformers.New(objects.Scoped()).EndpointSlices().Informer()
	changeTracker.nodes = coreinformers.New(self.Scoped()).Nodes().Informer()
	if err := changeTracker.slices.AddIndexers(cache.Indexers{byService: serviceOf}); err != nil {
		return fmt.Errorf("index endpoint slices: %w", err)
	}
	synced, err := changeTracker.follow()
	if err != nil {
		return fmt.Errorf("follow services: %w", err)
	}
	objects.Start(ctx.Done())
	self.Start(ctx.Done())
	defer objects.Shutdown()
	defer self.Shutdown()
	if !cache.WaitFor(ctx, "", synced...) {
		return nil // ctx is done
	}
	changeTracker.note(func() {
		changeTracker.synced = true
		changeTracker.node = true
	})
	ready()
	<-ctx.Done()
	return nil
}

// follow notes the changes of the informers' objects. The result is done when what they list first is noted.
func (f *changeTracker) follow() ([]cache.DoneChecker, error) {
	var synced []cache.DoneChecker
	for _, one := range []struct {
		informer cache.SharedIndexInformer
		changed  func(obj any)
	}{{f.services, f.serviceChanged}, {f.slices, f.sliceChanged}, {f.nodes, f.nodeChanged}} {
		registration, err := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    one.changed,
			UpdateFunc: func(_, obj any) { one.changed(obj) },
			DeleteFunc: one.changed,
		})
		if err != nil {
			return nil, err
		}
		// otherwise objects of the initial list would be handled a second time
		synced = append(synced, registration.HasSyncedChecker())
	}
	return synced, nil
}

func serviceOf(obj any) ([]string, error) {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
		return nil, nil
	}
	return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
}

// note records a change and wakes up the loop.
func (f *changeTracker) note(change func()) {
	f.mu.Lock()
	change()
	f.mu.Unlock()
	f.wake.Notify()
}

func (f *changeTracker) nodeChanged(any) {
	f.note(func() { f.node = true })
}

func (f *changeTracker) serviceChanged(obj any) {
	s, ok := client.Delivered[*corev1.Service](obj)
	if !ok {
		return
	}
	f.note(func() { f.addLocked(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, seen{service: true}) })
}

func (f *changeTracker) sliceChanged(obj any) {
	s, ok := client.Delivered[*discoveryv1.EndpointSlice](obj)
	if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
		return
	}
	trigger, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		trigger = time.Time{}
	}
	f.note(func() {
		f.addLocked(types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}, seen{
			trigger: trigger,
			slices:  1,
		})
	})
}

func (f *changeTracker) addLocked(namespacedName types.NamespacedName, s seen) {
	old, ok := f.changed[namespacedName]
	if !ok {
		s.at = time.Now()
		f.changed[namespacedName] = s
		return
	}
	old.slices += s.slices
	old.service = old.service || s.service
	if old.trigger.IsZero() || !s.trigger.IsZero() && s.trigger.Before(old.trigger) {
		old.trigger = s.trigger
	}
	f.changed[namespacedName] = old
}

// take returns the changes since the last call; nil: none, or the informers have not synced.
func (f *changeTracker) take() *changeBatch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced || len(f.changed) == 0 && !f.node {
		return nil
	}
	b := &changeBatch{services: f.changed}
	f.changed = map[types.NamespacedName]seen{}
	f.node = false
	if obj, ok, err := f.nodes.GetStore().GetByKey(f.self); err == nil && ok {
		b.node, _ = obj.(*corev1.Node)
	}
	return b
}

// otherNodes returns the addresses of the nodes in the informer but one.
func (f *changeTracker) otherNodes(self string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, obj := range f.nodes.GetStore().List() {
		if n, ok := obj.(*corev1.Node); ok && n.Name != self {
			for _, a := range addressesOfNode(n) {
				out[a] = true
			}
		}
	}
	return out
}

// apiServers returns the endpoints of the Service kubernetes: the addresses of API servers.
func (f *changeTracker) apiServers() map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for _, s := range f.input(types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}).Slices {
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				for _, p := range s.Ports {
					if err == nil && p.Port != nil {
						out[netip.AddrPortFrom(a.Unmap(), uint16(*p.Port))] = true
					}
				}
			}
		}
	}
	return out
}

func (f *changeTracker) service(n types.NamespacedName) *corev1.Service {
	obj, ok, err := f.services.GetStore().GetByKey(n.String())
	if err != nil || !ok {
		return nil
	}
	svc, _ := obj.(*corev1.Service)
	return svc
}

// input returns a Service and its slices from the informers.
func (f *changeTracker) input(n types.NamespacedName) services.Input {
	in := services.Input{Service: f.service(n)}
	if in.Service == nil {
		return in
	}
	objs, err := f.slices.GetIndexer().ByIndex(byService, n.String())
	if err != nil {
		return in
	}
	for _, obj := range objs {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			in.Slices = append(in.Slices, s)
		}
	}
	return in
}

// all returns all Services.
func (f *changeTracker) all() map[types.NamespacedName]services.Input {
	out := map[types.NamespacedName]services.Input{}
	for _, obj := range f.services.GetStore().List() {
		if s, ok := obj.(*corev1.Service); ok {
			n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
			out[n] = f.input(n)
		}
	}
	return out
}
