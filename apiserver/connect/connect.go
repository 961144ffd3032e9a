// SPDX-License-Identifier: Apache-2.0

// Package connect serves the subresources that open connections, for handlers: exec, attach, portforward, log, proxy,
// and the probe of `keelson trace`. Connections lead to kubelets, pods and Services only, all through outbound.Egress.
// It asks admission first, and never authenticates.
package connect

import (
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
	"keelson/api/networking/reach"
	"keelson/api/scheme"
	"keelson/apiserver/kubelets"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/lib/streams"
)

// Connections serves the subresources that open connections: exec, attach, portforward, log and proxy.
type Connections struct {
	served     *resources.Served
	admission  writes.Admitter
	authorizer auth.Authorizer // nil: websockets need no further permission
	kubelets   nodes
	proxies    *proxies
}

// New returns what connects requests to kubelets, and through egress to pods and Services.
func New(
	served *resources.Served, admission writes.Admitter, authorizer auth.Authorizer, kubelets *kubelets.Kubelets,
	egress *outbound.Egress,
) *Connections {
	nodes := nodes{kubelets}
	return &Connections{
		served:     served,
		admission:  admission,
		authorizer: authorizer,
		kubelets:   nodes,
		proxies:    newProxies(served, admission, nodes, egress),
	}
}

// CloseIdle closes idle connections to pods.
func (c *Connections) CloseIdle() { c.proxies.pods.CloseIdleConnections() }

// verb serves a subresource.
type verb = func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error

// Subresources are all that open connections.
func (c *Connections) Subresources() map[string]verb {
	all := map[string]verb{
		"/pods/exec":        c.stream("exec", func() runtime.Object { return &corev1.PodExecOptions{} }),
		"/pods/attach":      c.stream("attach", func() runtime.Object { return &corev1.PodAttachOptions{} }),
		"/pods/portforward": c.portForward,
		"/pods/proxy":       c.proxies.pod,
		"/services/proxy":   c.proxies.service,
		"/nodes/proxy":      c.proxies.node,
	}
	for name, connect := range all {
		all[name] = rejectDryRun(connect)
	}
	all["/pods/log"] = c.log
	return all
}

// rejectDryRun rejects a connection that must change nothing: what is sent through it cannot be undone.
func rejectDryRun(connect verb) verb {
	return func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
		if r.URL.Query().Has("dryRun") {
			return apierrors.NewBadRequest("dryRun is not supported")
		}
		return connect(w, r, rq, res)
	}
}

func options(r *http.Request, into runtime.Object) error {
	if err := scheme.ParameterCodec.DecodeParameters(r.URL.Query(), corev1.SchemeGroupVersion, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
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

// completed is the error for exec and attach in a pod whose containers have ended.
func completed(what string, phase corev1.PodPhase) error {
	if what == "exec" {
		what = "exec into"
	}
	return apierrors.NewBadRequest(
		fmt.Sprintf("cannot %s a container in a completed pod; current phase is %s", what, phase))
}

// stream serves exec and attach.
func (c *Connections) stream(what string, fresh func() runtime.Object) verb {
	return func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
		if rq.Verb != "get" && rq.Verb != "create" {
			return wire.MethodNotAllowed()
		}
		if what == "exec" && r.URL.Query().Has(reach.Param) {
			return c.probe(w, r, rq, res)
		}
		opts := fresh()
		if err := options(r, opts); err != nil {
			return err
		}
		if err := c.admission.Connection(r.Context(), rq, res, opts); err != nil {
			return err
		}
		if err := c.mayCreate(r, rq); err != nil {
			return err
		}
		name, command, wants := wanted(opts)
		pod, err := c.served.Pod(r.Context(), rq.Namespace, rq.Name)
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
			return completed(what, pod.Status.Phase)
		}
		if what == "exec" && len(command) == 0 {
			return apierrors.NewBadRequest("you must specify at least 1 command for the container")
		}
		if !wants.Stdin && !wants.Stdout && !wants.Stderr {
			return apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
		}
		target, err := c.kubelets.target(r.Context(), rq, pod.Spec.NodeName,
			[]string{what, pod.Namespace, pod.Name, name}, streamQuery(wants, command))
		if err != nil {
			return err
		}
		c.remote(w, r, pod.Spec.NodeName, target, wants)
		return nil
	}
}

// wanted returns what the options of an exec or attach ask for: the container ("": the default one), the command of an
// exec, and the streams.
func wanted(opts runtime.Object) (container string, command []string, wants streams.Options) {
	switch o := opts.(type) {
	case *corev1.PodExecOptions:
		return o.Container, o.Command, streams.Options{
			Stdin:  o.Stdin,
			Stdout: o.Stdout,
			Stderr: o.Stderr,
			TTY:    o.TTY,
		}
	case *corev1.PodAttachOptions:
		return o.Container, nil, streams.Options{
			Stdin:  o.Stdin,
			Stdout: o.Stdout,
			Stderr: o.Stderr,
			TTY:    o.TTY,
		}
	}
	return "", nil, streams.Options{}
}

// remote connects an exec or attach with a node's kubelet. Websockets are translated for one that does not take them.
func (c *Connections) remote(
	w http.ResponseWriter, r *http.Request, node string, target *url.URL, wants streams.Options,
) {
	if streams.IsRemote(r) && !c.kubelets.websockets(r.Context(), node) {
		target.Scheme = "http" // SPDY uses the transport's DialContext, which does TLS
		streams.Remote(w, r, target, c.kubelets.Transport(), wants)
		return
	}
	reverseProxy(target, c.kubelets.Transport()).ServeHTTP(w, r)
}

// opensStream reports whether a request's verb opens a stream.
func opensStream(rq *pipeline.Request) bool { return rq.Verb == "get" || rq.Verb == "create" }

// mayCreate requires the verb create for a GET that opens a stream (a websocket handshake): the right to read must not
// open a shell.
func (c *Connections) mayCreate(r *http.Request, rq *pipeline.Request) error {
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

func (c *Connections) portForward(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	if !opensStream(rq) {
		return wire.MethodNotAllowed()
	}
	opts := &corev1.PodPortForwardOptions{}
	if err := options(r, opts); err != nil {
		return err
	}
	if err := c.admission.Connection(r.Context(), rq, res, opts); err != nil {
		return err
	}
	if err := c.mayCreate(r, rq); err != nil {
		return err
	}
	pod, err := c.served.Pod(r.Context(), rq.Namespace, rq.Name)
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
	target, err := c.kubelets.target(r.Context(), rq, pod.Spec.NodeName,
		[]string{"portForward", pod.Namespace, pod.Name}, q)
	if err != nil {
		return err
	}
	if !streams.IsTunnel(r) || c.kubelets.websockets(r.Context(), pod.Spec.NodeName) {
		reverseProxy(target, c.kubelets.Transport()).ServeHTTP(w, r)
		return nil
	}
	if err := streams.Tunnel(w, r, target, c.kubelets.Transport()); err != nil {
		return proxyError(err, target)
	}
	return nil
}

// reverseProxy forwards a request, and an upgraded connection, to target.
func reverseProxy(target *url.URL, via http.RoundTripper) *httputil.ReverseProxy {
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
