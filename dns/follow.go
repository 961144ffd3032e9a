// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
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
	"keelson/dns/forward"
	"keelson/dns/settings"
	"keelson/event"
	"keelson/lib/linux"
	"keelson/lib/run"
)

// ConfigMap of kube-system holds the configuration, below the key ConfigKey.
const (
	ConfigMap = "keelson-dns"
	ConfigKey = "config.yaml"
)

// informers feed the zone, the addresses that may ask, the configuration and the publisher.
func (s *Server) informers(p publishers) (run.Func, error) {
	named := func(name string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}
	}
	all := s.cfg.Client.Informers(0, client.Scope{})
	factories := []*client.Informers{all}
	var known []cache.DoneChecker
	add := func(i cache.SharedIndexInformer, set func(any), drop func(any)) error {
		r, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    set,
			UpdateFunc: func(_, obj any) { set(obj) },
			DeleteFunc: drop,
		})
		if err != nil {
			return fmt.Errorf("dns: follow objects: %w", err)
		}
		known = append(known, r.HasSyncedChecker())
		return nil
	}
	err := add(coreinformers.New(all.Scoped()).Services().Informer(), func(obj any) { s.setService(obj, p) },
		func(obj any) { s.dropService(obj, p) })
	if err == nil {
		err = add(discoveryinformers.New(all.Scoped()).EndpointSlices().Informer(), func(obj any) {
			s.setSlice(obj, p)
		}, func(obj any) { s.dropSlice(obj, p) })
	}
	if err == nil {
		err = add(coreinformers.New(all.Scoped()).Namespaces().Informer(), s.setNamespace, s.dropNamespace)
	}
	nodes := all
	if s.cfg.NodeName != "" {
		nodes = s.cfg.Client.Informers(0, client.Scope{Tweak: named(s.cfg.NodeName)})
		factories = append(factories, nodes)
	}
	if err == nil {
		err = add(coreinformers.New(nodes.Scoped()).Nodes().Informer(), func(obj any) { s.setNode(obj, p) }, s.dropNode)
	}
	if s.cfg.File == "" && err == nil {
		maps := s.cfg.Client.Informers(0, client.Scope{Namespace: metav1.NamespaceSystem, Tweak: named(ConfigMap)})
		factories = append(factories, maps)
		err = add(coreinformers.New(maps.Scoped()).ConfigMaps().Informer(), s.setConfig, func(any) {
			s.configure(nil, "ConfigMap "+ConfigMap)
		})
	}
	return func(ctx context.Context, ready func()) error {
		for _, f := range factories {
			f.StartWithContext(ctx)
		}
		if cache.WaitFor(ctx, "", known...) {
			s.synced.Store(true)
			ready()
		}
		<-ctx.Done()
		for _, f := range factories {
			f.Shutdown()
		}
		return nil
	}, err
}

func (s *Server) setService(obj any, p publishers) {
	svc, ok := client.Delivered[*corev1.Service](obj)
	if !ok {
		return
	}
	begin := time.Now()
	if s.zone.SetService(svc) {
		s.mark(svc.Namespace, svc.Name, svc.UID, begin)
	}
	p.service(svc, true)
}

func (s *Server) dropService(obj any, p publishers) {
	if svc, ok := client.Delivered[*corev1.Service](obj); ok {
		s.zone.DropService(svc.Namespace, svc.Name)
		p.service(svc, false)
	}
}

func (s *Server) setSlice(obj any, p publishers) {
	sl, ok := client.Delivered[*discoveryv1.EndpointSlice](obj)
	if !ok {
		return
	}
	begin := time.Now()
	if name, answerable := s.zone.SetSlice(sl); answerable {
		s.mark(sl.Namespace, name, "", begin)
	}
	p.slice(sl, true)
}

func (s *Server) dropSlice(obj any, p publishers) {
	if sl, ok := client.Delivered[*discoveryv1.EndpointSlice](obj); ok {
		s.zone.DropSlice(sl.Namespace, sl.Name)
		p.slice(sl, false)
	}
}

func (s *Server) setNamespace(obj any) {
	if ns, ok := client.Delivered[*corev1.Namespace](obj); ok {
		s.zone.SetNamespace(ns.Name)
	}
}

func (s *Server) dropNamespace(obj any) {
	if ns, ok := client.Delivered[*corev1.Namespace](obj); ok {
		s.zone.DropNamespace(ns.Name)
	}
}

func (s *Server) setNode(obj any, p publishers) {
	if n, ok := client.Delivered[*corev1.Node](obj); ok {
		s.sources.setNode(n)
		if n.Name == s.cfg.NodeName {
			s.node.Store(&n.UID)
		}
		p.node(n)
	}
}

