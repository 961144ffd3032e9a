// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/logs"
	"keelson/kubelet/observed"
	"keelson/kubelet/podinfo"
)

// containerLogs writes a container's log, with the parameters of PodLogOptions.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	p := s.find(w, r)
	if p == nil {
		return
	}
	opts, previous, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	name := r.PathValue("container")
	if c, _ := podinfo.Find(p, name); c == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, p.Name), http.StatusNotFound)
		return
	}
	seen, err := observed.Read(r.Context(), s.cfg.Runtime, string(p.UID))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c, err := logged(p, seen, name, previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	opts.Follow = opts.Follow && !previous
	opts.Alive = func(ctx context.Context) bool { return s.alive(ctx, c.ID) }
	w.Header().Set("Content-Type", "text/plain")
	if opts.Follow {
		w.Header().Set("Transfer-Encoding", "chunked")
		if err := http.NewResponseController(w).Flush(); err != nil {
			return // the client has gone
		}
	}
	out := &flusher{w: w, now: opts.Follow, wrote: opts.Follow}
	if err := logs.Read(r.Context(), c.LogPath, opts, out); err != nil && r.Context().Err() == nil {
		if out.wrote {
			s.cfg.Log.Warn("read container log", "pod", p.Namespace+"/"+p.Name, "container", name, "err", err)
			return
		}
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// logged returns the container run whose log is requested, or why there is none.
func logged(p *corev1.Pod, seen *observed.Pod, name string, previous bool) (*observed.Container, error) {
	waiting := why(p, name)
	cur := seen.Latest(name)
	switch {
	case previous:
		if cur.Exited() && waiting != "" {
			return cur, nil // waiting for its restart: the run that has ended is the previous one
		}
		if prev := seen.Previous(name); prev != nil {
			return prev, nil
		}
		return nil, fmt.Errorf("previous terminated container %q in pod %q not found", name, p.Name)
	case cur == nil || !cur.Running() && !cur.Exited():
		if waiting == "" {
			waiting = "ContainerCreating"
		}
		if waiting == "ErrImagePull" || waiting == "ImagePullBackOff" {
			return nil, fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image",
				name, p.Name)
		}
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, p.Name, waiting)
	}
	return cur, nil
}

// why returns a container's waiting reason from the pod's status; empty: it is not waiting.
func why(p *corev1.Pod, name string) string {
	for _, list := range [][]corev1.ContainerStatus{
		p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name && list[i].State.Waiting != nil {
				return list[i].State.Waiting.Reason
			}
		}
	}
	return ""
}

func (s *Server) alive(ctx context.Context, id string) bool {
	r, err := s.cfg.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		// other errors may come from a runtime that restarts
		return status.Code(err) != codes.NotFound && ctx.Err() == nil
	}
	return r.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

func logOptions(q url.Values) (o logs.Options, previous bool, err error) {
	o.Stdout = true
	o.Stderr = true
	switch v := q.Get("stream"); v {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		o.Stderr = false
	case corev1.LogStreamStderr:
		o.Stdout = false
	default:
		return o, false, fmt.Errorf("stream: Unsupported value: %q", v)
	}
	o.Follow = flag(q, "follow")
	o.Timestamps = flag(q, "timestamps")
	previous = flag(q, "previous")
	if o.Tail, err = number(q, "tailLines", 0); err != nil {
		return o, false, err
	}
	if o.LimitBytes, err = number(q, "limitBytes", 1); err != nil {
		return o, false, err
	}
	since, err := number(q, "sinceSeconds", 1)
	if err != nil {
		return o, false, err
	}
	if since != nil {
		o.Since = time.Now().Add(-time.Duration(*since) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" {
		if since != nil {
			return o, false, fmt.Errorf("at most one of `sinceTime` or `sinceSeconds` may be specified")
		}
		if o.Since, err = time.Parse(time.RFC3339, v); err != nil {
			return o, false, fmt.Errorf("sinceTime: Invalid value: %q: %w", v, err)
		}
	}
	return o, previous, nil
}

func number(q url.Values, name string, least int64) (*int64, error) {
	v := q.Get(name)
	if v == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least {
		return nil, fmt.Errorf("%s: Invalid value: %q: must be a number not less than %d", name, v, least)
	}
	return &n, nil
}

// flusher flushes after each write when a client follows.
type flusher struct {
	w     http.ResponseWriter
	now   bool
	wrote bool
}

func (f *flusher) Write(b []byte) (int, error) {
	f.wrote = true
	n, err := f.w.Write(b)
	if err == nil && f.now {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}
