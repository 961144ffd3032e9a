// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	podkind "keelson/api/core/pod"
	"keelson/api/invalid"
	"keelson/api/networking/reach"
	"keelson/api/scheme"
	"keelson/apiserver/admission"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/registry"
	"keelson/apiserver/streams"
	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/lib/connlimit"
)

// connector proxies streams between clients and kubelets, pods and Services.
type connector struct {
	h          *Handler
	authorizer auth.Authorizer // nil: websockets need no further permission
	kubelets   *http.Transport
	pods       *http.Transport
	// enterTunnel is Config.EnterTunnel.
	enterTunnel func(node string, owner connlimit.Owner) (leave func(), ok bool)
}

func newConnector(
	h *Handler, authorizer auth.Authorizer, kubelet func() *tls.Config, egress *outbound.Egress,
	tunnel outbound.TunnelDialer,
) *connector {
	if egress == nil {
		egress = outbound.New(outbound.Config{})
	}
	// Certificates of pods and Services cannot be verified here; Kubernetes' proxy does not verify them either.
	unchecked := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} // see above
	return &connector{
		h:          h,
		authorizer: authorizer,
		kubelets:   egress.NodeTransport(kubelet, h.nodeAddress, tunnel),
		pods:       egress.Transport(outbound.Options{Target: outbound.Backend, TLS: unchecked}),
		enterTunnel: func(string, connlimit.Owner) (func(), bool) {
			return func() {}, true
		},
	}
}

func (c *connector) subresources() map[string]SubresourceHandler {
	all := map[string]SubresourceHandler{
		"/pods/exec":        c.stream("exec", func() runtime.Object { return &corev1.PodExecOptions{} }),
		"/pods/attach":      c.stream("attach", func() runtime.Object { return &corev1.PodAttachOptions{} }),
		"/pods/portforward": c.portForward,
		"/pods/proxy":       c.proxyPod,
		"/services/proxy":   c.proxyService,
		"/nodes/proxy":      c.proxyNode,
	}
	for name, connect := range all {
		all[name] = rejectDryRun(connect)
	}
	all["/pods/log"] = c.log
	return all
}

// rejectDryRun rejects a connection that must change nothing: what is sent through it cannot be undone.
func rejectDryRun(connect SubresourceHandler) SubresourceHandler {
	return func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource) error {
		if r.URL.Query().Has("dryRun") {
			return apierrors.NewBadRequest("dryRun is not supported")
		}
		return connect(w, r, rq, res)
	}
}

// admit runs admission for a connection.
func (c *connector) admit(
	ctx context.Context, rq *pipeline.Request, res *registry.Resource, opts runtime.Object,
) error {
	ar := admissionRequest(rq, res, admission.Connect, nil, nil, opts, false)
	ar.Object = opts
	ar.Spec = nil
	if gvks, _, err := scheme.Scheme.ObjectKinds(opts); err == nil {
		ar.Kind = gvks[0]
	}
	if err := c.h.mutate(ctx, rq, ar, res, nil); err != nil {
		return err
	}
	return c.h.admitted(ctx, rq, ar, nothing)
}

func options(r *http.Request, into runtime.Object) error {
	if err := scheme.ParameterCodec.DecodeParameters(r.URL.Query(), corev1.SchemeGroupVersion, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func (c *connector) pod(ctx context.Context, rq *pipeline.Request) (*corev1.Pod, error) {
	obj, err := c.h.object(ctx, "pods", rq.Namespace, rq.Name)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("pod %s is a %T", rq.Name, obj))
	}
	return pod, nil
}

// containerOf is the requested container, by name or as the only one.
func containerOf(pod *corev1.Pod, name string) (string, error) {
	var all, inits []string
	for _, c := range pod.Spec.Containers {
		all = append(all, c.Name)
	}
	for _, c := range pod.Spec.InitContainers {
		inits = append(inits, c.Name)
	}
	known := slices.Concat(all, inits)
	for _, c := range pod.Spec.EphemeralContainers {
		known = append(known, c.Name)
	}
	switch {
	case name != "" && !slices.Contains(known, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	case name != "":
		return name, nil
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	}
	text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", pod.Name,
		strings.Join(all, " "))
	if len(inits) > 0 {
		text += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(inits, " "))
	}
	return "", apierrors.NewBadRequest(text)
}

