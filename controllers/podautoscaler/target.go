// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	scalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	custom "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
)

// target is the resource of a kind.
type target struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

// Resource finds the kind in the given version, or in other versions of its group if that one is not served (any more).
func (r metricsReader) Resource(_ context.Context, apiVersion, kind string) (target, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return target{}, err
	}
	versions := []schema.GroupVersion{gv}
	if t, ok := r.find(gv, kind); ok {
		return t, nil
	}
	groups, err := r.ServerGroups()
	if err != nil {
		return target{}, err
	}
	for i := range groups.Groups {
		if groups.Groups[i].Name != gv.Group {
			continue
		}
		for _, v := range groups.Groups[i].Versions {
			other := schema.GroupVersion{Group: gv.Group, Version: v.Version}
			if t, ok := r.find(other, kind); ok {
				return t, nil
			}
			versions = append(versions, other)
		}
	}
	return target{}, &meta.NoKindMatchError{
		GroupKind:        gv.WithKind(kind).GroupKind(),
		SearchedVersions: searchOrder(versions),
	}
}

func searchOrder(all []schema.GroupVersion) []string {
	if len(all) < 2 {
		return nil
	}
	var out []string
	for _, gv := range all[1:] {
		out = append(out, gv.Version)
	}
	return out
}

func (r metricsReader) find(gv schema.GroupVersion, kind string) (target, bool) {
	list, err := r.ServerResourcesForGroupVersion(gv.String())
	if err != nil {
		return target{}, false
	}
	for i := range list.APIResources {
		if a := &list.APIResources[i]; a.Kind == kind && !strings.Contains(a.Name, "/") {
			return target{gv.WithResource(a.Name), a.Namespaced}, true
		}
	}
	return target{}, false
}

// scaler reads and writes scale subresources.
type scaler interface {
	Get(ctx context.Context, namespace string, ref *scalingv2.CrossVersionObjectReference) (*targetScale, error)
	// Set changes the replicas, also if the target has changed since Get.
	Set(ctx context.Context, s *targetScale, replicas int32) error
}

// targetScale is a scale as read.
type targetScale struct {
	scale
	client dynamic.ResourceInterface
	obj    *unstructured.Unstructured
}

// scaleClient implements scaler for a cluster.
type scaleClient struct {
	api metricsAPI
	dyn dynamic.Interface
}

func (s scaleClient) Get(
	ctx context.Context, namespace string, ref *scalingv2.CrossVersionObjectReference,
) (*targetScale, error) {
	t, err := s.api.Resource(ctx, ref.APIVersion, ref.Kind)
	if err != nil {
		return nil, err
	}
	out := &targetScale{client: s.dyn.Resource(t.gvr).Namespace(namespace)}
	if out.obj, err = out.client.Get(ctx, ref.Name, metav1.GetOptions{}, "scale"); err != nil {
		return nil, err
	}
	spec, _, err := unstructured.NestedInt64(out.obj.Object, "spec", "replicas")
	if err != nil {
		return nil, fmt.Errorf("scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	status, _, err := unstructured.NestedInt64(out.obj.Object, "status", "replicas")
	if err != nil {
		return nil, fmt.Errorf("scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	selector, _, err := unstructured.NestedString(out.obj.Object, "status", "selector")
	if err != nil {
		return nil, fmt.Errorf("scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	out.scale = scale{ceil(float64(spec)), ceil(float64(status)), selector}
	return out, nil
}

// Set writes into the newest scale if the target has changed since Get, and fails only if it changes all the time.
func (s scaleClient) Set(ctx context.Context, t *targetScale, replicas int32) error {
	next := t.obj.DeepCopy()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := unstructured.SetNestedField(next.Object, int64(replicas), "spec", "replicas"); err != nil {
			return err
		}
		_, err := t.client.Update(ctx, next, metav1.UpdateOptions{}, "scale")
		if !apierrors.IsConflict(err) {
			return err
		}
		live, getErr := t.client.Get(ctx, t.obj.GetName(), metav1.GetOptions{}, "scale")
		if getErr != nil {
			return getErr
		}
		next = live
		return err
	})
}

// isNoSuchVersion reports that the server does not know the group version.
func isNoSuchVersion(err error) bool {
	var s apierrors.APIStatus
	return errors.As(err, &s) && s.Status().Code == http.StatusNotFound &&
		(s.Status().Details == nil || s.Status().Details.Name == "")
}

// oldCustomMetrics has the fields of v1beta1 of custom.metrics.k8s.io that differ from v1beta2.
type oldCustomMetrics struct {
	Items []struct {
		custom.MetricValue
		MetricName    string `json:"metricName"`
		WindowSeconds *int64 `json:"window"`
	} `json:"items"`
}

// readOldCustom reads v1beta1 instead of v1beta2.
func readOldCustom(
	ctx context.Context, api metricsAPI, into *custom.MetricValueList, query map[string]string, path []string,
) error {
	var old oldCustomMetrics
	if err := api.Read(ctx, &old, query, append([]string{"apis", custom.GroupName, "v1beta1"},
		path...)...); err != nil {
		return err
	}
	for i := range old.Items {
		v := old.Items[i].MetricValue
		v.Metric.Name = old.Items[i].MetricName
		v.WindowSeconds = old.Items[i].WindowSeconds
		into.Items = append(into.Items, v)
	}
	return nil
}
