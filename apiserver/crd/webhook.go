// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	registrationv1 "k8s.io/api/admissionregistration/v1"
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
)

// Hooks holds the dependencies of conversion webhooks.
type Hooks struct {
	// Outbound makes the connections.
	Outbound *outbound.Egress
	// Resolve returns host:port of an endpoint for a Service's port.
	Resolve outbound.Resolver
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
	reviewer, err := hooks.Outbound.NewReviewer(&registrationv1.WebhookClientConfig{
		URL:      conversion.ClientConfig.URL,
		Service:  (*registrationv1.ServiceReference)(conversion.ClientConfig.Service),
		CABundle: conversion.ClientConfig.CABundle,
	}, hooks.Resolve)
	switch {
	case errors.Is(err, outbound.ErrNoCertificate):
		return nil, fmt.Errorf("definition %s: caBundle holds no certificate", crd.Name)
	case errors.Is(err, outbound.ErrNoTarget):
		return nil, fmt.Errorf("definition %s: conversion webhook has neither service nor url", crd.Name)
	case err != nil:
		return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	w.endpoint = reviewer.Endpoint
	w.client = &http.Client{
		Transport:     hooks.Outbound.Observe("conversion webhook", reviewer.Transport),
		Timeout:       webhookTimeout,
		CheckRedirect: outbound.NoRedirects,
	}
	return w, nil
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
	answer, err := outbound.Review(ctx, w.client, w.endpoint, body, maxResponseBytes)
	if err != nil {
		return nil, err
	}
	if answer.Code < 200 || answer.Code > 299 {
		return nil, fmt.Errorf("the server answered %s: %s", answer.Status,
			strings.TrimSpace(string(answer.Body[:min(len(answer.Body), 512)])))
	}
	reply := &v1.ConversionReview{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(answer.Body, reply); err != nil {
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
