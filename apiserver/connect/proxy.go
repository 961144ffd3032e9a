// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/apiserver/objects"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
)

// splitName splits "https:name:port"; scheme and port are optional.
func splitName(id string) (scheme, name, port string, ok bool) {
	switch parts := strings.Split(id, ":"); len(parts) {
	case 1:
		return "", parts[0], "", true
	case 2:
		return "", parts[0], parts[1], true
	case 3:
		return parts[0], parts[1], parts[2], parts[0] == "" || parts[0] == "http" || parts[0] == "https"
	}
	return "", "", "", false
}

// proxies serves the subresource proxy of pods, Services and nodes.
type proxies struct {
	served    *resources.Served
	admission writes.Admitter
	kubelets  nodes
	pods      *http.Transport
}

func newProxies(served *resources.Served, admission writes.Admitter, kubelets nodes, egress *outbound.Egress) *proxies {
	// Certificates of pods and Services cannot be verified here; Kubernetes' proxy does not verify them either.
	unchecked := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} // see above
	return &proxies{
		served:    served,
		admission: admission,
		kubelets:  kubelets,
		pods:      egress.Transport(outbound.Options{Target: outbound.Backend, TLS: unchecked}),
	}
}

func (p *proxies) pod(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	if err := p.admission.Connection(r.Context(), rq, res, &corev1.PodProxyOptions{Path: rq.Rest}); err != nil {
		return err
	}
	scheme, name, port, ok := splitName(rq.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", rq.Name))
	}
	pod, err := p.served.Pod(r.Context(), rq.Namespace, name)
	if err != nil {
		return err
	}
	if port == "" {
		for _, ct := range pod.Spec.Containers {
			if len(ct.Ports) > 0 {
				port = strconv.Itoa(int(ct.Ports[0].ContainerPort))
				break
			}
		}
	}
	ip := net.ParseIP(pod.Status.PodIP)
	if ip == nil || !ip.IsGlobalUnicast() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return p.backend(w, r, rq, scheme, pod.Status.PodIP, port)
}

// backend proxies the path after /proxy to a pod's address.
func (p *proxies) backend(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, scheme, ip, port string,
) error {
	if scheme == "" {
		scheme = "http"
	}
	host := ip
	if port != "" {
		host = net.JoinHostPort(ip, port)
	}
	target := &url.URL{
		Scheme:   scheme,
		Host:     host,
		Path:     "/" + rq.Rest,
		RawQuery: r.URL.RawQuery,
	}
	proxyWithRewrite(w, r, rq, target, p.pods)
	return nil
}

func (p *proxies) node(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	if err := p.admission.Connection(r.Context(), rq, res, &corev1.NodeProxyOptions{Path: rq.Rest}); err != nil {
		return err
	}
	_, name, port, ok := splitName(rq.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", rq.Name))
	}
	base, err := p.kubelets.URL(r.Context(), name)
	if err != nil {
		return err
	}
	target := &url.URL{
		Scheme:   base.Scheme,
		Host:     base.Host,
		Path:     "/" + rq.Rest,
		RawQuery: r.URL.RawQuery,
	}
	via := p.kubelets.Transport()
	if port != "" && port != base.Port() { // another server on the node must not get our client certificate
		host, err := p.kubelets.Address(r.Context(), name)
		if err != nil {
			return err
		}
		target.Scheme = "http"
		target.Host = net.JoinHostPort(host, port)
		via = p.pods
	} else if err := p.kubelets.enter(rq, name); err != nil {
		return err
	}
	proxyWithRewrite(w, r, rq, target, via)
	return nil
}

func (p *proxies) service(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	if err := p.admission.Connection(r.Context(), rq, res, &corev1.ServiceProxyOptions{Path: rq.Rest}); err != nil {
		return err
	}
	scheme, name, port, ok := splitName(rq.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", rq.Name))
	}
	svc, err := resources.CoreObject[*corev1.Service](r.Context(), p.served, "services", rq.Namespace, name)
	if err != nil {
		return err
	}
	portName, ok := servicePort(svc, port)
	if !ok {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, name))
	}
	ip, number, err := p.endpoint(r.Context(), svc, portName)
	if err != nil {
		return err
	}
	return p.backend(w, r, rq, scheme, ip, strconv.Itoa(int(number)))
}

// servicePort is the name of the requested port, given by name or number; "" is the unnamed or only one.
func servicePort(svc *corev1.Service, want string) (string, bool) {
	if want == "" {
		if len(svc.Spec.Ports) == 1 {
			return svc.Spec.Ports[0].Name, true
		}
	}
	number := int64(-1)
	if len(validation.IsValidPortName(want)) > 0 {
		if n, err := strconv.ParseInt(want, 10, 32); err == nil {
			number = n
		}
	}
	for _, p := range svc.Spec.Ports {
		if p.Name == want || int64(p.Port) == number {
			return p.Name, true
		}
	}
	return "", false
}

// endpoint chooses a ready endpoint for a Service's port.
func (p *proxies) endpoint(ctx context.Context, svc *corev1.Service, portName string) (string, int32, error) {
	stored := p.served.BuiltIn(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	none := apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", svc.Name))
	if stored == nil {
		return "", 0, none
	}
	page, err := stored.Storage.List(ctx, objects.ListQuery{
		Namespace:       svc.Namespace,
		Fields:          fields.Everything(),
		ResourceVersion: "0",
		Labels:          labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name}),
	})
	if err != nil {
		return "", 0, err
	}
	var found []backendAddress
	for _, e := range page.Items {
		s, ok := e.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		for _, slicePort := range s.Ports {
			if slicePort.Port == nil || slicePort.Name != nil && *slicePort.Name != portName ||
				slicePort.Name == nil && portName != "" {
				continue
			}
			for _, ep := range s.Endpoints {
				if (ep.Conditions.Ready == nil || *ep.Conditions.Ready) && len(ep.Addresses) > 0 {
					found = append(found, backendAddress{ep.Addresses[0], *slicePort.Port, ep.TargetRef})
				}
			}
		}
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	for _, b := range found {
		if p.belongsToPod(ctx, svc.Namespace, b) {
			return b.ip, b.port, nil
		}
	}
	return "", 0, none
}

// backendAddress is an endpoint with its target reference.
type backendAddress struct {
	ip   string
	port int32
	ref  *corev1.ObjectReference
}

// belongsToPod reports whether an endpoint's address belongs to the pod in its reference, in the Service's namespace.
// As in Kubernetes, others are not proxied to: with them, anyone who may write EndpointSlices could reach any address.
func (p *proxies) belongsToPod(ctx context.Context, namespace string, b backendAddress) bool {
	if b.ref == nil || b.ref.Namespace != namespace {
		return false
	}
	pod, err := p.served.Pod(ctx, namespace, b.ref.Name)
	return err == nil && slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		return ip.IP == b.ip
	})
}
