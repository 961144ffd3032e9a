// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"keelson/api/core/localvolume"
	volumeapi "keelson/api/core/volume"
)

const version = "v1.37.2+keelson"

// atOnce limits parallel registrations.
const atOnce = 32

func (s *Simulator) name(i int) string {
	if i >= s.cfg.Nodes {
		return s.cfg.Names[i-s.cfg.Nodes]
	}
	return s.cfg.Prefix + strconv.Itoa(i)
}

// node is the Node object of fake node i at its registration.
func (s *Simulator) node(i int) *corev1.Node {
	name := s.name(i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				LabelType:                 TypeFake,
				corev1.LabelHostname:      name,
				corev1.LabelOSStable:      "linux",
				corev1.LabelArchStable:    runtime.GOARCH,
				"beta.kubernetes.io/os":   "linux",
				"beta.kubernetes.io/arch": runtime.GOARCH,
			},
			Annotations: map[string]string{AnnotationBy: s.cfg.By, volumeapi.AnnotationManaged: "true"},
		},
		Spec: corev1.NodeSpec{PodCIDR: podCIDR(i), PodCIDRs: []string{podCIDR(i)}, ProviderID: providerID(name)},
	}
	n.Labels[localvolume.NodeHas] = "true" // claims of pods on fake nodes get volumes without storage
	if !s.cfg.Untainted {
		n.Spec.Taints = []corev1.Taint{{Key: TaintFake, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	}
	n.Status = s.nodeStatus(i, time.Now())
	return n
}

func (s *Simulator) nodeStatus(i int, now time.Time) corev1.NodeStatus {
	size := corev1.ResourceList{
		corev1.ResourceCPU:    s.cfg.CPU,
		corev1.ResourceMemory: s.cfg.Memory,
		corev1.ResourcePods:   *resource.NewQuantity(s.cfg.Pods, resource.DecimalSI),
	}
	at := metav1.NewTime(now)
	cond := func(
		t corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string,
	) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type:               t,
			Status:             status,
			Reason:             reason,
			Message:            message,
			LastHeartbeatTime:  at,
			LastTransitionTime: at,
		}
	}
	return corev1.NodeStatus{
		Capacity:    size,
		Allocatable: size.DeepCopy(),
		Conditions: []corev1.NodeCondition{
			cond(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory",
				"kubelet has sufficient memory available"),
			cond(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure",
				"kubelet has no disk pressure"),
			cond(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID",
				"kubelet has sufficient PID available"),
			cond(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
		},
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: nodeIP(i)},
			{Type: corev1.NodeHostName, Address: s.name(i)},
		},
		NodeInfo: corev1.NodeSystemInfo{
			OperatingSystem:         "linux",
			Architecture:            runtime.GOARCH,
			OSImage:                 "Keelson fake node",
			KernelVersion:           "fake",
			KubeletVersion:          version,
			ContainerRuntimeVersion: "fake://1.0.0",
		},
	}
}

// register creates or updates our nodes and their leases. It removes nodes of an earlier run that no simulator uses any
// more.
func (s *Simulator) register(ctx context.Context) error {
	there, err := s.cfg.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: LabelType + "=" + TypeFake})
	if err != nil {
		return fmt.Errorf("list fake nodes: %w", err)
	}
	known := map[string]*corev1.Node{}
	for k := range there.Items {
		n := &there.Items[k]
		known[n.Name] = n
		if _, ok := s.named[n.Name]; ok && n.Spec.ProviderID != providerID(n.Name) {
			return fmt.Errorf("node %s is a machine: give the fake node another name, or take that one out of the "+
				"cluster (`keelson node rm %s`)", n.Name, n.Name)
		}
		if _, ok := s.index(n.Name); ok || !s.made(n) {
			continue
		}
		if err := s.remove(ctx, n); err != nil {
			return fmt.Errorf("remove fake node %s: %w", n.Name, err)
		}
	}
	return s.each(func(i int) error {
		n, err := s.registerOne(ctx, i, known[s.name(i)])
		if err != nil {
			return fmt.Errorf("register fake node %s: %w", s.name(i), err)
		}
		return s.renew(ctx, i, n)
	})
}

// made reports whether an earlier run of this simulator created a node. A real node cannot look like one, whatever its
// labels and annotations: its provider ID never changes once it is set. Earlier versions wrote no annotation.
func (s *Simulator) made(n *corev1.Node) bool {
	if n.Spec.ProviderID != providerID(n.Name) || n.Labels[LabelType] != TypeFake {
		return false
	}
	if by, ok := n.Annotations[AnnotationBy]; ok {
		return by == s.cfg.By
	}
	return strings.HasPrefix(n.Name, s.cfg.Prefix)
}

func providerID(node string) string { return "fake://" + node }