func (s *Server) dropNode(obj any) {
	if n, ok := client.Delivered[*corev1.Node](obj); ok {
		s.sources.dropNode(n.Name)
	}
}

// mark reports that a service's name leads somewhere for the first time.
func (s *Server) mark(namespace, name string, uid types.UID, begin time.Time) {
	if !s.synced.Load() {
		return // it may have done so for long
	}
	s.cfg.Marks.Emit(event.Event{
		Step:      event.StepResolvable,
		Component: "dns",
		At:        begin,
		Took:      time.Since(begin),
		Subject: event.Subject{
			Resource:  "services",
			Namespace: namespace,
			Name:      name,
			UID:       string(uid),
		},
		Detail: &event.Resolvable{Node: s.cfg.NodeName, Name: name + "." + namespace + ".svc." + s.cfg.Domain},
	})
}

func (s *Server) setConfig(obj any) {
	if m, ok := client.Delivered[*corev1.ConfigMap](obj); ok {
		s.configure([]byte(m.Data[ConfigKey]), "ConfigMap "+ConfigMap)
	}
}

// configure takes a configuration, if it is one: a wrong one changes nothing.
func (s *Server) configure(text []byte, from string) {
	c, err := settings.Parse(text, s.cfg.Domain)
	if err != nil {
		s.cfg.Log.Error("the configuration of names is wrong; the one before stays", "from", from, "err", err)
		s.recordEvent(corev1.EventTypeWarning, "DNSConfig",
			fmt.Sprintf("%s is wrong, the configuration before it stays: %v", from, err))
		return
	}
	s.settings.Store(c)
	s.reroute()
}

// recordEvent records an event about the node, with its UID as the kubelet's events; as long as that is not known, with
// its name, by which kubectl describe looks for events too.
func (s *Server) recordEvent(kind, reason, text string) {
	if s.cfg.NodeName == "" {
		return
	}
	uid := types.UID(s.cfg.NodeName)
	if known := s.node.Load(); known != nil {
		uid = *known
	}
	ref := &corev1.ObjectReference{
		Kind:       "Node",
		Name:       s.cfg.NodeName,
		UID:        uid,
		APIVersion: "v1",
	}
	s.events.Event(ref, kind, reason, text)
}

var rerouting sync.Mutex

// reroute takes the servers to ask from the configuration and the node's resolv.conf.
func (s *Server) reroute() {
	rerouting.Lock() // resolv.conf and the configuration change on their own
	defer rerouting.Unlock()
	c := s.settings.Load()
	routes := make([]forward.Route, 0, len(c.Stubs)+1)
	for _, stub := range c.Stubs {
		routes = append(routes, forward.Route{Domain: stub.Domain, Servers: s.others(stub.Servers)})
	}
	up := c.Upstreams
	if len(up) == 0 {
		text, err := os.ReadFile(s.cfg.ResolvConf)
		if err != nil {
			s.cfg.Log.Warn("the node's resolvers are not known: names outside of the cluster are not answered", "err",
				err)
		}
		up = settings.Resolvers(text)
	}
	s.forward.Use(append(routes, forward.Route{Domain: ".", Servers: s.others(up)}))
}

// others leaves out this server itself.
func (s *Server) others(list []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range list {
		if a == s.cfg.Listen || a.Addr() == s.cfg.ServiceIP ||
			(a.Addr() == s.cfg.Listen.Addr() || a.Addr() == s.cfg.Second) && a.Port() == 53 {
			s.cfg.Log.Error("a name server that is to be asked is this one, and is left out; name another in the "+
				"node's resolv.conf or in the configuration of names", "server", a)
			s.looped(a)
			continue
		}
		out = append(out, a)
	}
	return out
}

// follow watches resolv.conf, and the configuration's file.
func (s *Server) follow(ctx context.Context, ready func()) error {
	s.reroute()
	ready()
	var work sync.WaitGroup
	watch := func(path string, changed func()) {
		work.Go(func() {
			if err := linux.WatchFile(ctx, path, changed); err != nil {
				s.cfg.Log.Warn("changes of a file are not followed", "file", path, "err", err)
			}
		})
	}
	last := ""
	watch(s.cfg.ResolvConf, func() {
		text, _ := os.ReadFile(s.cfg.ResolvConf) // reroute says so
		if now := fmt.Sprint(settings.Resolvers(text)); now != last {
			last = now
			s.reroute()
		}
	})
	if s.cfg.File != "" {
		watch(s.cfg.File, func() {
			text, err := os.ReadFile(s.cfg.File)
			if err != nil {
				s.cfg.Log.Error("the configuration of names cannot be read; the one before stays", "err", err)
				return
			}
			s.configure(text, s.cfg.File)
		})
	}
	<-ctx.Done()
	work.Wait()
	return nil
}
