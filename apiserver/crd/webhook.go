// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"keelson/api/invalid"
	"keelson/apiserver/outbound"
	"keelson/lib/webhookurl"
)

// Hooks holds the dependencies of conversion webhooks.
type Hooks struct {
	// Outbound makes the connections.
	Outbound *outbound.Egress
	// Resolve returns host:port of an endpoint for a Service's port.
	Resolve func(ctx context.Context, namespace, name string, port int32) (string, error)
	// Metrics counts the calls; may be nil.
	Metrics *HookMetrics
}

// Limits of a webhook call.
const (
	webhookTimeout   = 30 * time.Second
	maxResponseBytes = 64 << 20
)

// webhook is conversion strategy Webhook.
type webhook struct {
	name     string // of the definition
	endpoint string
	version  string // of ConversionReview
	client   *http.Client
	metrics  *HookMetrics
}

func newWebhook(crd *v1.CustomResourceDefinition, hooks *Hooks) (*webhook, error) {
	conversion := crd.Spec.Conversion.Webhook
	if conversion == nil || conversion.ClientConfig == nil {
		return nil, fmt.Errorf("definition %s: conversion webhook without a client configuration", crd.Name)
	}
	w := &webhook{name: crd.Name, metrics: hooks.Metrics}
	if i := slices.IndexFunc(conversion.ConversionReviewVersions, func(v string) bool {
		return v == "v1" || v == "v1beta1"
	}); i >= 0 {
		w.version = conversion.ConversionReviewVersions[i]
	} else {
		return nil, errors.New("no supported conversion review versions")
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := bytes.TrimSpace(conversion.ClientConfig.CABundle); len(ca) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("definition %s: caBundle holds no certificate", crd.Name)
		}
	}
	to := outbound.Options{TLS: conf, HTTP2: true}
	switch s := conversion.ClientConfig.Service; {
	case s != nil:
		w.endpoint = serviceURL(s)
		to.Target = outbound.Backend
		to.Resolve = func(ctx context.Context) (string, error) {
			return hooks.Resolve(ctx, s.Namespace, s.Name, servicePort(s))
		}
	case conversion.ClientConfig.URL != nil:
		endpoint, err := webhookurl.Clean(*conversion.ClientConfig.URL)
		if err != nil {
			return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
		}
		w.endpoint = endpoint
		to.Target = outbound.Configured
	default:
		return nil, fmt.Errorf("definition %s: conversion webhook has neither service nor url", crd.Name)
	}
	w.client = &http.Client{
		Transport:     hooks.Outbound.Observe("conversion webhook", hooks.Outbound.Transport(to)),
		Timeout:       webhookTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // no redirects
	}
	return w, nil
}

func servicePort(s *v1.ServiceReference) int32 {
	if s.Port == nil {
		return 443
	}
	return *s.Port
}

// serviceURL names the Service as its certificate does; the dialer resolves it.
func serviceURL(s *v1.ServiceReference) string {
	u := url.URL{
		Scheme: "https",
		Host:   net.JoinHostPort(s.Name+"."+s.Namespace+".svc", strconv.Itoa(int(servicePort(s)))),
	}
	if s.Path != nil {
		u.Path = "/" + strings.TrimPrefix(*s.Path, "/")
	}
	return u.String()
}

// convert calls the webhook once for all objects.
func (w *webhook) convert(
	ctx context.Context, objs []*unstructured.Unstructured, to string,
) ([]*unstructured.Unstructured, error) {
	begin := time.Now()
	out, err := w.sendReview(ctx, objs, to)
	w.metrics.observe(err, time.Since(begin))
	if err != nil {
		return nil, fmt.Errorf("conversion webhook for %s %w", objs[0].GroupVersionKind(), err)
	}
	return out, nil
}

func (w *webhook) sendReview(
	ctx context.Context, objs []*unstructured.Unstructured, to string,
) ([]*unstructured.Unstructured, error) {
	review := v1.ConversionReview{
		Request: &v1.ConversionRequest{UID: types.UID(uuid.NewString()), DesiredAPIVersion: to},
	}
	review.APIVersion = "apiextensions.k8s.io/" + w.version
	review.Kind = "ConversionReview"
	for _, u := range objs {
		review.Request.Objects = append(review.Request.Objects, runtime.RawExtension{Object: u})
	}
	reply, err := w.post(ctx, &review)
	if err != nil {
		return nil, callError{err}
	}
	raw, err := w.validateResponse(reply, review.Request.UID)
	if err != nil {
		return nil, fmt.Errorf("failed: %w", err)
	}
	if len(raw) != len(objs) {
		return nil, fmt.Errorf("returned %d objects, expected %d", len(raw), len(objs))
	}
	out := make([]*unstructured.Unstructured, len(objs))
	for i := range raw {
		if out[i], err = decodeConverted(objs[i], raw[i].Raw, to); err != nil {
			return nil, fmt.Errorf("returned invalid converted object at index %d: %w", i, err)
		}
		if err = restoreMetadata(objs[i], out[i]); err != nil {
			return nil, fmt.Errorf("returned invalid metadata in object at index %d: %w", i, err)
		}
	}
	return out, nil
}

