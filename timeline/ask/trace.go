// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/api/networking/reach"
	"keelson/timeline/packet"
)

// TraceQuestion is one connection to follow.
type TraceQuestion struct {
	To Destination
	// As is the destination as the user gave it.
	As      string
	UDP     bool
	Timeout time.Duration // of the test connection
}

// Destination is where a connection leads.
type Destination struct {
	Kind      string `json:"kind,omitempty"` // "service", "pod", "node", or "" for a host name or an address
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Host      string `json:"host,omitempty"`
	Port      string `json:"port,omitempty"` // number or name; empty: the only port
}

func (d *Destination) String() string {
	at := d.Host
	switch d.Kind {
	case "node":
		at = "node/" + d.Name
	case "pod", "service":
		at = d.Kind + "/" + d.Namespace + "/" + d.Name
	}
	return strings.TrimSuffix(at+":"+d.Port, ":")
}

// DestinationError means that no connection can lead to the destination.
type DestinationError struct{ Err error }

func (e *DestinationError) Error() string { return "destination: " + e.Err.Error() }

func (e *DestinationError) Unwrap() error { return e.Err }

// Trace makes a test connection from a pod, reads the objects around it, and says where packets go.
func Trace(
	ctx context.Context, cl kubernetes.Interface, from *corev1.Pod, question *TraceQuestion,
) (*packet.Trace, error) {
	r := &traceReader{cl: cl, question: question, d: question.To}
	j, err := r.journey(ctx, from)
	if err != nil {
		return nil, err
	}
	return packet.Follow(j), nil
}

// traceReader reads the objects for a trace. The trace says which ones the user may not read.
type traceReader struct {
	cl       kubernetes.Interface
	question *TraceQuestion
	d        Destination
	j        packet.TraceInput
}

// mostPods limits the endpoints whose pods are read.
const mostPods = 50

func (r *traceReader) journey(ctx context.Context, from *corev1.Pod) (*packet.TraceInput, error) {
	r.j = packet.TraceInput{
		From:       from,
		To:         r.question.As,
		Protocol:   corev1.ProtocolTCP,
		Nodes:      map[string]*corev1.Node{},
		Namespaces: map[string]map[string]string{},
	}
	if r.question.UDP {
		r.j.Protocol = corev1.ProtocolUDP
	}
	host, err := r.host(ctx)
	if err != nil {
		return nil, err
	}
	if r.j.Port, err = r.d.number(r.j.Service, r.j.Protocol); err != nil {
		return nil, err
	}
	if err := r.probe(ctx, host); err != nil {
		return nil, err
	}
	if err := r.address(ctx, host); err != nil {
		return nil, err
	}
	r.ends(ctx)
	return &r.j, nil
}

// host is the name to resolve, or the address.
func (r *traceReader) host(ctx context.Context) (string, error) {
	switch r.d.Kind {
	case "pod":
		p, err := r.cl.CoreV1().Pods(r.d.Namespace).Get(ctx, r.d.Name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("namespace %s: %w", r.d.Namespace, err)
		}
		if p.Status.PodIP == "" {
			return "", fmt.Errorf("pod %s/%s has no address yet: its phase is %s", p.Namespace, p.Name, p.Status.Phase)
		}
		return p.Status.PodIP, nil
	case "node":
		n, err := r.cl.CoreV1().Nodes().Get(ctx, r.d.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return internalAddress(n, r.j.From)
	case "service":
		svc, err := r.cl.CoreV1().Services(r.d.Namespace).Get(ctx, r.d.Name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("namespace %s: %w", r.d.Namespace, err)
		}
		r.j.Service = svc
		if svc.Namespace == r.j.From.Namespace {
			return svc.Name, nil
		}
		return svc.Name + "." + svc.Namespace, nil
	}
	return r.d.Host, nil
}

// internalAddress is the node's InternalIP of a family that the pod has.
func internalAddress(node *corev1.Node, from *corev1.Pod) (string, error) {
	var is4, is6 bool
	for _, ip := range from.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		is4 = is4 || err == nil && a.Is4()
		is6 = is6 || err == nil && a.Is6()
	}
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && (ip.Is4() && is4 || ip.Is6() && is6) {
			return a.Address, nil
		}
	}
	return "", fmt.Errorf("node %s has no InternalIP of a family that pod %s/%s has", node.Name, from.Namespace,
		from.Name)
}

