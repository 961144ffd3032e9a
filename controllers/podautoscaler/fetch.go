// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	custom "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	external "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"keelson/lib/quantity"
)

// defaultMetricWindow is the window of a custom metric without one.
const defaultMetricWindow = time.Minute

// metricsAPI reads the three metrics APIs, whichever server provides them.
type metricsAPI interface {
	// Read decodes the JSON response to a GET of path with the parameters of query.
	Read(ctx context.Context, into any, query map[string]string, path ...string) error
	// Resource returns the resource of a kind: "deployments.apps".
	Resource(ctx context.Context, apiVersion, kind string) (target, error)
}

// fetch reads one metric of an autoscaler; selector selects the target's pods.
func fetch(
	ctx context.Context, api metricsAPI, hpa *scalingv2.HorizontalPodAutoscaler, metricSpec *scalingv2.MetricSpec,
	selector labels.Selector,
) fetched {
	var f fetched
	switch {
	case metricSpec.Type == scalingv2.ResourceMetricSourceType && metricSpec.Resource != nil:
		f.pods, f.err = resourceMetrics(ctx, api, hpa.Namespace, selector, metricSpec.Resource.Name, "")
	case metricSpec.Type == scalingv2.ContainerResourceMetricSourceType && metricSpec.ContainerResource != nil:
		f.pods, f.err = resourceMetrics(ctx, api, hpa.Namespace, selector, metricSpec.ContainerResource.Name,
			metricSpec.ContainerResource.Container)
	case metricSpec.Type == scalingv2.PodsMetricSourceType && metricSpec.Pods != nil:
		var list *custom.MetricValueList
		if list, f.err = customMetrics(ctx, api, hpa.Namespace, "pods", "*", &metricSpec.Pods.Metric,
			selector); f.err == nil {
			f.pods = byPod(list)
		}
	case metricSpec.Type == scalingv2.ObjectMetricSourceType && metricSpec.Object != nil:
		f.value, f.err = objectMetric(ctx, api, hpa.Namespace, metricSpec.Object)
	case metricSpec.Type == scalingv2.ExternalMetricSourceType && metricSpec.External != nil:
		f.value, f.err = externalMetric(ctx, api, hpa.Namespace, &metricSpec.External.Metric)
	}
	return f
}

func resourceMetrics(
	ctx context.Context, api metricsAPI, namespace string, selector labels.Selector, name corev1.ResourceName,
	container string,
) (map[string]podMetric, error) {
	list := &metricsv1beta1.PodMetricsList{}
	query := map[string]string{"labelSelector": selector.String()}
	if err := api.Read(ctx, list, query, "apis", metricsv1beta1.GroupName, "v1beta1", "namespaces", namespace,
		"pods"); err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	return usages(list, name, container)
}

// usages are the pods' usages of a resource, or those of one container. A pod with a missing value is left out.
func usages(
	list *metricsv1beta1.PodMetricsList, name corev1.ResourceName, container string,
) (map[string]podMetric, error) {
	out := map[string]podMetric{}
	for i := range list.Items {
		podMetrics := &list.Items[i]
		m := podMetric{at: podMetrics.Timestamp.Time, window: podMetrics.Window.Duration}
		whole := len(podMetrics.Containers) > 0
		found := container == ""
		for j := range podMetrics.Containers {
			if container != "" && podMetrics.Containers[j].Name != container {
				continue
			}
			found = true
			q, ok := podMetrics.Containers[j].Usage[name]
			whole = whole && ok
			m.value = add(m.value, q.MilliValue())
		}
		switch {
		case !found:
			return nil, fmt.Errorf("container %s not present in metrics for pod %s/%s", container,
				podMetrics.Namespace, podMetrics.Name)
		case whole:
			out[podMetrics.Name] = m
		}
	}
	if len(out) == 0 && container == "" {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	return out, nil
}

func customMetrics(
	ctx context.Context, api metricsAPI, namespace, resource, name string, identifier *scalingv2.MetricIdentifier,
	objects labels.Selector,
) (*custom.MetricValueList, error) {
	query := map[string]string{}
	if objects != nil {
		query["labelSelector"] = objects.String()
	}
	if identifier.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(identifier.Selector)
		if err != nil {
			return nil, err
		}
		query["metricLabelSelector"] = selector.String()
	}
	path := []string{"namespaces", namespace, resource, name, identifier.Name}
	if resource == "namespaces" {
		path = []string{"namespaces", namespace, "metrics", identifier.Name}
	} else if namespace == "" {
		path = []string{resource, name, identifier.Name}
	}
	list := &custom.MetricValueList{}
	err := api.Read(ctx, list, query, append([]string{"apis", custom.GroupName, "v1beta2"}, path...)...)
	if isNoSuchVersion(err) {
		if old := readOldCustom(ctx, api, list, query, path); old == nil || !isNoSuchVersion(old) {
			err = old
		}
	}
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	return list, nil
}