// callError means that there was no response.
type callError struct{ error }

func (f callError) Error() string { return "failed: " + f.error.Error() }
func (f callError) Unwrap() error { return f.error }

func (w *webhook) post(ctx context.Context, review *v1.ConversionReview) (*v1.ConversionReview, error) {
	body, err := json.Marshal(review)
	if err != nil {
		return nil, fmt.Errorf("encode review: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", "kube-apiserver-admission")
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, fmt.Errorf("the server answered %s: %s", resp.Status,
			strings.TrimSpace(string(b[:min(len(b), 512)])))
	}
	reply := &v1.ConversionReview{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b, reply); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return reply, nil
}

// validateResponse returns the objects of a response, or why it is invalid.
func (w *webhook) validateResponse(reply *v1.ConversionReview, uid types.UID) ([]runtime.RawExtension, error) {
	response := reply.Response
	if w.version == "v1" {
		if want := v1.SchemeGroupVersion.WithKind("ConversionReview"); reply.GroupVersionKind() != want {
			return nil, fmt.Errorf("expected webhook response of %s, got %s", want, reply.GroupVersionKind())
		}
	}
	switch {
	case response == nil:
		return nil, errors.New("no response provided")
	case w.version == "v1" && response.UID != uid:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, response.UID)
	case response.Result.Status != metav1.StatusSuccess && response.Result.Message != "":
		return nil, errors.New(response.Result.Message)
	case response.Result.Status != metav1.StatusSuccess:
		return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", response.Result.Status)
	}
	return response.ConvertedObjects, nil
}

// decodeConverted decodes one object of the response and checks that it is the one that was sent.
func decodeConverted(from *unstructured.Unstructured, raw []byte, to string) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &obj.Object); err != nil {
		return nil, err
	}
	if got := obj.GetAPIVersion(); got != to {
		return nil, fmt.Errorf("invalid groupVersion (expected %s, received %s)", to, got)
	}
	for _, c := range []struct{ what, want, got string }{
		{"kind", from.GetKind(), obj.GetKind()},
		{"name", from.GetName(), obj.GetName()},
		{"namespace", from.GetNamespace(), obj.GetNamespace()},
		{"UID", string(from.GetUID()), string(obj.GetUID())},
	} {
		if c.want != c.got {
			return nil, fmt.Errorf("must have the same %s: %s != %s", c.what, c.want, c.got)
		}
	}
	return obj, nil
}

// restoreMetadata gives obj the metadata of the original object; a webhook may change only labels and annotations.
func restoreMetadata(from, obj *unstructured.Unstructured) error {
	metadata, ok := obj.Object["metadata"].(map[string]any)
	if !ok {
		if given, found := obj.Object["metadata"]; found {
			return fmt.Errorf("invalid metadata of type %T in converted object", given)
		}
		return errors.New("missing metadata in converted object")
	}
	meta := map[string]any{}
	if own, ok := from.Object["metadata"].(map[string]any); ok {
		meta = runtime.DeepCopyJSON(own)
	}
	for part, check := range map[string]func(map[string]string) field.ErrorList{
		"labels": func(m map[string]string) field.ErrorList {
			return metavalidation.ValidateLabels(m, field.NewPath("metadata", "labels"))
		},
		"annotations": func(m map[string]string) field.ErrorList {
			return validation.ValidateAnnotations(m, field.NewPath("metadata", "annotation"))
		},
	} {
		if metadata[part] == nil {
			delete(meta, part)
			continue
		}
		list, ok := metadata[part].(map[string]any)
		if !ok {
			return fmt.Errorf("invalid metadata.%s of type %T in converted object", part, metadata[part])
		}
		texts := make(map[string]string, len(list))
		for k, v := range list {
			if texts[k], ok = v.(string); !ok {
				return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", part, k, v)
			}
		}
		if !reflect.DeepEqual(meta[part], metadata[part]) { // invalid values that did not change are accepted
			if errs := check(texts); len(errs) > 0 {
				return invalid.Error(errs)
			}
		}
		meta[part] = list
	}
	obj.Object["metadata"] = meta
	return nil
}
