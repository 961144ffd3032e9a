// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/api/internal/check"
)

func checkProbes(errs *check.List, spec *corev1.PodSpec, ctr *corev1.Container) {
	if p := ctr.LivenessProbe; p != nil {
		errs.In("livenessProbe")
		checkProbe(errs, spec, p)
		checkSucceedsOnce(errs, p)
		errs.Out()
	}
	if p := ctr.ReadinessProbe; p != nil {
		errs.In("readinessProbe")
		checkProbe(errs, spec, p)
		if p.TerminationGracePeriodSeconds != nil {
			errs.Invalid("terminationGracePeriodSeconds", *p.TerminationGracePeriodSeconds,
				"must not be set for readinessProbes")
		}
		errs.Out()
	}
	if p := ctr.StartupProbe; p != nil {
		errs.In("startupProbe")
		checkProbe(errs, spec, p)
		checkSucceedsOnce(errs, p)
		errs.Out()
	}
}

func checkSucceedsOnce(errs *check.List, p *corev1.Probe) {
	if p.SuccessThreshold != 1 {
		errs.Invalid("successThreshold", p.SuccessThreshold, "must be 1")
	}
}

func checkProbe(errs *check.List, spec *corev1.PodSpec, p *corev1.Probe) {
	checkHandler(errs, spec, handler{
		exec: p.Exec,
		http: p.HTTPGet,
		tcp:  p.TCPSocket,
		grpc: p.GRPC,
	})
	errs.NotNegative("initialDelaySeconds", int64(p.InitialDelaySeconds))
	errs.NotNegative("timeoutSeconds", int64(p.TimeoutSeconds))
	errs.NotNegative("periodSeconds", int64(p.PeriodSeconds))
	errs.NotNegative("successThreshold", int64(p.SuccessThreshold))
	errs.NotNegative("failureThreshold", int64(p.FailureThreshold))
	if s := p.TerminationGracePeriodSeconds; s != nil && *s <= 0 {
		errs.Invalid("terminationGracePeriodSeconds", *s, "must be greater than 0")
	}
}

func checkLifecycle(errs *check.List, spec *corev1.PodSpec, l *corev1.Lifecycle) {
	if l == nil {
		return
	}
	errs.In("lifecycle")
	if h := l.PostStart; h != nil {
		errs.In("postStart")
		checkHandler(errs, spec, handler{
			exec:  h.Exec,
			http:  h.HTTPGet,
			tcp:   h.TCPSocket,
			sleep: h.Sleep,
		})
		errs.Out()
	}
	if h := l.PreStop; h != nil {
		errs.In("preStop")
		checkHandler(errs, spec, handler{
			exec:  h.Exec,
			http:  h.HTTPGet,
			tcp:   h.TCPSocket,
			sleep: h.Sleep,
		})
		errs.Out()
	}
	checkStopSignal(errs, spec, l.StopSignal)
	errs.Out()
}

// checkHandler is a probe's or a hook's.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

// checkHandler wants exactly one of h.
func checkHandler(errs *check.List, spec *corev1.PodSpec, h handler) {
	n := 0
	in := func(child string, set bool) bool {
		if !set {
			return false
		}
		if n++; n > 1 {
			errs.Forbidden(child, "may not specify more than 1 handler type")
			return false
		}
		errs.In(child)
		return true
	}
	if in("exec", h.exec != nil) {
		if len(h.exec.Command) == 0 {
			errs.Required("command", "")
		}
		errs.Out()
	}
	if in("httpGet", h.http != nil) {
		checkHTTPGet(errs, h.http)
		errs.Out()
	}
	if in("tcpSocket", h.tcp != nil) {
		errs.PortOrName("port", h.tcp.Port)
		errs.Out()
	}
	if in("grpc", h.grpc != nil) {
		errs.PortOrName("port", intstr.FromInt32(h.grpc.Port))
		check.Pointer(errs, "mode", h.grpc.Mode, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)
		errs.Out()
	}
	if in("sleep", h.sleep != nil) {
		if g := spec.TerminationGracePeriodSeconds; g != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *g) {
			errs.Invalid("", h.sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *g))
		}
		errs.Out()
	}
	if n == 0 {
		errs.Required("", "must specify a handler type")
	}
}

func checkHTTPGet(errs *check.List, a *corev1.HTTPGetAction) {
	check.Needs(errs, "path", a.Path)
	errs.PortOrName("port", a.Port)
	if a.Scheme != corev1.URISchemeHTTP && a.Scheme != corev1.URISchemeHTTPS {
		check.NotSupported(errs, "scheme", a.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	}
	for i := range a.HTTPHeaders {
		for _, m := range validation.IsHTTPHeaderName(a.HTTPHeaders[i].Name) {
			errs.Invalid("httpHeaders", a.HTTPHeaders[i].Name, m)
		}
	}
}