// probe asks the pod's node to make the connection. A failure becomes part of the trace; only a wrong destination is an
// error.
func (r *traceReader) probe(ctx context.Context, host string) error {
	asked := reach.Asked{
		Host:     host,
		Port:     r.j.Port,
		Protocol: r.j.Protocol,
		Timeout:  r.question.Timeout,
	}
	if _, err := reach.Parse(asked.Values()); err != nil {
		return &DestinationError{err}
	}
	req := r.cl.CoreV1().RESTClient().Post().Resource("pods").Namespace(r.j.From.Namespace).Name(r.j.From.Name).
		SubResource("exec")
	for k, v := range asked.Values() {
		req = req.Param(k, v[0])
	}
	result := req.Do(ctx)
	body, _ := result.Raw()
	if err := result.Error(); err != nil { // the result contains the server's message
		r.j.NoAnswer = err.Error()
		return nil //nolint:nilerr // the rest of the trace is still useful
	}
	var a reach.Answer
	if err := json.Unmarshal(body, &a); err != nil {
		r.j.NoAnswer = "the server makes no probes"
		return nil //nolint:nilerr // as above
	}
	r.j.Answer = &a
	return nil
}

// address resolves the destination: the probe's result, or the Service's address if there was no probe.
func (r *traceReader) address(ctx context.Context, host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		r.j.Address = ip.Unmap()
	}
	svc := r.j.Service
	switch a := r.j.Answer; {
	case r.j.Address.IsValid():
	case a != nil && a.Names != nil && len(a.Names.Addresses) > 0:
		r.j.Address = a.Names.Addresses[0]
	case a == nil && svc != nil:
		if ip, err := netip.ParseAddr(svc.Spec.ClusterIP); err == nil {
			r.j.Address = ip
		}
	}
	if svc == nil && r.j.Address.IsValid() {
		r.findService(ctx)
	}
	if r.j.Service == nil {
		return nil
	}
	svc = r.j.Service
	list, err := r.cl.DiscoveryV1().EndpointSlices(svc.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + svc.Name,
	})
	if err != nil {
		return err // without endpoints there is nothing to show
	}
	for i := range list.Items {
		r.j.Slices = append(r.j.Slices, &list.Items[i])
	}
	return nil
}

// findService finds the Service of the destination's address or node port.
func (r *traceReader) findService(ctx context.Context) {
	r.findNode(ctx)
	for _, ns := range []string{metav1.NamespaceAll, r.j.From.Namespace} {
		list, err := r.cl.CoreV1().Services(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			r.unread("services", ns, err)
			continue
		}
		r.partial("services", list)
		for i := range list.Items {
			if s := &list.Items[i]; hasAddress(s, r.j.Address.String()) || r.j.ToNode != "" && hasNodePort(s, r.j.Port,
				r.j.Protocol) {
				r.j.Service = s
				return
			}
		}
		if ns == metav1.NamespaceAll { // otherwise it may belong to another namespace
			r.findServiceRange(ctx)
		}
		return
	}
}

// findServiceRange finds the ServiceCIDR that contains the address.
func (r *traceReader) findServiceRange(ctx context.Context) {
	list, err := r.cl.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		r.unread("servicecidrs", "", err)
		return
	}
	for i := range list.Items {
		for _, c := range list.Items[i].Spec.CIDRs {
			if p, err := netip.ParsePrefix(c); err == nil && p.Contains(r.j.Address) {
				r.j.ServiceRange = p
			}
		}
	}
}

// findNode finds the node with the address.
func (r *traceReader) findNode(ctx context.Context) {
	list, err := r.cl.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		r.unread("nodes", "", err)
		return
	}
	r.partial("nodes", list)
	for i := range list.Items {
		for _, a := range list.Items[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && ip == r.j.Address {
				r.j.ToNode = list.Items[i].Name
			}
		}
	}
}

func hasNodePort(s *corev1.Service, port uint16, protocol corev1.Protocol) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.NodePort == int32(port) && p.Protocol == protocol
	})
}

func hasAddress(s *corev1.Service, a string) bool {
	return s.Spec.ClusterIP == a || slices.Contains(s.Spec.ClusterIPs, a) || slices.Contains(s.Spec.ExternalIPs, a) ||
		slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
			return in.IP == a
		})
}

// ends reads the objects at both ends: pods, nodes, namespaces, policies.
func (r *traceReader) ends(ctx context.Context) {
	pods := []*corev1.Pod{r.j.From}
	for _, name := range r.endpoints() {
		p, err := r.cl.CoreV1().Pods(name[0]).Get(ctx, name[1], metav1.GetOptions{})
		if err != nil {
			r.unread("pod "+name[1], name[0], err)
			continue
		}
		pods = append(pods, p)
	}
	if len(r.j.Slices) == 0 && r.j.Address.IsValid() {
		pods = append(pods, r.podAt(ctx, r.j.Address.String())...)
	}
	r.j.Pods = pods
	for _, p := range pods {
		if r.j.Namespaces[p.Namespace] == nil {
			r.namespace(ctx, p.Namespace)
		}
		if name := p.Spec.NodeName; name != "" && r.j.Nodes[name] == nil {
			n, err := r.cl.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				r.unread("node "+name, "", err)
				n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			}
			r.j.Nodes[name] = n
		}
	}
}

