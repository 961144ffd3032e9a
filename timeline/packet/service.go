// SPDX-License-Identifier: Apache-2.0

// Package packet explains where packets to a Service go and the first thing that stops them. cli calls it for `keelson
// why svc/NAME` and `keelson trace`. Its functions are pure, from API objects and a probe's result; it does no I/O and
// sends no packet.
package packet

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	podapi "keelson/api/core/pod"
	"keelson/api/networking/verdict"
	"keelson/lib/words"
)

// Objects is the input of an explanation: a Service and the objects of its namespace.
type Objects struct {
	Service  *corev1.Service
	Pods     []corev1.Pod
	Slices   []discoveryv1.EndpointSlice // the Service's
	Policies []networkingv1.NetworkPolicy
	// Unhealthy are the Unhealthy events in the namespace: results of probes. May be empty.
	Unhealthy []corev1.Event
	Domain    string // the cluster domain; empty: cluster.local
}

// Service explains a Service.
type Service struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	Addresses []string `json:"addresses,omitempty"`
	Ports     []string `json:"ports,omitempty"`
	Selector  string   `json:"selector,omitempty"`
	// Names are the DNS names.
	Names []string `json:"names,omitempty"`
	Pods  []Pod    `json:"pods,omitempty"`
	// Wrong is the first problem; empty: none.
	Wrong string `json:"wrong,omitempty"`
	// Nodes are what nodes report about it.
	Nodes []Node `json:"nodes,omitempty"`

	now time.Time
}

// Pod is a pod that the Service's selector matches.
type Pod struct {
	Name    string   `json:"name"`
	Address string   `json:"address,omitempty"`
	Ready   bool     `json:"ready"`
	Why     string   `json:"why,omitempty"`   // why it is not ready
	Slice   string   `json:"slice,omitempty"` // the EndpointSlice that contains it
	Ports   []string `json:"ports,omitempty"`
	// Policies isolate the pod: only what they allow reaches it.
	Policies []string `json:"policies,omitempty"`

	leads []int // indexes of the Service's ports that lead to a port of the pod
}

// Explain follows a packet to the Service as far as it gets.
func Explain(objects *Objects) *Service {
	svc := objects.Service
	service := &Service{
		Namespace: svc.Namespace,
		Name:      svc.Name,
		Type:      string(svc.Spec.Type),
		Selector:  labels.FormatLabels(svc.Spec.Selector),
	}
	if len(svc.Spec.Selector) == 0 {
		service.Selector = ""
	}
	service.Addresses = slices.Clone(svc.Spec.ClusterIPs)
	for _, p := range svc.Spec.Ports {
		service.Ports = append(service.Ports, portText(&p))
	}
	service.Names = names(objects)
	for i := range objects.Pods {
		p := &objects.Pods[i]
		if len(svc.Spec.Selector) > 0 && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) &&
			!podapi.Terminal(p) {
			service.Pods = append(service.Pods, explainPod(objects, p))
		}
	}
	slices.SortFunc(service.Pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	service.Wrong = wrong(objects, service)
	return service
}

func portText(p *corev1.ServicePort) string {
	text := fmt.Sprintf("%d/%s -> %s", p.Port, p.Protocol, target(p))
	if p.Name != "" {
		text = p.Name + " " + text
	}
	return text
}

func target(p *corev1.ServicePort) string {
	if p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal == 0 {
		return fmt.Sprint(p.Port)
	}
	return p.TargetPort.String()
}

func names(o *Objects) []string {
	domain := o.Domain
	if domain == "" {
		domain = "cluster.local"
	}
	svc := o.Service
	name := fmt.Sprintf("%s.%s.svc.%s", svc.Name, svc.Namespace, domain)
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return []string{name + " is an alias of " + svc.Spec.ExternalName}
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return []string{fmt.Sprintf("%s is the addresses of its ready pods (headless)", name)}
	}
	return []string{name + " is " + strings.Join(svc.Spec.ClusterIPs, ", ")}
}

