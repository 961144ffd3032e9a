// SPDX-License-Identifier: Apache-2.0

// Package zone knows the names of a cluster: what the Kubernetes DNS specification (v1.1.0) says about its services,
// endpoint slices and namespaces. dns feeds it objects and asks it questions. It opens no socket, starts no goroutine
// and keeps no object that it was given.
//
// index.go takes the objects, objects.go reads what names need of them; lookup.go finds what a name stands for, and
// answer.go writes that as DNS records.
//
// Invariants:
//  1. An entry is immutable once a shard holds it: a change replaces it, so that a question reads it without a lock.
//  2. A change touches its own service's entry and the addresses of the changed part; nothing else is computed again.
//  3. Readers never wait for more than the exchange of one entry.
package zone

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const shards = 64

// Index is the names of a cluster. Its methods are safe for concurrent use.
type Index struct {
	domain string // "cluster.local."
	ttl    uint32
	seed   maphash.Seed
	serial atomic.Uint32

	namespaces sync.Map // name -> struct{}
	services   [shards]shard
	reverse    [shards]addresses

	mu sync.Mutex // one change at a time
	// serviceOf is the service of each endpoint slice, both as namespace/name: a slice can move to another service.
	serviceOf map[string]string
}

type shard struct {
	mu sync.RWMutex
	m  map[string]*entry // by namespace/name
}

type addresses struct {
	mu sync.RWMutex
	m  map[netip.Addr][]owner
}

// owner is what an address belongs to: a service, or an endpoint of one.
type owner struct {
	service string // namespace/name
	host    string // of the endpoint; unset for the service itself
	cluster bool   // the service's own address
}

// entry is one service with its ready endpoints. It may have slices before it exists.
type entry struct {
	exists   bool // false: slices came before their service
	headless bool
	external string // ExternalName
	ips      []netip.Addr
	ports    []port
	slices   []slice // by name
}

type port struct {
	name, proto string // lower case
	number      uint16
}

type slice struct {
	name      string
	ports     []port
	endpoints []endpoint
}

type endpoint struct {
	addr netip.Addr
	host string // unset: its name is its address with dashes
}

// New returns the names of an empty cluster. domain is like "cluster.local"; ttl is in seconds.
func New(domain string, ttl uint32) *Index {
	index := &Index{
		domain:    strings.ToLower(strings.Trim(domain, ".")) + ".",
		ttl:       ttl,
		seed:      maphash.MakeSeed(),
		serviceOf: map[string]string{},
	}
	for i := range index.services {
		index.services[i].m = map[string]*entry{}
		index.reverse[i].m = map[netip.Addr][]owner{}
	}
	index.changed()
	return index
}

// Domain is the cluster's, lower case, with a dot at its end.
func (x *Index) Domain() string { return x.domain }

func (x *Index) changed() {
	x.serial.Store(uint32(time.Now().Unix())) // serial numbers wrap (RFC 1982)
}

// shard is the part of the services that key is in.
func (x *Index) shard(key string) *shard { return &x.services[maphash.String(x.seed, key)%shards] }

// reverseShard is the part of the addresses that a is in.
func (x *Index) reverseShard(a netip.Addr) *addresses {
	return &x.reverse[maphash.Comparable(x.seed, a)%shards]
}

