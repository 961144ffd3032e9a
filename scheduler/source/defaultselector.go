// SPDX-License-Identifier: Apache-2.0

package source

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// defaultSelector returns the selector of the default topology spread constraints of a pod: the selectors of its
// services and controller.
type defaultSelector struct {
	services    corelisters.ServiceLister
	controllers corelisters.ReplicationControllerLister
	sets        appslisters.ReplicaSetLister
	stateful    appslisters.StatefulSetLister
}

// setInformers sets the listers; selector may be called once the informers are synced.
func (k *defaultSelector) setInformers(f informers.SharedInformerFactory) []cache.DoneChecker {
	svc := f.Core().V1().Services()
	rc := f.Core().V1().ReplicationControllers()
	rs := f.Apps().V1().ReplicaSets()
	ss := f.Apps().V1().StatefulSets()
	k.services = svc.Lister()
	k.controllers = rc.Lister()
	k.sets = rs.Lister()
	k.stateful = ss.Lister()
	return []cache.DoneChecker{
		svc.Informer().HasSyncedChecker(), rc.Informer().HasSyncedChecker(), rs.Informer().HasSyncedChecker(),
		ss.Informer().HasSyncedChecker(),
	}
}

// selector returns nil for a pod that no Service selects and no controller owns.
func (k *defaultSelector) selector(pod *corev1.Pod) labels.Selector {
	same := labels.Set{}
	services, err := k.services.Services(pod.Namespace).List(labels.Everything())
	if err == nil {
		for _, s := range services {
			if len(s.Spec.Selector) > 0 && labels.SelectorFromValidatedSet(s.Spec.Selector).Matches(
				labels.Set(pod.Labels)) {
				same = labels.Merge(same, s.Spec.Selector)
			}
		}
	}
	selector := labels.Everything()
	add := func(in *metav1.LabelSelector) {
		if s, err := metav1.LabelSelectorAsSelector(in); err == nil {
			selector = s
		}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		switch owner.APIVersion + "/" + owner.Kind {
		case "v1/ReplicationController":
			if rc, err := k.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
				same = labels.Merge(same, rc.Spec.Selector)
			}
		case "apps/v1/ReplicaSet":
			if rs, err := k.sets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
				add(rs.Spec.Selector)
			}
		case "apps/v1/StatefulSet":
			if ss, err := k.stateful.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
				add(ss.Spec.Selector)
			}
		}
	}
	for _, r := range requirementsOf(same) {
		selector = selector.Add(r)
	}
	if selector.Empty() {
		return nil
	}
	return selector
}

func requirementsOf(set labels.Set) labels.Requirements {
	if len(set) == 0 {
		return nil
	}
	reqs, _ := labels.SelectorFromValidatedSet(set).Requirements()
	return reqs
}