func explainPod(objects *Objects, pod *corev1.Pod) Pod {
	out := Pod{Name: pod.Name, Address: pod.Status.PodIP, Ready: podapi.Ready(pod)}
	if !out.Ready {
		out.Why = unready(objects, pod)
	}
	for _, sl := range objects.Slices {
		for _, e := range sl.Endpoints {
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && e.TargetRef.Name == pod.Name {
				out.Slice = sl.Name
			}
		}
	}
	for i := range objects.Service.Spec.Ports {
		sp := &objects.Service.Spec.Ports[i]
		if n, ok := resolve(sp, pod); ok {
			out.leads = append(out.leads, i)
			out.Ports = append(out.Ports, fmt.Sprintf("%d -> %d", sp.Port, n))
		}
	}
	for i := range objects.Policies {
		pol := &objects.Policies[i]
		v := (&verdict.Cluster{Policies: []*networkingv1.NetworkPolicy{pol}}).Ingress(verdict.End{},
			verdict.End{Pod: pod, Addr: anAddress}, verdict.Port{})
		out.Policies = append(out.Policies, v.Isolating...)
	}
	return out
}

// anAddress only prevents an endpoint without an address.
var anAddress = netip.IPv6Loopback()

func resolve(sp *corev1.ServicePort, p *corev1.Pod) (int32, bool) {
	switch {
	case sp.TargetPort.Type == intstr.String:
		return verdict.Named(p, sp.TargetPort.StrVal, sp.Protocol)
	case sp.TargetPort.IntVal == 0:
		return sp.Port, true
	}
	return sp.TargetPort.IntVal, true
}

// unready explains why a pod gets no packets.
func unready(objects *Objects, pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(fmt.Sprintf("container %s waits: %s: %s", c.Name, w.Reason, w.Message), ": ")
		}
	}
	if c := podapi.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return "no node: " + c.Message
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil && !c.Ready {
			return "container " + c.Name + " runs, but its readiness probe fails" + probeText(pod, c.Name) + found(
				objects, pod)
		}
	}
	if c := podapi.Condition(pod, corev1.PodReady); c != nil && c.Message != "" {
		return c.Message
	}
	return "phase " + string(pod.Status.Phase)
}

// found is the last result of the pod's readiness probe, from its newest event; empty: none.
func found(o *Objects, p *corev1.Pod) string {
	const (
		failed = "Readiness probe failed: "
		most   = 200 // of a server's response
	)
	text := ""
	newest := time.Time{}
	for i := range o.Unhealthy {
		e := &o.Unhealthy[i]
		_, words, ok := strings.Cut(e.Message, failed)
		if !ok || e.InvolvedObject.UID != p.UID {
			continue
		}
		at := e.LastTimestamp.Time
		if e.Series != nil {
			at = e.Series.LastObservedTime.Time
		}
		if text == "" || at.After(newest) {
			text = strings.Join(strings.Fields(words), " ")
			newest = at
		}
	}
	if text == "" {
		return ""
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return ": " + text
}

func probeText(p *corev1.Pod, container string) string {
	for _, c := range p.Spec.Containers {
		if c.Name != container || c.ReadinessProbe == nil {
			continue
		}
		switch h := c.ReadinessProbe.ProbeHandler; {
		case h.HTTPGet != nil:
			return fmt.Sprintf(" (http :%s%s)", h.HTTPGet.Port.String(), h.HTTPGet.Path)
		case h.TCPSocket != nil:
			return " (tcp :" + h.TCPSocket.Port.String() + ")"
		case h.GRPC != nil:
			return fmt.Sprintf(" (grpc :%d)", h.GRPC.Port)
		case h.Exec != nil:
			return " (exec " + strings.Join(h.Exec.Command, " ") + ")"
		}
	}
	return ""
}

// wrong is the first thing that stops a packet, in the order of its path.
func wrong(objects *Objects, service *Service) string {
	svc := objects.Service
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return ""
	case len(svc.Spec.Selector) == 0:
		if !slices.ContainsFunc(objects.Slices, func(sl discoveryv1.EndpointSlice) bool {
			return len(sl.Endpoints) > 0
		}) {
			return "it has no selector, and no endpoints were written for it"
		}
		return ""
	case len(service.Pods) == 0:
		return "selector " + service.Selector + " matches no pod; " + nearest(objects)
	}
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		if sp.TargetPort.Type == intstr.String && !slices.ContainsFunc(service.Pods, func(p Pod) bool {
			return slices.Contains(p.leads, i)
		}) {
			return fmt.Sprintf("port %d -> targetPort %s: no container port of that name; there %s", sp.Port,
				sp.TargetPort.StrVal, portNames(objects, service))
		}
	}
	ready := slices.DeleteFunc(slices.Clone(service.Pods), func(p Pod) bool { return !p.Ready })
	if len(ready) == 0 && !svc.Spec.PublishNotReadyAddresses {
		return fmt.Sprintf("%s, none ready: %s: %s", words.Count(len(service.Pods), "pod"), service.Pods[0].Name,
			service.Pods[0].Why)
	}
	for _, p := range ready {
		if p.Slice == "" {
			return fmt.Sprintf("pod %s is ready, but no EndpointSlice carries it: does the endpointslice-controller "+
				"run?", p.Name)
		}
	}
	return dropped(objects, ready)
}

