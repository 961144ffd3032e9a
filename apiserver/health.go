// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"keelson/apiserver/discovery"
	"keelson/store"
)

// postStartHooks are the names of Kubernetes' health checks for post-start hooks. Here each stands for a part of Run
// that ends before the first request is served: caches and their event handlers, definitions, bootstrap objects,
// aggregation. The two of the identity leases are not among them: this server has no such lease.
var postStartHooks = []string{
	"log",
	"poststarthook/start-apiserver-admission-initializer",
	"poststarthook/generic-apiserver-start-informers",
	"poststarthook/priority-and-fairness-config-consumer",
	"poststarthook/priority-and-fairness-filter",
	"poststarthook/priority-and-fairness-config-producer",
	"poststarthook/storage-object-count-tracker-hook",
	"poststarthook/storage-readiness",
	"poststarthook/start-apiextensions-informers",
	"poststarthook/start-apiextensions-controllers",
	"poststarthook/crd-informer-synced",
	"poststarthook/bootstrap-controller",
	"poststarthook/start-kubernetes-service-cidr-controller",
	"poststarthook/start-system-namespaces-controller",
	"poststarthook/start-service-ip-repair-controllers",
	"poststarthook/rbac/bootstrap-roles",
	"poststarthook/scheduling/bootstrap-system-priority-classes",
	"poststarthook/start-cluster-authentication-info-controller",
	"poststarthook/start-legacy-token-tracking-controller",
	"poststarthook/aggregator-reload-proxy-client-cert",
	"poststarthook/start-kube-aggregator-informers",
	"poststarthook/apiservice-registration-controller",
	"poststarthook/apiservice-status-local-available-controller",
	"poststarthook/apiservice-status-remote-available-controller",
	"poststarthook/apiservice-discovery-controller",
	"poststarthook/kube-apiserver-autoregistration",
	"autoregister-completion",
	"poststarthook/apiservice-openapi-controller",
	"poststarthook/apiservice-openapiv3-controller",
}

var errNotReady = errors.New("not ready yet")

// health is the state of a server as its probes see it.
type health struct {
	store    func(context.Context) error
	serving  func() error // why clients reject the serving certificate; nil: it is not checked
	stopping <-chan struct{}
	ready    atomic.Bool
}

// checks are the checks of /livez, /healthz and /readyz, by path.
func (h *health) checks() map[string][]discovery.Check {
	started := func(*http.Request) error {
		if !h.ready.Load() {
			return errNotReady
		}
		return nil
	}
	ping := discovery.Check{Name: "ping", Run: func(*http.Request) error { return nil }}
	writable := discovery.Check{
		Name: "etcd",
		Run: func(r *http.Request) error {
			return h.store(r.Context())
		},
	}
	stored := discovery.Check{
		Name: "etcd",
		Run: func(r *http.Request) error { // fails when a restart may help
			err := h.store(r.Context())
			if fault := (*store.UnavailableError)(nil); errors.As(err, &fault) && !fault.Lasting {
				return nil
			}
			return err
		},
	}
	shutdown := discovery.Check{
		Name: "shutdown",
		Run: func(*http.Request) error {
			select {
			case <-h.stopping:
				return errors.New("process is shutting down")
			default:
				return nil
			}
		},
	}
	live := []discovery.Check{ping, stored}
	ready := []discovery.Check{ping, writable, {Name: "informer-sync", Run: started}}
	if serving := h.serving; serving != nil {
		c := discovery.Check{Name: "serving-certificate", Run: func(*http.Request) error { return serving() }}
		live = append(live, c)
		ready = append(ready, c)
	}
	for _, name := range postStartHooks {
		c := discovery.Check{Name: name, Run: started}
		live = append(live, c)
		ready = append(ready, c)
	}
	return map[string][]discovery.Check{"livez": live, "healthz": live, "readyz": append(ready, shutdown)}
}
