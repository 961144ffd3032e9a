// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/api/kind"
)

// namespaces exist in every cluster.
var namespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

// autoupdate is the annotation of roles and bindings that the server may update at start.
const autoupdate = "rbac.authorization.kubernetes.io/autoupdate"

// bootstrap creates missing objects that every cluster has, and those of Config.Bootstrap.
func (s *Server) bootstrap(ctx context.Context) error {
	objs := make([]runtime.Object, 0, len(namespaces))
	for _, name := range namespaces {
		objs = append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if err := s.ensureAll(ctx, objs); err != nil {
		return err
	}
	own, err := s.ownService()
	if err != nil {
		return err
	}
	if err := s.ensureAll(ctx, append(slices.Clone(s.config.Bootstrap), own...)); err != nil {
		return err
	}
	for _, b := range s.config.RemovedBindings {
		if err := s.removeBindingSubjects(ctx, b); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	if err := s.reconcileEndpoints(ctx); err != nil {
		return fmt.Errorf("bootstrap: endpoints of the service kubernetes: %w", err)
	}
	s.warnRangeMismatch(ctx)
	return s.setServiceCIDRReady(ctx)
}

// ensureAll ensures independent objects concurrently, so that the store can write them together.
func (s *Server) ensureAll(ctx context.Context, objs []runtime.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, obj := range objs {
		group.Go(func() error { return s.ensure(ctx, obj) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// Ensure creates or updates an object like those of Config.Bootstrap.
func (s *Server) Ensure(ctx context.Context, obj runtime.Object) error { return s.ensure(ctx, obj) }

// ensure creates obj, or updates the existing object.
func (s *Server) ensure(ctx context.Context, obj runtime.Object) error {
	o, ok := obj.(kind.Object)
	if !ok {
		return fmt.Errorf("%T has no metadata", obj)
	}
	gvks, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return fmt.Errorf("kind of %T: %w", obj, err)
	}
	gvr, ok := s.resourceOf(gvks[0])
	if !ok {
		return nil // the kind is not served
	}
	name := gvks[0].Kind + " " + o.GetName()
	current, err := s.reader.Get(ctx, gvr, o.GetNamespace(), o.GetName())
	if apierrors.IsNotFound(err) {
		if err = s.handler.Create(ctx, serverUser, gvr, o); apierrors.IsAlreadyExists(err) {
			return nil // another server has created it
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	if probe, _ := current.DeepCopyObject().(kind.Object); !reconcileObject(probe, o) {
		return nil
	}
	if err := s.handler.Update(ctx, serverUser, gvr, o, func(obj kind.Object) bool {
		return reconcileObject(obj, o)
	}); err != nil {
		return fmt.Errorf("update %s: %w", name, err)
	}
	return nil
}

// removeBindingSubjects removes binding's subjects from the binding of that name, unless an administrator disabled
// autoupdate.
func (s *Server) removeBindingSubjects(ctx context.Context, binding *rbacv1.ClusterRoleBinding) error {
	gvr := rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
	current, err := s.reader.Get(ctx, gvr, "", binding.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for ClusterRoleBinding %s: %w", binding.Name, err)
	}
	if probe, ok := current.DeepCopyObject().(*rbacv1.ClusterRoleBinding); !ok ||
		!removeSubjects(probe, binding.Subjects) {
		return nil
	}
	s.config.Log.Warn("remove subjects granted by an earlier version", "binding", binding.Name, "subjects",
		binding.Subjects)
	if err := s.handler.Update(ctx, serverUser, gvr, binding, func(obj kind.Object) bool {
		o, ok := obj.(*rbacv1.ClusterRoleBinding)
		return ok && removeSubjects(o, binding.Subjects)
	}); err != nil {
		return fmt.Errorf("update ClusterRoleBinding %s: %w", binding.Name, err)
	}
	return nil
}

// removeSubjects modifies b and reports whether that changed anything.
func removeSubjects(b *rbacv1.ClusterRoleBinding, subjects []rbacv1.Subject) bool {
	if b.Annotations[autoupdate] == "false" {
		return false
	}
	before := len(b.Subjects)
	b.Subjects = slices.DeleteFunc(b.Subjects, func(s rbacv1.Subject) bool { return slices.Contains(subjects, s) })
	return len(b.Subjects) < before
}

func (s *Server) resourceOf(gvk schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	for _, r := range s.resources {
		if r.GVK() == gvk {
			return r.GVR(), true
		}
	}
	return schema.GroupVersionResource{}, false
}

// reconcileObject modifies obj towards want and reports whether that changed anything. Missing rules and subjects are
// added, extra ones stay, an object with autoupdate "false" is left alone, and addresses are replaced.
func reconcileObject(obj, want kind.Object) bool {
	if obj.GetAnnotations()[autoupdate] == "false" {
		return false
	}
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		w, ok := want.(*rbacv1.ClusterRole)
		if !ok || o.AggregationRule != nil {
			return false
		}
		return addMissing(&o.Rules, w.Rules)
	case *rbacv1.Role:
		w, ok := want.(*rbacv1.Role)
		return ok && addMissing(&o.Rules, w.Rules)
	case *rbacv1.ClusterRoleBinding:
		w, ok := want.(*rbacv1.ClusterRoleBinding)
		return ok && addMissing(&o.Subjects, w.Subjects)
	case *rbacv1.RoleBinding:
		w, ok := want.(*rbacv1.RoleBinding)
		return ok && addMissing(&o.Subjects, w.Subjects)
	case *flowcontrolv1.FlowSchema:
		w, ok := want.(*flowcontrolv1.FlowSchema)
		return ok && updateSpec(obj, &o.Spec, &w.Spec)
	case *flowcontrolv1.PriorityLevelConfiguration:
		w, ok := want.(*flowcontrolv1.PriorityLevelConfiguration)
		return ok && updateSpec(obj, &o.Spec, &w.Spec)
	case *corev1.ConfigMap:
		w, ok := want.(*corev1.ConfigMap)
		return ok && o.Namespace == metav1.NamespaceSystem && mergeCABundles(o, w)
	case *networkingv1.ServiceCIDR: // from one IP family to two
		w, ok := want.(*networkingv1.ServiceCIDR)
		return ok && len(o.Spec.CIDRs) == 1 && len(w.Spec.CIDRs) == 2 && o.Spec.CIDRs[0] == w.Spec.CIDRs[0] &&
			replace(&o.Spec.CIDRs, w.Spec.CIDRs)
	case *corev1.Endpoints: // deprecated, but still read by clients
		w, ok := want.(*corev1.Endpoints) // the same
		return ok && replace(&o.Subsets, w.Subsets)
	case *discoveryv1.EndpointSlice:
		w, ok := want.(*discoveryv1.EndpointSlice)
		if !ok {
			return false
		}
		endpoints := replace(&o.Endpoints, w.Endpoints)
		return replace(&o.Ports, w.Ports) || endpoints
	}
	return false
}

// mergeCABundles adds the CAs of want to the ConfigMap for aggregated servers. Others stay: another server may use
// them.
func mergeCABundles(have, want *corev1.ConfigMap) bool {
	changed := false
	for key, list := range want.Data {
		if !strings.HasSuffix(key, "client-ca-file") {
			continue
		}
		for block := range strings.SplitAfterSeq(list, "-----END CERTIFICATE-----\n") {
			if block = strings.TrimSpace(block); block != "" && !strings.Contains(have.Data[key], block) {
				if have.Data == nil {
					have.Data = map[string]string{}
				}
				have.Data[key] = strings.TrimSpace(have.Data[key]) + "\n" + block + "\n"
				changed = true
			}
		}
	}
	return changed
}

func addMissing[T any](have *[]T, want []T) bool {
	changed := false
	for _, w := range want {
		found := false
		for _, h := range *have {
			found = found || apiequality.Semantic.DeepEqual(h, w)
		}
		if !found {
			*have = append(*have, w)
			changed = true
		}
	}
	return changed
}

func replace[T any](have *[]T, want []T) bool {
	if apiequality.Semantic.DeepEqual(*have, want) {
		return false
	}
	*have = want
	return true
}

// ownService returns the Service "kubernetes" and the ServiceCIDR of its address.
func (s *Server) ownService() ([]runtime.Object, error) {
	_, port, err := s.advertised()
	if err != nil {
		return nil, err
	}
	first := s.ownRanges()[0].Addr().Next()
	meta := metav1.ObjectMeta{
		Name:      "kubernetes",
		Namespace: "default",
		Labels: map[string]string{
			"component": "apiserver",
			"provider":  "kubernetes",
		},
	}
	service := &corev1.Service{
		ObjectMeta: meta,
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       first.String(),
			ClusterIPs:      []string{first.String()},
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name:       "https",
				Protocol:   corev1.ProtocolTCP,
				Port:       443,
				TargetPort: intstr.FromInt32(port),
			}},
		},
	}
	addresses := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: s.ownCIDRs()},
	}
	return []runtime.Object{service, addresses}, nil
}

// address is the host and port of the server; "" without a listener.
func (s *Server) address() string {
	if s.config.Advertise == "" && s.config.Listener != nil {
		return s.config.Listener.Addr().String()
	}
	return s.config.Advertise
}

// advertised is the address by which other machines reach the server. A loopback address is not advertised:
// host-network processes on this machine reach the server anyway.
func (s *Server) advertised() (host string, port int32, err error) {
	at := s.address()
	if at == "" {
		return "", 6443, nil
	}
	host, text, err := net.SplitHostPort(at)
	if err != nil {
		return "", 0, fmt.Errorf("address %q of the server: %w", at, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port of the server's address %q: %w", at, err)
	}
	if addr, err := netip.ParseAddr(host); err != nil || addr.IsLoopback() || addr.IsUnspecified() {
		return "", int32(n), nil //nolint:nilerr // a host name is valid but cannot be advertised
	}
	return host, int32(n), nil
}

// ownRanges are the service CIDRs of the server's flags.
func (s *Server) ownRanges() []netip.Prefix {
	if len(s.config.ServiceCIDRs) == 0 {
		return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	out := slices.Clone(s.config.ServiceCIDRs)
	for i := range out {
		out[i] = out[i].Masked()
	}
	return out
}

// ownCIDRs is ownRanges as strings, for the ServiceCIDR kubernetes.
func (s *Server) ownCIDRs() []string {
	var out []string
	for _, p := range s.ownRanges() {
		out = append(out, p.String())
	}
	return out
}

// updateSpec updates the spec of a FlowSchema or PriorityLevelConfiguration, unless an administrator disabled
// autoupdate.
func updateSpec[T any](obj kind.Object, spec, want *T) bool {
	if obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] != "true" ||
		apiequality.Semantic.DeepEqual(spec, want) {
		return false
	}
	*spec = *want
	return true
}
