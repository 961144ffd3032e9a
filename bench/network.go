// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Parameters of the scenario "network".
const (
	reachedPods  = 100
	questions    = 5000
	questionPace = 2 * time.Millisecond // 500 queries per second
	dnsService   = "kube-dns"
)

// networkScenario measures, pod by pod, the time from the watch event of a Ready pod to the first connection through
// its Service; then the latency of queries to the cluster's DNS server, by its cluster IP, over one socket at a
// moderate rate.
func networkScenario(ctx context.Context, e *env) ([]Result, error) {
	s, err := e.client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, dnsService, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	answered, err := ask(ctx, net.JoinHostPort(s.Spec.ClusterIP, "53"))
	if err != nil {
		return nil, err
	}
	reached := sink{}
	for i := range reachedPods {
		d, err := e.reach(ctx, "reach-"+strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		reached.add(d)
	}
	times := reached.take()
	return []Result{
		{
			Scenario: "network",
			Figure:   "Ready to reachable through the Service, p50",
			Value:    ms(times.quantile(0.5)),
			Unit:     "ms",
			Limit:    15,
		},
		{
			Scenario: "network",
			Figure:   "the same, p99",
			Value:    ms(times.quantile(0.99)),
			Unit:     "ms",
			Limit:    50,
		},
		{
			Scenario: "network",
			Figure:   "DNS answer at 500 questions/s, p50",
			Value:    ms(answered.quantile(0.5)),
			Unit:     "ms",
		},
		{
			Scenario: "network",
			Figure:   "the same, p99",
			Value:    ms(answered.quantile(0.99)),
			Unit:     "ms",
			Limit:    1,
		},
	}, nil
}

// reach creates a Service with one pod. It returns the time from the pod's Ready event to the first successful
// connection. Without an endpoint, connections are refused at once.
func (e *env) reach(ctx context.Context, name string) (time.Duration, error) {
	labels := map[string]string{"app": name}
	if err := e.service(ctx, name, labels); err != nil {
		return 0, err
	}
	service, err := e.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	watcher, err := e.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	// without a probe, the start of the program would be measured too
	listens := &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)},
		},
		PeriodSeconds: 1,
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: image, ReadinessProbe: listens}},
		},
	}
	if _, err := e.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	if err := waitPods(ctx, watcher, 1, isReady); err != nil {
		return 0, err
	}
	ready := time.Now()
	d := net.Dialer{Timeout: time.Second}
	for {
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(service.Spec.ClusterIP, "80"))
		if err == nil {
			took := time.Since(ready)
			return took, c.Close()
		}
		if ctx.Err() != nil || time.Since(ready) > waitLimit {
			return 0, fmt.Errorf("service %s of a Ready pod: %w", name, err)
		}
		if err := sleep(ctx, 100*time.Microsecond); err != nil {
			return 0, err
		}
	}
}

// ask repeats one DNS query and returns the latencies. A lost response counts as the time-out.
func ask(ctx context.Context, server string) (times, error) {
	const lost = time.Second
	conn, err := dns.DialTimeout("udp", server, lost)
	if err != nil {
		return times{}, err
	}
	defer func() { _ = conn.Close() }() // an error does not matter
	msg := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	client := &dns.Client{Timeout: lost}
	took := sink{}
	pace := time.NewTicker(questionPace)
	defer pace.Stop()
	for range questions {
		select {
		case <-ctx.Done():
			return times{}, ctx.Err()
		case <-pace.C:
		}
		msg.Id = dns.Id()
		a, d, err := client.ExchangeWithConnContext(ctx, msg, conn)
		switch {
		case err != nil:
			d = lost
		case len(a.Answer) != 1:
			return times{}, fmt.Errorf("%s answers %v", server, a)
		}
		took.add(d)
	}
	return took.take(), nil
}
