// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// syncGracePeriod is how long informers may take to sync before the scheduler checks which do not, and why.
const syncGracePeriod = 2 * time.Second

// waitForSync waits until the informers and the handlers have synced. Among the informers are those that plugins
// requested. A plugin may request a kind that the server does not have: its informer never syncs, and is not
// waited for.
func (s *Source) waitForSync(ctx context.Context, handlers []cache.DoneChecker) error {
	grace, cancel := context.WithTimeout(ctx, syncGracePeriod)
	defer cancel()
	for of, ok := range s.Informers.WaitForCacheSyncWithContext(grace).Synced {
		obj, is := reflect.TypeAssert[runtime.Object](reflect.New(of.Elem()))
		if ok || !is {
			continue
		}
		if kinds, _, err := scheme.Scheme.ObjectKinds(obj); err == nil && s.absent(kinds[0].GroupVersion(),
			func(_, kind string) bool { return kind == kinds[0].Kind }) {
			s.log.Warn("the server does not have a kind that a plugin watches", "kind", kinds[0].Kind, "apiVersion",
				kinds[0].GroupVersion().String())
			continue
		}
		handlers = append(handlers, s.Informers.InformerFor(obj, nil).HasSyncedChecker())
		if ctx.Err() == nil {
			s.log.Info("the scheduler waits for an informer to sync", "type", of.Elem().String())
		}
	}
	if !cache.WaitFor(ctx, "", handlers...) && ctx.Err() == nil {
		return errors.New("watch the cluster: caches did not sync")
	}
	return nil
}

// absent reports whether discovery works and lists no resource of gv for which is returns true.
func (s *Source) absent(gv schema.GroupVersion, is func(resource, kind string) bool) bool {
	if !s.serves(corev1.SchemeGroupVersion, "pods") {
		return false // discovery does not work
	}
	list, err := s.client.Discovery().ServerResourcesForGroupVersion(gv.String())
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	for i := range list.APIResources {
		if is(list.APIResources[i].Name, list.APIResources[i].Kind) {
			return false
		}
	}
	return true
}
