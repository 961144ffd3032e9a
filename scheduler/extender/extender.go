// SPDX-License-Identifier: Apache-2.0

// Package extender asks HTTP extenders: servers of other people's that refuse and score nodes, choose among the victims of preemption, and bind
// pods, in the words of Kubernetes (k8s.io/kube-scheduler/extender/v1). The scheduler calls it beside its loop, for the pods that an extender is
// interested in. What an extender answers is checked and bounded here; nothing is believed of nodes that it was not asked about. It schedules
// nothing itself, and never retries a call.
package extender

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
)

// Set are the extenders of a configuration, in the order in which they are asked: those that may be ignored come last. nil: there are none.
type Set struct {
	all []*Extender
	log *slog.Logger
}

// Extender is one of them.
type Extender struct {
	cfg     configv1.Extender
	name    string
	managed map[corev1.ResourceName]bool
	client  *http.Client
	resting resting
}

// New makes the extenders of a configuration that was validated. It calls none.
func New(in []configv1.Extender, log *slog.Logger) (*Set, error) {
	if len(in) == 0 {
		return nil, nil
	}
	s := &Set{log: log}
	for i := range in {
		e, err := newExtender(&in[i])
		if err != nil {
			return nil, fmt.Errorf("extenders[%d]: %w", i, err)
		}
		s.all = append(s.all, e)
	}
	slices.SortStableFunc(s.all, func(a, b *Extender) int { return last(a) - last(b) })
	return s, nil
}

func last(e *Extender) int {
	if e.cfg.Ignorable {
		return 1
	}
	return 0
}

func newExtender(cfg *configv1.Extender) (*Extender, error) {
	u, err := url.Parse(cfg.URLPrefix)
	if err != nil {
		return nil, fmt.Errorf("urlPrefix: %w", err)
	}
	e := &Extender{cfg: *cfg, name: "extender " + strings.TrimRight(u.Redacted(), "/"), managed: map[corev1.ResourceName]bool{}}
	for _, r := range cfg.ManagedResources {
		e.managed[corev1.ResourceName(r.Name)] = true
	}
	tls := rest.Config{}
	if t := cfg.TLSConfig; t != nil {
		tls.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if cfg.EnableHTTPS && tls.CAFile == "" && len(tls.CAData) == 0 {
		tls.Insecure = true // as in Kubernetes; the configuration's warnings say so
	}
	transport := &http.Transport{
		// No proxy: who names an extender means that server, whatever the environment says.
		Proxy: nil, ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second,
	}
	if transport.TLSClientConfig, err = rest.TLSConfigFor(&tls); err != nil {
		return nil, fmt.Errorf("tlsConfig: %w", err)
	}
	e.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e, nil
}

// Name is how people know the extender: by its URL, without a password.
func (e *Extender) Name() string { return e.name }

// interested tells whether the extender is to be asked about a pod: one that asks for a resource which it manages, or any if it manages none.
func (e *Extender) interested(pod *corev1.Pod) bool {
	if len(e.managed) == 0 {
		return true
	}
	asks := func(list corev1.ResourceList) bool {
		for name := range list {
			if e.managed[name] {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(c corev1.Container) bool {
		return asks(c.Resources.Requests) || asks(c.Resources.Limits)
	})
}

// Wants tells whether an extender has a say in which node a pod gets.
func (s *Set) Wants(pod *corev1.Pod) bool {
	return s != nil && slices.ContainsFunc(s.all, func(e *Extender) bool {
		return (e.cfg.FilterVerb != "" || e.cfg.PrioritizeVerb != "" || e.cfg.PreemptVerb != "") && e.interested(pod)
	})
}

// Preempting lists the extenders that choose among the victims of a pod.
func (s *Set) Preempting(pod *corev1.Pod) []string {
	if s == nil {
		return nil
	}
	var out []string
	for _, e := range s.all {
		if e.cfg.PreemptVerb != "" && e.interested(pod) {
			out = append(out, e.name)
		}
	}
	return out
}

// Close ends the connections that are idle.
func (s *Set) Close() {
	if s == nil {
		return
	}
	for _, e := range s.all {
		e.client.CloseIdleConnections()
	}
}

// failed is a failure of the extender's as a verdict: the pod is to be tried again later.
func (e *Extender) failed(err error) *framework.Status {
	return framework.Refuse(e.name, framework.Failed, err.Error())
}
