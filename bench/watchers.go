// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sentAnnotation is the annotation with the time of the write, in nanoseconds. Watchers find it in the encoded event by
// sentMark.
const (
	sentAnnotation = "bench-sent"
	sentMark       = "sent="
)

// watchSet holds many running watches. Events are read but not decoded: the client's work is not measured.
type watchSet struct {
	e      *env
	ctx    context.Context //nolint:containedctx // the lifetime of the watches
	cancel context.CancelFunc
	wg     sync.WaitGroup
	seen   sink

	mu     sync.Mutex
	broken error
}

func (e *env) newWatchSet(ctx context.Context) *watchSet {
	g := &watchSet{e: e}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// open starts n watches on conns connections. query is the query string of the i-th.
func (g *watchSet) open(n, conns int, rv string, query func(i int) string) error {
	clients := make([]*http.Client, conns)
	for i := range clients {
		var err error
		if clients[i], err = g.e.httpClient(); err != nil {
			return err
		}
	}
	var opening errgroup.Group
	opening.SetLimit(32)
	for i := range n {
		opening.Go(func() error {
			path := "/api/v1/pods?watch=true&resourceVersion=" + rv + query(i)
			resp, err := g.e.get(g.ctx, clients[i%conns], protobufType, path)
			if err != nil {
				return err
			}
			g.wg.Go(func() { g.follow(resp.Body) })
			return nil
		})
	}
	return opening.Wait()
}

// follow reads frames until the watch ends.
func (g *watchSet) follow(body io.ReadCloser) {
	defer func() { _ = body.Close() }() // only read
	in := bufio.NewReaderSize(body, 4<<10)
	var frame []byte
	for {
		var head [4]byte
		_, err := io.ReadFull(in, head[:])
		if err == nil {
			n := int(binary.BigEndian.Uint32(head[:]))
			if cap(frame) < n {
				frame = make([]byte, n)
			}
			frame = frame[:n]
			_, err = io.ReadFull(in, frame)
		}
		if err != nil {
			if g.ctx.Err() == nil {
				g.mu.Lock()
				g.broken = fmt.Errorf("a watch ended: %w", err)
				g.mu.Unlock()
			}
			return
		}
		if _, rest, ok := bytes.Cut(frame, []byte(sentMark)); ok {
			end := 0
			for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
				end++
			}
			if at, err := strconv.ParseInt(string(rest[:end]), 10, 64); err == nil {
				g.seen.add(time.Since(time.Unix(0, at)))
			}
		}
	}
}

// close ends all watches and returns the first error of any.
func (g *watchSet) close() error {
	g.cancel()
	g.wg.Wait()
	return g.broken
}

