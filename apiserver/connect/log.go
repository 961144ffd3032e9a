// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/lib/streams"
)

// log serves pods/log.
func (c *Connections) log(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, _ *resources.Resource) error {
	if rq.Verb != "get" {
		return wire.MethodNotAllowed()
	}
	opts := &corev1.PodLogOptions{}
	if err := options(r, opts); err != nil {
		return err
	}
	if errs := validateLog(opts); len(errs) > 0 {
		return invalid.New(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), rq.Name, errs)
	}
	pod, err := c.served.Pod(r.Context(), rq.Namespace, rq.Name)
	if err != nil {
		return err
	}
	name, err := containerOf(pod, opts.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" { // no container can have logged yet
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	target, err := c.kubelets.target(r.Context(), rq, pod.Spec.NodeName,
		[]string{"containerLogs", pod.Namespace, pod.Name, name}, logQuery(opts))
	if err != nil {
		return err
	}
	if streams.IsWebSocket(r) {
		return c.logSocket(w, r, rq, target)
	}
	proxy := reverseProxy(target, c.kubelets.Transport())
	proxy.ModifyResponse = func(resp *http.Response) error {
		if resp.StatusCode == http.StatusOK {
			resp.Header.Set("Content-Type", "text/plain")
			return nil
		}
		return kubeletError(resp, rq)
	}
	r.Header.Del("Accept-Encoding")
	proxy.ServeHTTP(w, r)
	return nil
}

// logSocket sends a log as websocket messages.
func (c *Connections) logSocket(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, target *url.URL) error {
	protocol, err := streams.LogProtocol(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.kubelets.Transport().RoundTrip(req)
	if err != nil {
		return proxyError(err, target)
	}
	if resp.StatusCode != http.StatusOK {
		return kubeletError(resp, rq)
	}
	streams.Log(w, r, protocol, resp.Body)
	return nil
}

// logQuery converts the options to the kubelet's query parameters.
func logQuery(podLogOptions *corev1.PodLogOptions) url.Values {
	values := url.Values{}
	for name, on := range map[string]bool{
		"follow":     podLogOptions.Follow,
		"previous":   podLogOptions.Previous,
		"timestamps": podLogOptions.Timestamps,
	} {
		if on {
			values.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{
		"sinceSeconds": podLogOptions.SinceSeconds,
		"tailLines":    podLogOptions.TailLines,
		"limitBytes":   podLogOptions.LimitBytes,
	} {
		if n != nil {
			values.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if podLogOptions.SinceTime != nil {
		values.Set("sinceTime", podLogOptions.SinceTime.Format(time.RFC3339))
	}
	if podLogOptions.Stream != nil && *podLogOptions.Stream != "" && *podLogOptions.Stream != corev1.LogStreamAll {
		values.Set("stream", *podLogOptions.Stream)
	}
	return values
}

func validateLog(podLogOptions *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if podLogOptions.TailLines != nil && *podLogOptions.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *podLogOptions.TailLines,
			"must be greater than or equal to 0"))
	}
	if podLogOptions.LimitBytes != nil && *podLogOptions.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *podLogOptions.LimitBytes,
			"must be greater than 0"))
	}
	switch {
	case podLogOptions.SinceSeconds != nil && podLogOptions.SinceTime != nil:
		errs = append(errs,
			field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case podLogOptions.SinceSeconds != nil && *podLogOptions.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *podLogOptions.SinceSeconds,
			"must be greater than 0"))
	}
	return errs
}

// maxErrorText limits the kubelet's error text in the response.
const maxErrorText = 2000

// kubeletError converts a kubelet's error response to a Status.
func kubeletError(resp *http.Response, rq *pipeline.Request) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // the relevant part has been read
	text := strings.TrimSpace(string(b))
	switch resp.StatusCode {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(text))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodGet,
		schema.GroupResource{Resource: rq.Resource}, rq.Name, text, 0, true)
}