// stream serves exec and attach.
func (c *connector) stream(verb string, fresh func() runtime.Object) SubresourceHandler {
	return func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource) error {
		if rq.Verb != "get" && rq.Verb != "create" {
			return wire.MethodNotAllowed()
		}
		if verb == "exec" && r.URL.Query().Has(reach.Param) {
			return c.probe(w, r, rq, res)
		}
		opts := fresh()
		if err := options(r, opts); err != nil {
			return err
		}
		if err := c.admit(r.Context(), rq, res, opts); err != nil {
			return err
		}
		if err := c.mayCreate(r, rq); err != nil {
			return err
		}
		var name string
		var command []string
		var wants streams.Options
		switch o := opts.(type) {
		case *corev1.PodExecOptions:
			name = o.Container
			command = o.Command
			wants = streams.Options{
				Stdin:  o.Stdin,
				Stdout: o.Stdout,
				Stderr: o.Stderr,
				TTY:    o.TTY,
			}
		case *corev1.PodAttachOptions:
			name = o.Container
			wants = streams.Options{
				Stdin:  o.Stdin,
				Stdout: o.Stdout,
				Stderr: o.Stderr,
				TTY:    o.TTY,
			}
		}
		pod, err := c.pod(r.Context(), rq)
		if err != nil {
			return err
		}
		if name, err = containerOf(pod, name); err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
		}
		if podkind.Terminal(pod) {
			return apierrors.NewBadRequest(
				fmt.Sprintf("cannot exec into a container in a completed pod; current phase is %s", pod.Status.Phase))
		}
		if verb == "exec" && len(command) == 0 {
			return apierrors.NewBadRequest("you must specify at least 1 command for the container")
		}
		if !wants.Stdin && !wants.Stdout && !wants.Stderr {
			return apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
		}
		target, err := c.kubelet(r.Context(), rq, pod.Spec.NodeName, []string{verb, pod.Namespace, pod.Name, name},
			streamQuery(wants, command))
		switch {
		case err != nil:
			return err
		case streams.IsRemote(r):
			target.Scheme = "http" // SPDY uses the transport's DialContext, which does TLS
			streams.Remote(w, r, target, c.kubelets, wants)
		default:
			c.proxy(target, c.kubelets).ServeHTTP(w, r)
		}
		return nil
	}
}

// opensStream reports whether a request's verb opens a stream.
func opensStream(rq *pipeline.Request) bool { return rq.Verb == "get" || rq.Verb == "create" }

// mayCreate requires the verb create for a GET that opens a stream (a websocket handshake): the right to read must not
// open a shell.
func (c *connector) mayCreate(r *http.Request, rq *pipeline.Request) error {
	if rq.Verb == "create" || c.authorizer == nil {
		return nil
	}
	a := pipeline.Attributes(rq)
	a.Verb = "create"
	d, err := c.authorizer.Authorize(r.Context(), a)
	switch {
	case d.Verdict == auth.Allow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("authorize: %w", err))
	}
	return pipeline.Forbidden(a, d.Reason)
}

// streamQuery are the kubelet's query parameters for the requested streams and the command of an exec.
func streamQuery(s streams.Options, command []string) url.Values {
	values := url.Values{}
	for name, on := range map[string]bool{
		"input":  s.Stdin,
		"output": s.Stdout,
		"error":  s.Stderr,
		"tty":    s.TTY,
	} {
		if on {
			values.Set(name, "1")
		}
	}
	if len(command) > 0 {
		values["command"] = command
	}
	return values
}

func (c *connector) portForward(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource,
) error {
	if !opensStream(rq) {
		return wire.MethodNotAllowed()
	}
	opts := &corev1.PodPortForwardOptions{}
	if err := options(r, opts); err != nil {
		return err
	}
	if err := c.admit(r.Context(), rq, res, opts); err != nil {
		return err
	}
	if err := c.mayCreate(r, rq); err != nil {
		return err
	}
	pod, err := c.pod(r.Context(), rq)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	q := url.Values{}
	for _, p := range opts.Ports {
		q.Add("port", strconv.Itoa(int(p)))
	}
	target, err := c.kubelet(r.Context(), rq, pod.Spec.NodeName, []string{"portForward", pod.Namespace, pod.Name}, q)
	if err != nil {
		return err
	}
	if !streams.IsTunnel(r) {
		c.proxy(target, c.kubelets).ServeHTTP(w, r)
		return nil
	}
	if err := streams.Tunnel(w, r, target, c.kubelets); err != nil {
		return proxyError(err, target)
	}
	return nil
}