// remove deletes a node with its pods: there is no kubelet to end them.
func (s *Simulator) remove(ctx context.Context, node *corev1.Node) error {
	uid := node.UID
	zero := int64(0)
	err := s.cfg.Client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	pods, err := s.cfg.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + node.Name,
	})
	if err != nil {
		return fmt.Errorf("list its pods: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != node.Name {
			continue
		}
		err := s.cfg.Client.PodWrites(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero,
			Preconditions:      &metav1.Preconditions{UID: &p.UID},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	s.cfg.Log.Info("fake node removed", "node", node.Name, "pods", len(pods.Items))
	return nil
}

// each calls f for the index of every node, in parallel, and returns the first error.
func (s *Simulator) each(f func(i int) error) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	tokens := make(chan struct{}, atOnce)
	for i := range s.cfg.count() {
		tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-tokens }()
			if err := f(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wg.Wait()
	return first
}

func (s *Simulator) registerOne(ctx context.Context, i int, there *corev1.Node) (*corev1.Node, error) {
	nodes := s.cfg.Client.CoreV1().Nodes()
	want := s.node(i)
	node := there
	var err error
	if node == nil {
		if node, err = nodes.Create(ctx, want, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			node, err = nodes.Get(ctx, want.Name, metav1.GetOptions{})
		}
		if err != nil {
			return nil, err
		}
	}
	if isReady(node) && node.Status.Allocatable.Cpu().Equal(s.cfg.CPU) && node.Status.Allocatable.Memory().Equal(
		s.cfg.Memory) && node.Status.Allocatable.Pods().Value() == s.cfg.Pods {
		return node, nil
	}
	return s.report(ctx, node, &want.Status)
}

// report writes what the simulator says of a node, which was read before.
func (s *Simulator) report(ctx context.Context, node *corev1.Node, want *corev1.NodeStatus) (*corev1.Node, error) {
	nodes := s.cfg.Client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		next := node.DeepCopy()
		setStatus(&next.Status, want)
		written, err := nodes.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		switch {
		case err == nil:
			node = written
		case apierrors.IsConflict(err): // somebody else has written the node since it was read
			current, failed := nodes.Get(ctx, node.Name, metav1.GetOptions{})
			if failed != nil {
				return failed
			}
			node = current
		}
		return err
	})
	return node, err
}

// setStatus sets what the simulator says of a node. Resources, conditions and other fields that others have set stay,
// as an extended resource that a user has added.
func setStatus(have, want *corev1.NodeStatus) {
	for _, pair := range []struct{ have, want *corev1.ResourceList }{
		{&have.Capacity, &want.Capacity},
		{&have.Allocatable, &want.Allocatable},
	} {
		if *pair.have == nil {
			*pair.have = corev1.ResourceList{}
		}
		maps.Copy(*pair.have, *pair.want)
	}
	for _, c := range want.Conditions {
		k := slices.IndexFunc(have.Conditions, func(h corev1.NodeCondition) bool { return h.Type == c.Type })
		if k < 0 {
			have.Conditions = append(have.Conditions, c)
			continue
		}
		if have.Conditions[k].Status == c.Status {
			c.LastTransitionTime = have.Conditions[k].LastTransitionTime
		}
		have.Conditions[k] = c
	}
	have.Addresses = want.Addresses
	have.NodeInfo = want.NodeInfo
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// renewDeleted creates a lease that was deleted.
func (s *Simulator) renewDeleted(ctx context.Context, i int) error {
	node, err := s.cfg.Client.CoreV1().Nodes().Get(ctx, s.name(i), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node of a deleted lease: %w", err)
	}
	return s.renew(ctx, i, node)
}

// renew writes the node's lease. With node, the Node object, it also creates the lease, with node as its owner.
func (s *Simulator) renew(ctx context.Context, i int, node *corev1.Node) error {
	name := s.name(i)
	seconds := int32(4 * s.cfg.Renew / time.Second)
	now := metav1.NowMicro()
	lease := &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordination.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	if last := s.lastLease(i); last > 0 {
		seconds := int32(last / time.Second)
		lease.Spec.LeaseDurationSeconds = &seconds
	}
	leases := s.cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if node != nil {
		lease.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1",
			Kind:       "Node",
			Name:       name,
			UID:        node.UID,
		}}
		made, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		if err == nil {
			s.keepLease(i, made)
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create lease of %s: %w", name, err)
		}
		s.keepLease(i, nil)
	}
	old := s.lease(i)
	for try := 1; ; try++ {
		if old == nil {
			var err error
			old, err = leases.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && node == nil { // somebody deleted it, or its namespace
				return s.renewDeleted(ctx, i)
			}
			if err != nil {
				return fmt.Errorf("read lease of %s: %w", name, err)
			}
		}
		old = old.DeepCopy()
		old.Spec = lease.Spec
		if node != nil {
			old.OwnerReferences = lease.OwnerReferences // the node may have been recreated
		}
		renewed, err := leases.Update(ctx, old, metav1.UpdateOptions{})
		switch {
		case err == nil:
			s.keepLease(i, renewed)
			return nil
		case try == 1 && apierrors.IsConflict(err):
			old = nil
			continue
		}
		s.keepLease(i, nil)
		return fmt.Errorf("renew lease of %s: %w", name, err)
	}
}

// lease is the lease of node i as last written; nil if unknown.
func (s *Simulator) lease(i int) *coordination.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[i]
}

func (s *Simulator) keepLease(i int, l *coordination.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l == nil {
		delete(s.leases, i)
		return
	}
	s.leases[i] = l
}

// renewLeases renews all leases one after another, each once per cfg.Renew.
func (s *Simulator) renewLeases(ctx context.Context) {
	if s.cfg.count() == 0 {
		return
	}
	tick := time.NewTicker(max(time.Millisecond, s.cfg.Renew/time.Duration(s.cfg.count())))
	defer tick.Stop()
	for i := 0; ; i = (i + 1) % s.cfg.count() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.silent(i) {
			continue
		}
		// A node that was removed for good has no lease any more.
		if err := s.renew(ctx, i, nil); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			s.cfg.Log.Warn("lease not renewed", "node", s.name(i), "err", err)
		}
	}
}
