// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	kubeletnode "keelson/kubelet/node"
)

// silentLease is the duration of a silent node's last lease if its annotation has no duration: that of a kubelet's
// lease.
const silentLease = 40 * time.Second

// silent reports whether node i is silent: it neither renews its lease nor updates its pods.
func (s *Simulator) silent(i int) bool { return s.lastLease(i) > 0 }

// lastLease is the duration of the last lease of node i if it is silent; 0: it is not.
func (s *Simulator) lastLease(i int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mute[i]
}

// watchNodes watches the annotations of our nodes.
func (s *Simulator) watchNodes() (cache.DoneChecker, *client.Informers, error) {
	informers := s.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.LabelSelector = LabelType + "=" + TypeFake
	}})
	nodes := coreinformers.New(informers.Scoped()).Nodes()
	s.nodes = nodes.Lister()
	seen := func(obj any) {
		n, ok := obj.(*corev1.Node)
		if !ok {
			return
		}
		i, ours := s.index(n.Name)
		text, mute := n.Annotations[AnnotationSilent]
		if ours && !mute && !s.silent(i) && !isReady(n) {
			s.turned.Add(i) // the node was marked not ready while the simulator did not run: report it ready again
			return
		}
		if !ours || mute == s.silent(i) {
			return
		}
		last, err := time.ParseDuration(text)
		if err != nil || last < time.Second {
			last = silentLease
		}
		s.mu.Lock()
		if s.mute[i] = last; !mute {
			delete(s.mute, i)
		}
		s.mu.Unlock()
		s.turned.Add(i)
	}
	reg, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen,
		UpdateFunc: func(old, obj any) {
			s.cordoned(old, obj)
			seen(obj)
		},
		DeleteFunc: s.deleted,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch fake nodes: %w", err)
	}
	return reg.HasSyncedChecker(), informers, nil
}

// cordoned records an event when one of our nodes is cordoned or uncordoned.
func (s *Simulator) cordoned(old, obj any) {
	was, isNode := old.(*corev1.Node)
	node, stillNode := obj.(*corev1.Node)
	if !isNode || !stillNode || was.Spec.Unschedulable == node.Spec.Unschedulable {
		return
	}
	if i, ours := s.index(node.Name); !ours || s.silent(i) {
		return
	}
	reason := "NodeSchedulable"
	if node.Spec.Unschedulable {
		reason = "NodeNotSchedulable"
	}
	s.record(node, reason)
}

// record records an event about a node, as a kubelet does.
func (s *Simulator) record(n *corev1.Node, reason string) {
	s.events.Eventf(n, corev1.EventTypeNormal, reason, "Node %s status is now: %s", n.Name, reason)
}

// turn handles a node that became silent, came back or was deleted.
func (s *Simulator) turn(ctx context.Context, i int) error {
	_, err := s.nodes.Get(s.name(i))
	if apierrors.IsNotFound(err) {
		err = s.again(ctx, i)
	} else {
		err = s.renew(ctx, i, nil) // a node that becomes silent writes its last lease
		if err == nil && !s.silent(i) {
			err = s.back(ctx, i)
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// back marks node i ready and processes its pods again.
func (s *Simulator) back(ctx context.Context, i int) error {
	there, err := s.nodes.Get(s.name(i))
	if err != nil {
		return err
	}
	status := s.nodeStatus(i, time.Now())
	node, err := s.report(ctx, there, &status)
	if err != nil {
		return err
	}
	if !isReady(there) {
		s.record(node, "NodeReady")
	}
	return s.requeue(node.Name)
}

// deleted handles the deletion of one of our nodes: it is registered again, as by a kubelet that runs on. A silent node
// stays away, and one that `keelson node rm` took out.
func (s *Simulator) deleted(obj any) {
	n, ok := client.Delivered[*corev1.Node](obj)
	if !ok || n.Annotations[kubeletnode.AnnotationRemoved] != "" {
		return
	}
	if i, ours := s.index(n.Name); ours && !s.silent(i) {
		s.turned.Add(i)
	}
}

// again registers node i after its deletion and processes its pods again.
func (s *Simulator) again(ctx context.Context, i int) error {
	made, err := s.registerOne(ctx, i, nil)
	if err != nil {
		return err
	}
	if err := s.renew(ctx, i, made); err != nil {
		return err
	}
	s.cfg.Log.Info("fake node was deleted and is registered again", "node", made.Name)
	return s.requeue(made.Name)
}

// requeue processes a node's pods again.
func (s *Simulator) requeue(name string) error {
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName == name {
			s.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	return nil
}
