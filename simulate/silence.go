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
)

// silentLease is how long the last lease of a node lasts that falls silent, where its annotation names no duration: a kubelet's.
const silentLease = 40 * time.Second

// silent reports whether node i says nothing.
func (s *Simulator) silent(i int) bool { return s.lastLease(i) > 0 }

// lastLease is how long the last lease of node i lasts, which says nothing; 0: it does.
func (s *Simulator) lastLease(i int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mute[i]
}

// watchNodes follows the annotations of our nodes.
func (s *Simulator) watchNodes() (cache.DoneChecker, *client.Informers, error) {
	f := s.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) { o.LabelSelector = LabelType + "=" + TypeFake }})
	nodes := coreinformers.New(f.Scoped()).Nodes()
	s.nodes = nodes.Lister()
	seen := func(obj any) {
		n, ok := obj.(*corev1.Node)
		if !ok {
			return
		}
		i, ours := s.index(n.Name)
		text, mute := n.Annotations[AnnotationSilent]
		if ours && !mute && !s.silent(i) && !isReady(n) {
			s.turned.Add(i) // somebody gave it up, while nobody could be told that it lives
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
	reg, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(old, obj any) {
		s.cordoned(old, obj)
		seen(obj)
	}})
	if err != nil {
		return nil, nil, fmt.Errorf("watch fake nodes: %w", err)
	}
	return reg.HasSyncedChecker(), f, nil
}

// cordoned tells that one of our nodes was cordoned or uncordoned.
func (s *Simulator) cordoned(old, obj any) {
	was, isNode := old.(*corev1.Node)
	n, stillNode := obj.(*corev1.Node)
	if !isNode || !stillNode || was.Spec.Unschedulable == n.Spec.Unschedulable {
		return
	}
	if i, ours := s.index(n.Name); !ours || s.silent(i) {
		return
	}
	reason := "NodeSchedulable"
	if n.Spec.Unschedulable {
		reason = "NodeNotSchedulable"
	}
	s.record(n, reason)
}

// record makes an event about a node, as its kubelet would.
func (s *Simulator) record(n *corev1.Node, reason string) {
	s.events.Eventf(n, corev1.EventTypeNormal, reason, "Node %s status is now: %s", n.Name, reason)
}

// turn does what is due for one node that fell silent or came back.
func (s *Simulator) turn(ctx context.Context) bool {
	i, quit := s.turned.Get()
	if quit {
		return false
	}
	defer s.turned.Done(i)
	err := s.renew(ctx, i, nil) // the last one of a node that falls silent says how long it lasts
	if err == nil && !s.silent(i) {
		err = s.back(ctx, i)
	}
	switch {
	case err == nil || apierrors.IsNotFound(err):
		s.turned.Forget(i)
	case ctx.Err() == nil:
		s.cfg.Log.Warn("fake node will be tried again", "node", s.name(i), "err", err)
		s.turned.AddRateLimited(i)
	}
	return true
}

// back makes node i ready again and goes on with its pods.
func (s *Simulator) back(ctx context.Context, i int) error {
	there, err := s.nodes.Get(s.name(i))
	if err != nil {
		return err
	}
	n := there.DeepCopy()
	n.Status, n.ResourceVersion = s.nodeStatus(i, time.Now()), ""
	if _, err := s.cfg.Client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if !isReady(there) {
		s.record(n, "NodeReady")
	}
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName == n.Name {
			s.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	return nil
}