// log serves pods/log.
func (c *connector) log(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, _ *registry.Resource) error {
	if rq.Verb != "get" {
		return wire.MethodNotAllowed()
	}
	opts := &corev1.PodLogOptions{}
	if err := options(r, opts); err != nil {
		return err
	}
	if errs := validateLog(opts); len(errs) > 0 {
		return invalid.New(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), rq.Name, errs)
	}
	pod, err := c.pod(r.Context(), rq)
	if err != nil {
		return err
	}
	name, err := containerOf(pod, opts.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" { // no container can have logged yet
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	target, err := c.kubelet(r.Context(), rq, pod.Spec.NodeName,
		[]string{"containerLogs", pod.Namespace, pod.Name, name}, logQuery(opts))
	if err != nil {
		return err
	}
	if streams.IsWebSocket(r) {
		return c.logSocket(w, r, rq, target)
	}
	proxy := c.proxy(target, c.kubelets)
	proxy.ModifyResponse = func(resp *http.Response) error {
		if resp.StatusCode == http.StatusOK {
			resp.Header.Set("Content-Type", "text/plain")
			return nil
		}
		return kubeletError(resp, rq)
	}
	r.Header.Del("Accept-Encoding")
	proxy.ServeHTTP(w, r)
	return nil
}

// logSocket sends a log as websocket messages.
func (c *connector) logSocket(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, target *url.URL) error {
	protocol, err := streams.LogProtocol(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.kubelets.RoundTrip(req)
	if err != nil {
		return proxyError(err, target)
	}
	if resp.StatusCode != http.StatusOK {
		return kubeletError(resp, rq)
	}
	streams.Log(w, r, protocol, resp.Body)
	return nil
}

// kubelet is the URL of a request to a node's kubelet, which gets a place in the node's tunnel until it ends.
func (c *connector) kubelet(
	ctx context.Context, rq *pipeline.Request, node string, path []string, query url.Values,
) (*url.URL, error) {
	base, err := c.h.kubeletURL(ctx, node)
	if err != nil {
		return nil, err
	}
	if err := c.enter(rq, node); err != nil {
		return nil, err
	}
	target := base.JoinPath(path...)
	target.RawQuery = query.Encode()
	return target, nil
}

// enter takes a place in a node's tunnel, which the request gives back when it ends.
func (c *connector) enter(rq *pipeline.Request, node string) error {
	leave, ok := c.enterTunnel(node, rq.Owner())
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("node %s has a tunnel, and your share of connections is "+
			"taken: end other exec, logs, port-forward or proxy requests", node), 1)
	}
	rq.OnEnd(leave)
	return nil
}

// proxy forwards a request, and an upgraded connection, to target.
func (c *connector) proxy(target *url.URL, via http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     via,
		FlushInterval: -1, // followed logs are sent line by line
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = target
			p.Out.Host = target.Host
			p.SetXForwarded()
			for name := range p.Out.Header {
				if strings.HasPrefix(name, "Impersonate-") || name == "Authorization" {
					p.Out.Header.Del(name)
				}
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the client has disconnected
			}
			pipeline.From(r.Context()).Failure = err.Error()
			wire.WriteError(w, r, proxyError(err, target))
		},
	}
}

// proxyError is the error of a failed connection in Kubernetes' words, unless it is a Status already.
func proxyError(err error, target *url.URL) error {
	if no := notAllowed(err); no != nil {
		return no
	}
	if s, ok := err.(apierrors.APIStatus); ok {
		return &apierrors.StatusError{ErrStatus: s.Status()}
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("error dialing backend: %v", err),
		Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Message: fmt.Sprintf("error dialing backend %s: %v", target.Host, err)}},
		},
	}}
}
