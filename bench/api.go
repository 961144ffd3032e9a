// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Parameters of the scenario "api".
const (
	crowd        = 64               // concurrent clients
	listed       = 5_000            // pods in a LIST
	eventRate    = 1_000            // per second
	nodeWatchers = 1_000            // one per node
	manyWatchers = 10_000           // each with its own connection
	storedPods   = 100_000          // for the restart and the bytes per pod
	settling     = 12 * time.Second // after it the server has returned freed memory
)

// The namespaces of the scenario "api".
const (
	nsLoad  = "bench-load"
	nsList  = "bench-list"
	nsWatch = "bench-watch"
)

// apiScenario measures the API server alone, through clients on the same machine. Each part needs the objects of the
// one before.
func apiScenario(ctx context.Context, e *env) ([]Result, error) {
	if err := sleep(ctx, settling); err != nil {
		return nil, err
	}
	idle, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	out := []Result{{
		Figure: "resident memory without objects",
		Value:  mb(idle.rss),
		Unit:   "MB",
		Limit:  100,
	}}
	for _, ns := range []string{nsLoad, nsList, nsWatch} {
		if err := e.namespace(ctx, ns); err != nil {
			return nil, err
		}
	}
	for _, part := range []func(context.Context, *env) ([]Result, error){
		manyPart, nodesPart, fanOutPart, createPart, getPart, listPart,
	} {
		rs, err := part(ctx, e)
		if err != nil {
			return nil, err
		}
		out = append(out, rs...)
	}
	rs, err := storedPart(ctx, e, idle.rss)
	if err != nil {
		return nil, err
	}
	out = append(out, rs...)
	for i := range out {
		out[i].Scenario = "api"
	}
	return out, nil
}

// namespace creates a namespace with the service account that pods need; no controllers run that would create it.
func (e *env) namespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := e.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := e.client.CoreV1().ServiceAccounts(name).Create(ctx, sa, metav1.CreateOptions{})
	return err
}

// createPart measures durable creates of a pod of 2 KB.
func createPart(ctx context.Context, e *env) ([]Result, error) {
	var out []Result
	for _, media := range []string{protobufType, jsonType} {
		one, err := e.creates(ctx, 1, media, 3*time.Second)
		if err != nil {
			return nil, err
		}
		many, err := e.creates(ctx, crowd, media, 6*time.Second)
		if err != nil {
			return nil, err
		}
		goal := 3500.0
		if media == jsonType {
			goal = 3000
		}
		out = append(out,
			Result{
				Figure: "create, 1 client, " + short(media) + ", p50",
				Value:  ms(one.quantile(0.5)),
				Unit:   "ms",
				Limit:  1.5,
			},
			Result{
				Figure: "create, 64 clients, " + short(media),
				Value:  many.rate(),
				Unit:   "/s",
				Limit:  goal,
				Higher: true,
			},
			Result{
				Figure: "create, 64 clients, " + short(media) + ", p99",
				Value:  ms(many.quantile(0.99)),
				Unit:   "ms",
				Limit:  40,
			})
	}
	return out, nil
}

// getPart measures reads of one pod.
func getPart(ctx context.Context, e *env) ([]Result, error) {
	p, err := e.client.CoreV1().Pods(nsLoad).Create(ctx, podOf("read-me", ""), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	cs, err := e.clientsets(crowd, protobufType)
	if err != nil {
		return nil, err
	}
	times, err := load(ctx, crowd, 4*time.Second, func(w, _ int) error {
		_, err := cs[w].CoreV1().Pods(nsLoad).Get(ctx, p.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		{
			Figure: "GET, 64 clients",
			Value:  times.rate(),
			Unit:   "/s",
			Limit:  9000,
			Higher: true,
		},
		{Figure: "GET, 64 clients, p99", Value: ms(times.quantile(0.99)), Unit: "ms"},
	}, nil
}

// listPart measures one client that lists 5,000 pods and reads the body without decoding it.
func listPart(ctx context.Context, e *env) ([]Result, error) {
	if err := e.fill(ctx, nsList, "listed", listed, ""); err != nil {
		return nil, err
	}
	var out []Result
	for _, media := range []string{protobufType, jsonType} {
		hc, err := e.httpClient()
		if err != nil {
			return nil, err
		}
		var size int64
		times, err := load(ctx, 1, 3*time.Second, func(_, _ int) error {
			size, err = e.read(ctx, hc, media, "/api/v1/namespaces/"+nsList+"/pods")
			return err
		})
		if err != nil {
			return nil, err
		}
		goal := 25.0
		if media == jsonType {
			goal = 60
		}
		out = append(out, Result{
			Figure: "LIST of 5,000 pods, " + short(media) + ", p50",
			Value:  ms(times.quantile(0.5)),
			Unit:   "ms",
			Limit:  goal,
		})
		if media == protobufType {
			out = append(out, Result{Figure: "a stored pod on the wire", Value: float64(size) / listed, Unit: "bytes"})
		}
	}
	return out, nil
}

// storedPart measures the memory per pod with 100,000 pods, and a start of the server with them.
func storedPart(ctx context.Context, e *env, idle int64) ([]Result, error) {
	l, err := e.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	have := len(l.Items)
	if l.RemainingItemCount != nil {
		have += int(*l.RemainingItemCount)
	}
	if have < storedPods {
		if err := e.fill(ctx, nsLoad, "stored", storedPods-have, ""); err != nil {
			return nil, err
		}
	}
	loaded, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, settling); err != nil {
		return nil, err
	}
	settled, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	took, err := e.restart(ctx)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, settling); err != nil {
		return nil, err
	}
	again, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	pods := float64(max(have, storedPods))
	return []Result{
		{Figure: "resident right after making 100,000 pods", Value: mb(loaded.rss), Unit: "MB"},
		{
			Figure: "memory for each of 100,000 pods, made",
			Value:  float64(settled.rss-idle) / pods / 1e3,
			Unit:   "kB",
			Limit:  12,
		},
		{
			Figure: "memory for each of 100,000 pods, after a start",
			Value:  float64(again.rss-idle) / pods / 1e3,
			Unit:   "kB",
			Limit:  12,
		},
		{
			Figure: "process start to /readyz with 100,000 pods",
			Value:  took.Seconds(),
			Unit:   "s",
			Limit:  3,
		},
	}, nil
}

// restart restarts the server and returns the time from the start of its process until /readyz succeeds.
func (e *env) restart(ctx context.Context) (time.Duration, error) {
	if err := e.stopServer(); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := e.startServer(ctx); err != nil {
		return 0, err
	}
	hc, err := e.httpClient()
	if err != nil {
		return 0, err
	}
	for end := begin.Add(waitLimit); time.Now().Before(end); {
		if _, err = e.read(ctx, hc, jsonType, "/readyz"); err == nil {
			return time.Since(begin), nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, errors.Join(fmt.Errorf("not ready after %s", waitLimit), err)
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }
