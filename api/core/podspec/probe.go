// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/api/internal/check"
)

func (c *Checker) probes(ctr *corev1.Container) {
	if p := ctr.LivenessProbe; p != nil {
		c.In("livenessProbe")
		c.probe(p)
		c.succeedsOnce(p)
		c.Out()
	}
	if p := ctr.ReadinessProbe; p != nil {
		c.In("readinessProbe")
		c.probe(p)
		if p.TerminationGracePeriodSeconds != nil {
			c.Invalid("terminationGracePeriodSeconds", *p.TerminationGracePeriodSeconds,
				"must not be set for readinessProbes")
		}
		c.Out()
	}
	if p := ctr.StartupProbe; p != nil {
		c.In("startupProbe")
		c.probe(p)
		c.succeedsOnce(p)
		c.Out()
	}
}

func (c *Checker) succeedsOnce(p *corev1.Probe) {
	if p.SuccessThreshold != 1 {
		c.Invalid("successThreshold", p.SuccessThreshold, "must be 1")
	}
}

func (c *Checker) probe(p *corev1.Probe) {
	c.handler(handler{
		exec: p.Exec,
		http: p.HTTPGet,
		tcp:  p.TCPSocket,
		grpc: p.GRPC,
	})
	c.NotNegative("initialDelaySeconds", int64(p.InitialDelaySeconds))
	c.NotNegative("timeoutSeconds", int64(p.TimeoutSeconds))
	c.NotNegative("periodSeconds", int64(p.PeriodSeconds))
	c.NotNegative("successThreshold", int64(p.SuccessThreshold))
	c.NotNegative("failureThreshold", int64(p.FailureThreshold))
	if s := p.TerminationGracePeriodSeconds; s != nil && *s <= 0 {
		c.Invalid("terminationGracePeriodSeconds", *s, "must be greater than 0")
	}
}

func (c *Checker) lifecycle(l *corev1.Lifecycle) {
	if l == nil {
		return
	}
	c.In("lifecycle")
	if h := l.PostStart; h != nil {
		c.In("postStart")
		c.handler(handler{
			exec:  h.Exec,
			http:  h.HTTPGet,
			tcp:   h.TCPSocket,
			sleep: h.Sleep,
		})
		c.Out()
	}
	if h := l.PreStop; h != nil {
		c.In("preStop")
		c.handler(handler{
			exec:  h.Exec,
			http:  h.HTTPGet,
			tcp:   h.TCPSocket,
			sleep: h.Sleep,
		})
		c.Out()
	}
	c.stopSignal(l.StopSignal)
	c.Out()
}

// handler is a probe's or a hook's.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

// handler wants exactly one of h.
func (c *Checker) handler(h handler) {
	n := 0
	in := func(child string, set bool) bool {
		if !set {
			return false
		}
		if n++; n > 1 {
			c.Forbidden(child, "may not specify more than 1 handler type")
			return false
		}
		c.In(child)
		return true
	}
	if in("exec", h.exec != nil) {
		if len(h.exec.Command) == 0 {
			c.Required("command", "")
		}
		c.Out()
	}
	if in("httpGet", h.http != nil) {
		c.httpGet(h.http)
		c.Out()
	}
	if in("tcpSocket", h.tcp != nil) {
		c.PortOrName("port", h.tcp.Port)
		c.Out()
	}
	if in("grpc", h.grpc != nil) {
		c.PortOrName("port", intstr.FromInt32(h.grpc.Port))
		check.Pointer(c.List, "mode", h.grpc.Mode, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)
		c.Out()
	}
	if in("sleep", h.sleep != nil) {
		if g := c.spec.TerminationGracePeriodSeconds; g != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *g) {
			c.Invalid("", h.sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *g))
		}
		c.Out()
	}
	if n == 0 {
		c.Required("", "must specify a handler type")
	}
}

func (c *Checker) httpGet(a *corev1.HTTPGetAction) {
	if a.Path == "" {
		c.Required("path", "")
	}
	c.PortOrName("port", a.Port)
	if a.Scheme != corev1.URISchemeHTTP && a.Scheme != corev1.URISchemeHTTPS {
		check.NotSupported(c.List, "scheme", a.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	}
	for i := range a.HTTPHeaders {
		for _, m := range validation.IsHTTPHeaderName(a.HTTPHeaders[i].Name) {
			c.Invalid("httpHeaders", a.HTTPHeaders[i].Name, m)
		}
	}
}
