// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
)

func short(media string) string { return media[strings.LastIndexAny(media, "./")+1:] }

// podOf is a pod of about 2 KB in the store, with a scheduler name that no one uses.
func podOf(name, node string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				"app.kubernetes.io/name":    "shop",
				"app.kubernetes.io/part-of": "bench",
				"pod-template-hash":         "5d4f8c7b9",
			},
		},
		Spec: corev1.PodSpec{SchedulerName: "bench-none", NodeName: node},
	}
	for i := range 2 {
		container := corev1.Container{
			Name:    "part-" + strconv.Itoa(i),
			Image:   "registry.example/shop/part:v1.2.3",
			Command: []string{"/bin/part", "--serve", "--port=8080"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			}},
		}
		for j := range 5 {
			container.Env = append(container.Env, corev1.EnvVar{
				Name:  "VARIABLE_" + strconv.Itoa(j),
				Value: "a value of middling length",
			})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	return pod
}

// ownConfig is a client configuration whose clients share no connection with others.
func (e *env) ownConfig(media string) *rest.Config {
	cfg := rest.CopyConfig(e.client.Config)
	// /version has JSON only
	cfg.ContentConfig = rest.ContentConfig{ContentType: media, AcceptContentTypes: media + "," + jsonType}
	d := &net.Dialer{Timeout: 30 * time.Second}
	cfg.Dial = d.DialContext // its own Dial prevents client-go from sharing a cached transport
	return cfg
}

// clientsets returns n clients with an open connection each.
func (e *env) clientsets(n int, media string) ([]*kubernetes.Clientset, error) {
	out := make([]*kubernetes.Clientset, n)
	for i := range out {
		cs, err := kubernetes.NewForConfig(e.ownConfig(media))
		if err != nil {
			return nil, err
		}
		if _, err := cs.Discovery().ServerVersion(); err != nil {
			return nil, err
		}
		out[i] = cs
	}
	return out, nil
}

// httpClient is an administrator's HTTP client with its own connection.
func (e *env) httpClient() (*http.Client, error) {
	return rest.HTTPClientFor(e.ownConfig(protobufType))
}

// get sends a GET request; the caller closes the body.
func (e *env) get(ctx context.Context, hc *http.Client, media, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.client.Config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", media)
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return resp, nil
}

// read reads a path to the end and returns the decompressed size.
func (e *env) read(ctx context.Context, hc *http.Client, media, path string) (int64, error) {
	resp, err := e.get(ctx, hc, media, path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	return io.Copy(io.Discard, resp.Body)
}

// times are the latencies of a load and its whole duration.
type times struct {
	each []time.Duration // sorted
	span time.Duration
}

func (t times) rate() float64 { return float64(len(t.each)) / t.span.Seconds() }

func (t times) quantile(q float64) time.Duration {
	if len(t.each) == 0 {
		return 0
	}
	return t.each[min(len(t.each)-1, int(q*float64(len(t.each))))]
}

// load lets clients call do repeatedly for d. The first error ends it.
func load(ctx context.Context, clients int, d time.Duration, do func(client, seq int) error) (times, error) {
	each := make([][]time.Duration, clients)
	begin := time.Now()
	var group errgroup.Group
	for w := range clients {
		group.Go(func() error {
			for seq := 0; time.Since(begin) < d && ctx.Err() == nil; seq++ {
				at := time.Now()
				if err := do(w, seq); err != nil {
					return err
				}
				each[w] = append(each[w], time.Since(at))
			}
			return ctx.Err()
		})
	}
	err := group.Wait()
	t := times{each: slices.Concat(each...), span: time.Since(begin)}
	slices.Sort(t.each)
	return t, err
}

// runs makes object names unique across loads.
var runs atomic.Int64

// creates makes pods for d.
func (e *env) creates(ctx context.Context, clients int, media string, d time.Duration) (times, error) {
	cs, err := e.clientsets(clients, media)
	if err != nil {
		return times{}, err
	}
	run := runs.Add(1)
	return load(ctx, clients, d, func(w, seq int) error {
		_, err := cs[w].CoreV1().Pods(nsLoad).Create(ctx, podOf(fmt.Sprintf("made-%d-%d-%d", run, w, seq), ""),
			metav1.CreateOptions{})
		return err
	})
}

// fill creates n pods, name-0 and so on; with node they are bound to node-0 and so on.
func (e *env) fill(ctx context.Context, ns, name string, n int, node string) error {
	cs, err := e.clientsets(crowd, protobufType)
	if err != nil {
		return err
	}
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for w := range cs {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				on := node
				if on != "" {
					on += strconv.Itoa(i)
				}
				if _, err := cs[w].CoreV1().Pods(ns).Create(ctx, podOf(name+"-"+strconv.Itoa(i), on),
					metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// sink collects durations from many goroutines.
type sink struct {
	mu   sync.Mutex
	each []time.Duration
}

func (s *sink) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each = append(s.each, d)
}

// take returns the sorted durations and empties the sink.
func (s *sink) take() times {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := times{each: s.each}
	s.each = nil
	slices.Sort(t.each)
	return t
}

func (s *sink) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.each)
}