// dropped names policies that allow no connection to any of the pods.
func dropped(o *Objects, ready []Pod) string {
	var all []string
	for _, p := range ready {
		if len(p.Policies) == 0 {
			return ""
		}
		for i := range o.Policies {
			name := o.Policies[i].Namespace + "/" + o.Policies[i].Name
			if slices.Contains(p.Policies, name) && len(o.Policies[i].Spec.Ingress) > 0 {
				return ""
			}
		}
		all = append(all, p.Policies...)
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return "NetworkPolicy " + strings.Join(slices.Compact(all), ", ") + " drops it"
}

func portNames(o *Objects, s *Service) string {
	found := map[string]bool{}
	for i := range o.Pods {
		if !slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Name == o.Pods[i].Name }) {
			continue
		}
		for _, c := range o.Pods[i].Spec.Containers {
			for _, p := range c.Ports {
				if p.Name != "" {
					found[fmt.Sprintf("%s (%d)", p.Name, p.ContainerPort)] = true
				}
			}
		}
	}
	if len(found) == 0 {
		return "are none with a name"
	}
	return "are " + strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

// Render prints the explanation.
func Render(out io.Writer, service *Service, color bool) {
	p := words.Colors(color)
	var b strings.Builder
	fmt.Fprintf(&b, "%s   %s %s\n", p.With(words.Bold, service.Namespace+"/"+service.Name), service.Type,
		strings.Join(service.Addresses, ", "))
	for _, n := range service.Names {
		fmt.Fprintf(&b, "   dns    %s\n", n)
	}
	for _, port := range service.Ports {
		fmt.Fprintf(&b, "   port   %s\n", port)
	}
	if service.Selector != "" {
		fmt.Fprintf(&b, "   selector %s: %s\n", service.Selector, words.Count(len(service.Pods), "pod"))
	}
	for _, pod := range service.Pods {
		state := p.With(words.Green, "ready")
		if !pod.Ready {
			state = p.With(words.Red, "not ready: "+pod.Why)
		}
		fmt.Fprintf(&b, "   pod    %s   %s   %s\n", pod.Name,
			strings.TrimSpace(pod.Address+"  "+strings.Join(pod.Ports, ", ")), state)
		if pod.Slice != "" {
			fmt.Fprintf(&b, "          in slice %s\n", pod.Slice)
		}
		if len(pod.Policies) > 0 {
			fmt.Fprintf(&b, "          isolated by %s\n", strings.Join(pod.Policies, ", "))
		}
	}
	for i := range service.Nodes {
		renderNode(&b, &service.Nodes[i], service.now)
	}
	if service.Wrong != "" {
		fmt.Fprintf(&b, "   %s\n", p.With(words.Red, "wrong: "+service.Wrong))
	} else {
		what := "the API shows"
		if len(service.Nodes) > 0 {
			what = "the API and the nodes show"
		}
		fmt.Fprintf(&b, "   %s\n", p.With(words.Green, "nothing is wrong that "+what))
	}
	_, _ = io.WriteString(out, b.String())
}
