// SPDX-License-Identifier: Apache-2.0

// Package extender calls HTTP extenders: external servers that filter and score nodes, choose preemption victims and
// bind pods. The wire format is kube-scheduler's (k8s.io/kube-scheduler/extender/v1). The scheduler calls it outside
// its scheduling loop, for the pods in which an extender is interested. This package checks and bounds all answers. It
// rejects answers about nodes that it did not send. It decides nothing itself, and never retries a call.
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

// Set has the extenders of a configuration in the order of calls, the ignorable ones last. nil: there are none.
type Set struct {
	all []*Extender
	log *slog.Logger
}

// Extender is one HTTP extender.
type Extender struct {
	cfg      configv1.Extender
	name     string
	managed  map[corev1.ResourceName]bool
	client   *http.Client
	cooldown cooldown
}

// New returns the extenders of a validated configuration. It calls none.
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
	slices.SortStableFunc(s.all, func(a, b *Extender) int { return ignorableRank(a) - ignorableRank(b) })
	return s, nil
}

func ignorableRank(e *Extender) int {
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
	extender := &Extender{
		cfg:     *cfg,
		name:    "extender " + strings.TrimRight(u.Redacted(), "/"),
		managed: map[corev1.ResourceName]bool{},
	}
	for _, r := range cfg.ManagedResources {
		extender.managed[corev1.ResourceName(r.Name)] = true
	}
	tls := rest.Config{}
	if t := cfg.TLSConfig; t != nil {
		tls.TLSClientConfig = rest.TLSClientConfig{
			Insecure:   t.Insecure,
			ServerName: t.ServerName,
			CertFile:   t.CertFile,
			KeyFile:    t.KeyFile,
			CAFile:     t.CAFile,
			CertData:   t.CertData,
			KeyData:    t.KeyData,
			CAData:     t.CAData,
		}
	}
	if cfg.EnableHTTPS && tls.CAFile == "" && len(tls.CAData) == 0 {
		tls.Insecure = true // as in kube-scheduler; reading the configuration warns of it
	}
	transport := &http.Transport{
		// No proxy from the environment: the URL of an extender names the server itself.
		Proxy:                  nil,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        90 * time.Second,
	}
	if transport.TLSClientConfig, err = rest.TLSConfigFor(&tls); err != nil {
		return nil, fmt.Errorf("tlsConfig: %w", err)
	}
	extender.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return extender, nil
}

// interested reports whether the pod requests a managed resource of the extender, or the extender has no
// managedResources.
func (e *Extender) interested(pod *corev1.Pod) bool {
	if len(e.managed) == 0 {
		return true
	}
	requests := func(list corev1.ResourceList) bool {
		for name := range list {
			if e.managed[name] {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(
		c corev1.Container,
	) bool {
		return requests(c.Resources.Requests) || requests(c.Resources.Limits)
	})
}

// Interested reports whether an extender takes part in choosing a node for the pod (filter, prioritize or preempt).
func (s *Set) Interested(pod *corev1.Pod) bool {
	return s != nil && slices.ContainsFunc(s.all, func(e *Extender) bool {
		return (e.cfg.FilterVerb != "" || e.cfg.PrioritizeVerb != "" || e.cfg.PreemptVerb != "") && e.interested(pod)
	})
}

// Preempting returns the extenders that choose preemption victims for a pod.
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

// Close closes idle connections.
func (s *Set) Close() {
	if s == nil {
		return
	}
	for _, e := range s.all {
		e.client.CloseIdleConnections()
	}
}

// failure returns the status for a failed extender: the pod is tried again after its backoff.
func (e *Extender) failure(err error) *framework.Status {
	return framework.NewStatus(e.name, framework.Failed, err.Error())
}
