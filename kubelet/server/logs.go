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
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// containerLogs writes a container's log, with the parameters of PodLogOptions.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	pod := s.find(w, r)
	if pod == nil {
		return
	}
	opts, previous, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	name := r.PathValue("container")
	if c, _ := podinfo.Find(pod, name); c == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, pod.Name), http.StatusNotFound)
		return
	}
	seen, err := runtimestate.Read(r.Context(), s.cfg.Runtime, string(pod.UID))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	container, err := logged(pod, seen, name, previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	opts.Follow = opts.Follow && !previous
	opts.Alive = func(ctx context.Context) bool { return s.alive(ctx, container.ID) }
	w.Header().Set("Content-Type", "text/plain")
	if opts.Follow {
		w.Header().Set("Transfer-Encoding", "chunked")
		if err := http.NewResponseController(w).Flush(); err != nil {
			return // the client has gone
		}
	}
	out := &flusher{w: w, now: opts.Follow, wrote: opts.Follow}
	if err := logs.Read(r.Context(), container.LogPath, opts, out); err != nil && r.Context().Err() == nil {
		if out.wrote {
			s.cfg.Log.Warn("read container log", "pod", pod.Namespace+"/"+pod.Name, "container", name, "err", err)
			return
		}
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// logged returns the container run whose log is requested, or why there is none.
func logged(pod *corev1.Pod, seen *runtimestate.Pod, name string, previous bool) (*runtimestate.Container, error) {
	waiting := why(pod, name)
	cur := seen.Latest(name)
	switch {
	case previous:
		if cur.Exited() && waiting != "" {
			return cur, nil // waiting for its restart: the run that has ended is the previous one
		}
		if prev := seen.Previous(name); prev != nil {
			return prev, nil
		}
		return nil, fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
	case cur == nil || !cur.Running() && !cur.Exited():
		if waiting == "" {
			waiting = "ContainerCreating"
		}
		if waiting == "ErrImagePull" || waiting == "ImagePullBackOff" {
			return nil, fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image",
				name, pod.Name)
		}
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod.Name, waiting)
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

func logOptions(values url.Values) (options logs.Options, previous bool, err error) {
	options.Stdout = true
	options.Stderr = true
	switch v := values.Get("stream"); v {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		options.Stderr = false
	case corev1.LogStreamStderr:
		options.Stdout = false
	default:
		return options, false, fmt.Errorf("stream: Unsupported value: %q", v)
	}
	options.Follow = flag(values, "follow")
	options.Timestamps = flag(values, "timestamps")
	previous = flag(values, "previous")
	if options.Tail, err = number(values, "tailLines", 0); err != nil {
		return options, false, err
	}
	if options.LimitBytes, err = number(values, "limitBytes", 1); err != nil {
		return options, false, err
	}
	since, err := number(values, "sinceSeconds", 1)
	if err != nil {
		return options, false, err
	}
	if since != nil {
		options.Since = time.Now().Add(-time.Duration(*since) * time.Second)
	}
	if v := values.Get("sinceTime"); v != "" {
		if since != nil {
			return options, false, fmt.Errorf("at most one of `sinceTime` or `sinceSeconds` may be specified")
		}
		if options.Since, err = time.Parse(time.RFC3339, v); err != nil {
			return options, false, fmt.Errorf("sinceTime: Invalid value: %q: %w", v, err)
		}
	}
	return options, previous, nil
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