// await waits until n events have been seen.
func (g *watchSet) await(n int) error {
	for end := time.Now().Add(waitLimit); g.seen.len() < n; {
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d events seen after %s", g.seen.len(), n, waitLimit)
		}
		if err := sleep(g.ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// touch updates a pod with the current time in its annotation.
func (e *env) touch(ctx context.Context, w writer, p *corev1.Pod) (*corev1.Pod, error) {
	p.Annotations = map[string]string{sentAnnotation: sentMark + strconv.FormatInt(time.Now().UnixNano(), 10)}
	return w.Update(ctx, p, metav1.UpdateOptions{})
}

// writer is the part of a pod client that touch needs.
type writer interface {
	Update(ctx context.Context, p *corev1.Pod, opts metav1.UpdateOptions) (*corev1.Pod, error)
}

// events updates the pods in turn at a rate, and returns how many updates were sent and the server's CPU time, in
// cores.
func (e *env) events(
	ctx context.Context, pods []*corev1.Pod, rate int, wait time.Duration,
) (sent int, cores float64, err error) {
	const writers = 16
	cs, err := e.clientsets(writers, protobufType)
	if err != nil {
		return 0, 0, err
	}
	before, err := usageOf(string(e.dir))
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	total := int(wait.Seconds() * float64(rate))
	var group errgroup.Group
	for w := range writers {
		group.Go(func() error {
			for i := w; i < total; i += writers {
				if err := sleep(ctx,
					time.Until(begin.Add(time.Duration(i)*time.Second/time.Duration(rate)))); err != nil {
					return err
				}
				at := i % len(pods) // each writer has its own pods: their number is a multiple of the writers'
				p, err := e.touch(ctx, cs[w].CoreV1().Pods(nsWatch), pods[at])
				if err != nil {
					return err
				}
				pods[at] = p
			}
			return nil
		})
	}
	err = group.Wait()
	span := time.Since(begin)
	after, uerr := usageOf(string(e.dir))
	if err == nil {
		err = uerr
	}
	return total, (after.cpu - before.cpu).Seconds() / span.Seconds(), err
}

// watched returns the watched pods, one per node; it creates missing ones.
func (e *env) watched(ctx context.Context) ([]*corev1.Pod, string, error) {
	podList, err := e.client.CoreV1().Pods(nsWatch).List(ctx, metav1.ListOptions{})
	if err == nil && len(podList.Items) == 0 {
		if err = e.fill(ctx, nsWatch, "watched", nodeWatchers, "node-"); err == nil {
			podList, err = e.client.CoreV1().Pods(nsWatch).List(ctx, metav1.ListOptions{})
		}
	}
	if err != nil {
		return nil, "", err
	}
	pods := make([]*corev1.Pod, len(podList.Items))
	for i := range podList.Items {
		pods[i] = &podList.Items[i]
	}
	return pods[:len(pods)/16*16], podList.ResourceVersion, nil
}

func onNode(i int) string {
	return "&fieldSelector=spec.nodeName%3Dnode-" + strconv.Itoa(i%nodeWatchers)
}

// nodesPart: 1,000 events per second, each for one of 1,000 watchers with own connections, like kubelets; then the same
// writes without watchers.
func nodesPart(ctx context.Context, e *env) ([]Result, error) {
	pods, _, err := e.watched(ctx)
	if err != nil {
		return nil, err
	}
	const span = 8 * time.Second
	_, alone, err := e.events(ctx, pods, eventRate, span)
	if err != nil {
		return nil, err
	}
	_, rv, err := e.watched(ctx)
	if err != nil {
		return nil, err
	}
	watchSet := e.newWatchSet(ctx)
	defer watchSet.cancel()
	if err := watchSet.open(nodeWatchers, nodeWatchers, rv, onNode); err != nil {
		return nil, err
	}
	sent, cores, err := e.events(ctx, pods, eventRate, span)
	if err != nil {
		return nil, err
	}
	if err := watchSet.await(sent); err != nil {
		return nil, err
	}
	t := watchSet.seen.take()
	return []Result{
		{Figure: "1,000 writes/s, no watcher, processor", Value: alone, Unit: "cores"},
		{Figure: "1,000 writes/s to 1,000 watchers of a node each, processor", Value: cores, Unit: "cores", Limit: 0.5},
		{Figure: "the same, write begun to event read, p99", Value: ms(t.quantile(0.99)), Unit: "ms"},
		{Figure: "the same, the slowest of all", Value: ms(t.quantile(1)), Unit: "ms", Limit: 50},
	}, watchSet.close()
}

// fanOutPart: one event for 1,000 watchers of all pods.
func fanOutPart(ctx context.Context, e *env) ([]Result, error) {
	pods, rv, err := e.watched(ctx)
	if err != nil {
		return nil, err
	}
	watchSet := e.newWatchSet(ctx)
	defer watchSet.cancel()
	if err := watchSet.open(nodeWatchers, nodeWatchers, rv, func(int) string { return "" }); err != nil {
		return nil, err
	}
	var last []time.Duration
	for i := range 20 {
		if _, err := e.touch(ctx, e.client.CoreV1().Pods(nsWatch), pods[i]); err != nil {
			return nil, err
		}
		if err := watchSet.await(nodeWatchers); err != nil {
			return nil, err
		}
		last = append(last, watchSet.seen.take().quantile(1))
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
	t := (&sink{each: last}).take()
	return []Result{
		{Figure: "one event to the last of 1,000 watchers, p50 of 20", Value: ms(t.quantile(0.5)), Unit: "ms"},
		{
			Figure: "one event to the last of 1,000 watchers, worst of 20",
			Value:  ms(t.quantile(1)),
			Unit:   "ms",
			Limit:  50,
		},
	}, watchSet.close()
}

// manyPart: the server's memory with 10,000 watchers of one node each, on as many connections, during events; and after
// they have closed.
func manyPart(ctx context.Context, e *env) ([]Result, error) {
	pods, rv, err := e.watched(ctx)
	if err != nil {
		return nil, err
	}
	watchSet := e.newWatchSet(ctx)
	defer watchSet.cancel()
	if err := watchSet.open(manyWatchers, manyWatchers, rv, onNode); err != nil {
		return nil, err
	}
	sent, _, err := e.events(ctx, pods, eventRate/10, 3*time.Second)
	if err != nil {
		return nil, err
	}
	if err := watchSet.await(sent * manyWatchers / nodeWatchers); err != nil {
		return nil, err
	}
	if err := sleep(ctx, settling); err != nil {
		return nil, err
	}
	during, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	if err := watchSet.close(); err != nil {
		return nil, err
	}
	if err := sleep(ctx, settling); err != nil {
		return nil, err
	}
	after, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	return []Result{
		{
			Figure: "resident memory with 10,000 watchers",
			Value:  mb(during.rss),
			Unit:   "MB",
			Limit:  1000,
		},
		{Figure: "resident memory when they have left", Value: mb(after.rss), Unit: "MB"},
	}, nil
}