// endpoints are the namespaces and names of the endpoints' pods.
func (r *traceReader) endpoints() [][2]string {
	var out [][2]string
	for _, s := range r.j.Slices {
		for i := range s.Endpoints {
			ref := s.Endpoints[i].TargetRef
			if ref == nil || ref.Kind != "Pod" {
				continue
			}
			if n := [2]string{s.Namespace, ref.Name}; !slices.Contains(out, n) {
				out = append(out, n)
			}
			if len(out) == mostPods {
				r.j.Unread = append(r.j.Unread, fmt.Sprintf("pods behind more than %d endpoints", mostPods))
				return out
			}
		}
	}
	return out
}

// podAt finds the pod with an address.
func (r *traceReader) podAt(ctx context.Context, a string) []*corev1.Pod {
	for _, ns := range []string{metav1.NamespaceAll, r.j.From.Namespace} {
		list, err := r.cl.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{FieldSelector: "status.podIP=" + a})
		if err != nil {
			r.unread("pods", ns, err)
			continue
		}
		var out []*corev1.Pod
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
		if len(out) == 0 && r.j.Address.Is6() { // the field selector matches a pod's first address only
			out = r.podWithAddress(ctx, ns, a)
		}
		return out
	}
	return nil
}

// podWithAddress searches pods' further addresses.
func (r *traceReader) podWithAddress(ctx context.Context, namespace, a string) []*corev1.Pod {
	const most = 5000
	list, err := r.cl.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: most})
	if err != nil {
		r.unread("pods", namespace, err)
		return nil
	}
	r.partial("pods", list)
	for i := range list.Items {
		if p := &list.Items[i]; slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == a }) {
			return []*corev1.Pod{p}
		}
	}
	return nil
}

// namespace reads a namespace's labels and policies.
func (r *traceReader) namespace(ctx context.Context, name string) {
	r.j.Namespaces[name] = map[string]string{corev1.LabelMetadataName: name}
	if n, err := r.cl.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err == nil {
		r.j.Namespaces[name] = n.Labels
	} else {
		r.unread("namespace "+name, "", err)
	}
	list, err := r.cl.NetworkingV1().NetworkPolicies(name).List(ctx, metav1.ListOptions{})
	if err != nil {
		r.unread("networkpolicies", name, err)
		return
	}
	r.partial("networkpolicies", list)
	for i := range list.Items {
		r.j.Policies = append(r.j.Policies, &list.Items[i])
	}
}

// partial records that a list was cut: a question may not read all.
func (r *traceReader) partial(what string, list metav1.ListInterface) {
	if list.GetContinue() != "" {
		r.j.Unread = append(r.j.Unread, "some of the "+what+": there are too many")
	}
}

// unread records what could not be read. An object that does not exist is no gap.
func (r *traceReader) unread(what, namespace string, err error) {
	if apierrors.IsNotFound(err) {
		return
	}
	if namespace != "" {
		what += " of namespace " + namespace
	}
	reason, _, _ := strings.Cut(err.Error(), ": ")
	r.j.Unread = append(r.j.Unread, what+": "+reason)
}

// number is the port number: as given, by the name of a Service's port, or the Service's only one.
func (d *Destination) number(svc *corev1.Service, protocol corev1.Protocol) (uint16, error) {
	if d.Port != "" {
		if n, err := strconv.ParseUint(d.Port, 10, 16); err == nil && n > 0 {
			return uint16(n), nil
		}
	}
	var names []string
	if svc != nil {
		for _, p := range svc.Spec.Ports {
			same := p.Protocol == protocol || p.Protocol == "" && protocol == corev1.ProtocolTCP
			if same && (p.Name == d.Port && d.Port != "" || d.Port == "" && len(svc.Spec.Ports) == 1) {
				return uint16(p.Port), nil
			}
			names = append(names, strings.TrimSpace(fmt.Sprintf("%d/%s %s", p.Port, p.Protocol, p.Name)))
		}
		return 0, fmt.Errorf("service %s/%s has no %s port %q: it has %s", svc.Namespace, svc.Name, protocol, d.Port,
			strings.Join(names, ", "))
	}
	if d.Port == "" {
		return 0, errors.New("the destination has no port: add one, such as :80")
	}
	return 0, fmt.Errorf("%q is no port: 1 to 65535", d.Port)
}