func byPod(list *custom.MetricValueList) map[string]podMetric {
	out := map[string]podMetric{}
	for i := range list.Items {
		v := &list.Items[i]
		m := podMetric{value: v.Value.MilliValue(), at: v.Timestamp.Time, window: defaultMetricWindow}
		if v.WindowSeconds != nil {
			m.window = time.Duration(*v.WindowSeconds) * time.Second
		}
		out[v.DescribedObject.Name] = m
	}
	return out
}

func objectMetric(
	ctx context.Context, api metricsAPI, namespace string, source *scalingv2.ObjectMetricSource,
) (int64, error) {
	reference := source.DescribedObject
	var list *custom.MetricValueList
	var err error
	if reference.Kind == "Namespace" && reference.APIVersion == "v1" { // the object is its own namespace
		list, err = customMetrics(ctx, api, reference.Name, "namespaces", "", &source.Metric, nil)
	} else {
		var at target
		if at, err = api.Resource(ctx, reference.APIVersion, reference.Kind); err != nil {
			return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
		}
		if !at.namespaced {
			namespace = ""
		}
		list, err = customMetrics(ctx, api, namespace, at.gvr.GroupResource().String(), reference.Name, &source.Metric,
			nil)
	}
	if err != nil {
		return 0, err
	}
	return list.Items[0].Value.MilliValue(), nil
}

// externalMetric is the sum of all values of an external metric.
func externalMetric(
	ctx context.Context, api metricsAPI, namespace string, identifier *scalingv2.MetricIdentifier,
) (int64, error) {
	query := map[string]string{}
	if identifier.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(identifier.Selector)
		if err != nil {
			return 0, err
		}
		query["labelSelector"] = selector.String()
	}
	list := &external.ExternalMetricValueList{}
	if err := api.Read(ctx, list, query, "apis", external.GroupName, "v1beta1", "namespaces", namespace,
		identifier.Name); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	var all int64
	for i := range list.Items {
		all = add(all, list.Items[i].Value.MilliValue())
	}
	return all, nil
}

// metricsReader implements metricsAPI for a cluster.
type metricsReader struct{ discovery.DiscoveryInterface }

// maxResponseBytes limits a response of a metrics API, which may come from any server.
const maxResponseBytes = 64 << 20

var errTooLong = fmt.Errorf("the answer is longer than %d bytes", maxResponseBytes)

// limitedDiscovery limits the size of every response.
func limitedDiscovery(cfg *rest.Config) (discovery.DiscoveryInterface, error) {
	c := rest.CopyConfig(cfg)
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return limitedTransport{rt, maxResponseBytes} })
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of metrics: %w", err)
	}
	return d, nil
}

// limitedTransport limits the size of responses: longer ones fail.
type limitedTransport struct {
	http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (b limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if resp != nil && resp.Body != nil {
		resp.Body = &limitedBody{resp.Body, b.limit}
	}
	return resp, err
}

// limitedBody may be read for remaining more bytes.
type limitedBody struct {
	io.ReadCloser
	remaining int64
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.remaining < 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.remaining+1)])
	if b.remaining -= int64(n); b.remaining < 0 {
		return n - 1, errTooLong
	}
	return n, err
}

// Read reads path from the API server.
func (r metricsReader) Read(ctx context.Context, into any, query map[string]string, path ...string) error {
	req := r.RESTClient().Get().AbsPath(path...).SetHeader("Accept", "application/json").Timeout(fetchTimeout)
	for name, value := range query {
		req = req.Param(name, value)
	}
	b, err := req.DoRaw(ctx)
	if err != nil {
		return err
	}
	if err := quantity.CheckJSON(b, reflect.TypeOf(into)); err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}