func (x *Index) get(key string) *entry {
	s := x.shard(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[key]
}

// put exchanges an entry; one that says nothing is taken out.
func (x *Index) put(key string, e *entry) {
	s := x.shard(key)
	s.mu.Lock()
	if e.exists || len(e.slices) > 0 {
		s.m[key] = e
	} else {
		delete(s.m, key)
	}
	s.mu.Unlock()
	x.changed()
}

// SetNamespace notes that there is a namespace, DropNamespace that there is none.
func (x *Index) SetNamespace(name string) { x.namespaces.Store(name, struct{}{}) }

// DropNamespace is SetNamespace's opposite.
func (x *Index) DropNamespace(name string) { x.namespaces.Delete(name) }

func (x *Index) namespace(name string) bool {
	_, ok := x.namespaces.Load(name)
	return ok
}

// SetService takes a service as it is now. It reports whether the service has become answerable by it: its name led
// nowhere before.
func (x *Index) SetService(s *corev1.Service) (answerable bool) {
	key := s.Namespace + "/" + s.Name
	e := &entry{exists: true, headless: s.Spec.ClusterIP == corev1.ClusterIPNone}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		e.external = externalName(s.Spec.ExternalName)
		e.headless = false
	} else if !e.headless {
		e.ips = clusterIPs(s)
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		e.ports = append(e.ports, port{strings.ToLower(p.Name), protocol(p.Protocol), uint16(p.Port)}) // validated
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.get(key)
	if old == nil {
		old = &entry{}
	}
	e.slices = old.slices
	x.put(key, e)
	x.reown(key, old, e)
	return !old.answerable() && e.answerable()
}

// DropService forgets a service.
func (x *Index) DropService(namespace, name string) {
	key := namespace + "/" + name
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.get(key)
	if old == nil {
		return
	}
	e := &entry{slices: old.slices}
	x.put(key, e)
	x.reown(key, old, e)
}

// SetSlice takes an endpoint slice as it is now; answerable is SetService's.
func (x *Index) SetSlice(s *discoveryv1.EndpointSlice) (service string, answerable bool) {
	service = s.Labels[discoveryv1.LabelServiceName]
	id := s.Namespace + "/" + s.Name
	x.mu.Lock()
	defer x.mu.Unlock()
	if was := x.serviceOf[id]; was != "" && was != s.Namespace+"/"+service {
		x.dropFrom(was, s.Name)
		delete(x.serviceOf, id)
	}
	if service == "" {
		return "", false
	}
	key := s.Namespace + "/" + service
	x.serviceOf[id] = key
	old := x.get(key)
	if old == nil {
		old = &entry{}
	}
	part := readySlice(s)
	e := *old
	i, found := slices.BinarySearchFunc(old.slices, s.Name, func(s slice, name string) int {
		return strings.Compare(s.name, name)
	})
	if found {
		e.slices = slices.Clone(old.slices)
		x.disown(key, &e, e.slices[i])
		e.slices[i] = part
	} else {
		e.slices = slices.Insert(slices.Clip(slices.Clone(old.slices)), i, part)
	}
	x.put(key, &e)
	x.own(key, &e, part)
	return service, !old.answerable() && e.answerable()
}

// DropSlice forgets an endpoint slice.
func (x *Index) DropSlice(namespace, name string) {
	id := namespace + "/" + name
	x.mu.Lock()
	defer x.mu.Unlock()
	if key := x.serviceOf[id]; key != "" {
		x.dropFrom(key, name)
		delete(x.serviceOf, id)
	}
}

// dropFrom takes the slice called name from the service key.
func (x *Index) dropFrom(key, name string) {
	old := x.get(key)
	if old == nil {
		return
	}
	e := *old
	e.slices = nil
	for _, s := range old.slices {
		if s.name != name {
			e.slices = append(e.slices, s)
			continue
		}
		x.disown(key, old, s)
	}
	x.put(key, &e)
}

// answerable reports whether the service's name leads somewhere.
func (e *entry) answerable() bool {
	if !e.exists {
		return false
	}
	return len(e.ips) > 0 || e.external != "" || e.headless && slices.ContainsFunc(e.slices, func(s slice) bool {
		return len(s.endpoints) > 0
	})
}

// reown moves the addresses of a service from what it was to what it is.
func (x *Index) reown(key string, old, e *entry) {
	for _, ip := range old.ips {
		x.take(ip, owner{service: key, cluster: true})
	}
	for _, ip := range e.ips {
		x.give(ip, owner{service: key, cluster: true})
	}
	if old.exists != e.exists {
		for _, s := range e.slices {
			x.disown(key, old, s)
			x.own(key, e, s)
		}
	}
}

// own has the endpoints' addresses lead back to their names: to those of all services that exist.
func (x *Index) own(key string, e *entry, s slice) {
	if !e.exists {
		return
	}
	for _, p := range s.endpoints {
		x.give(p.addr, owner{service: key, host: p.host})
	}
}

// disown undoes own.
func (x *Index) disown(key string, e *entry, s slice) {
	if !e.exists {
		return
	}
	for _, p := range s.endpoints {
		x.take(p.addr, owner{service: key, host: p.host})
	}
}

// give adds an owner of an address.
func (x *Index) give(a netip.Addr, o owner) {
	s := x.reverseShard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[a] = append(slices.Clip(s.m[a]), o) // readers hold the old one
}

// take removes an owner of an address, once: an endpoint may be in two slices.
func (x *Index) take(a netip.Addr, o owner) {
	s := x.reverseShard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.m[a], o)
	switch {
	case i < 0:
	case len(s.m[a]) == 1:
		delete(s.m, a)
	default:
		s.m[a] = slices.Delete(slices.Clone(s.m[a]), i, i+1)
	}
}

func (x *Index) owners(a netip.Addr) []owner {
	s := x.reverseShard(a)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[a]
}
