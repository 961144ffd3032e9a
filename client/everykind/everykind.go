// SPDX-License-Identifier: Apache-2.0

// Package everykind makes client-go's factory of informers, which knows every kind of Kubernetes. The scheduler takes
// it, because its plugins name kinds at run time. Everybody else uses client.Informers: a package that mentions this
// factory compiles a part of it.
package everykind

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
)

// Informers returns a new factory without resync. Its informers come from where those of client.Informers come from.
func Informers(c *client.Client, scope client.Scope) informers.SharedInformerFactory {
	f := informers.NewSharedInformerFactoryWithOptions(c.Interface, 0,
		informers.WithNamespace(scope.Namespace), informers.WithTweakListOptions(scope.Tweak))
	return sharing{f, c, scope}
}

// sharing is a factory whose informers of some kinds list and watch the client's source.
type sharing struct {
	informers.SharedInformerFactory
	client *client.Client
	scope  client.Scope
}

// InformerFor is what the typed informers below ask for their one shared informer.
func (s sharing) InformerFor(obj runtime.Object, usual internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return s.SharedInformerFactory.InformerFor(obj, func(
		c kubernetes.Interface, resync time.Duration,
	) cache.SharedIndexInformer {
		if inf := s.client.InformerOfSource(obj, resync, s.scope); inf != nil {
			return inf
		}
		return usual(c, resync)
	})
}

// Core is the core group.
func (s sharing) Core() core.Interface { return core.New(s, s.scope.Namespace, s.scope.Tweak) }

// Apps is apps.
func (s sharing) Apps() apps.Interface { return apps.New(s, s.scope.Namespace, s.scope.Tweak) }

// Batch is batch.
func (s sharing) Batch() batch.Interface { return batch.New(s, s.scope.Namespace, s.scope.Tweak) }

// Coordination is coordination.k8s.io.
func (s sharing) Coordination() coordination.Interface {
	return coordination.New(s, s.scope.Namespace, s.scope.Tweak)
}

// Discovery is discovery.k8s.io.
func (s sharing) Discovery() discovery.Interface {
	return discovery.New(s, s.scope.Namespace, s.scope.Tweak)
}

// Policy is policy.
func (s sharing) Policy() policy.Interface { return policy.New(s, s.scope.Namespace, s.scope.Tweak) }

// Rbac is rbac.authorization.k8s.io.
func (s sharing) Rbac() rbac.Interface { return rbac.New(s, s.scope.Namespace, s.scope.Tweak) }

// Scheduling is scheduling.k8s.io.
func (s sharing) Scheduling() scheduling.Interface {
	return scheduling.New(s, s.scope.Namespace, s.scope.Tweak)
}

// Storage is storage.k8s.io.
func (s sharing) Storage() storage.Interface { return storage.New(s, s.scope.Namespace, s.scope.Tweak) }
