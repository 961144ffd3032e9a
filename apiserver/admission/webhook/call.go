// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	"keelson/apiserver/outbound"
)

// maxResponseBytes limits a webhook's response.
const maxResponseBytes = 16 << 20

// webhookClient posts reviews to one webhook and keeps connections.
type webhookClient struct {
	endpoint  string
	client    *http.Client
	transport *http.Transport
}

func newWebhookClient(
	config *registrationv1.WebhookClientConfig, resolve outbound.Resolver, egress *outbound.Egress, creds *Credentials,
) (*webhookClient, error) {
	reviewer, err := egress.NewReviewer(config, resolve)
	if err != nil {
		return nil, err
	}
	out := &webhookClient{endpoint: reviewer.Endpoint, transport: reviewer.Transport}
	var cfg *rest.Config
	if s := config.Service; s != nil {
		cfg, err = creds.service(s.Name, s.Namespace, outbound.ServicePort(s))
	} else {
		cfg, err = creds.address(out.endpoint)
	}
	if err != nil {
		return nil, err
	}
	shown, err := withCredentials(cfg, out.transport)
	if err != nil {
		return nil, err
	}
	out.client = &http.Client{
		Transport:     egress.Observe("admission webhook", shown),
		CheckRedirect: outbound.NoRedirects,
	}
	return out, nil
}

func (c *webhookClient) close() { c.transport.CloseIdleConnections() }

// post sends a review and returns the response. The URL parameter timeout has the deadline of ctx in seconds.
func (c *webhookClient) post(ctx context.Context, review []byte) (*admissionv1.AdmissionReview, error) {
	target := c.endpoint
	if end, ok := ctx.Deadline(); ok {
		seconds := (time.Until(end) + time.Second - 1).Truncate(time.Second)
		sep := "?"
		if strings.Contains(target, "?") {
			sep = "&"
		}
		target += sep + "timeout=" + strconv.Itoa(int(max(seconds, time.Second)/time.Second)) + "s"
	}
	answer, err := outbound.Review(ctx, c.client, target, review, maxResponseBytes)
	switch {
	case err != nil && answer != nil:
		return nil, fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	case err != nil:
		return nil, err
	}
	if answer.Code < 200 || answer.Code > 206 {
		retry, _ := strconv.Atoi(answer.Header.Get("Retry-After")) // seconds, or empty
		text := strings.TrimSpace(string(answer.Body[:min(len(answer.Body), 2048)]))
		return nil, apierrors.NewGenericServerResponse(answer.Code, http.MethodPost, schema.GroupResource{}, "",
			text, retry, true)
	}
	reply := &admissionv1.AdmissionReview{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(answer.Body, reply); err != nil {
		return nil, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	return reply, nil
}

// responseOf is the response in an AdmissionReview of a version, or an error if it is invalid.
func responseOf(
	review *admissionv1.AdmissionReview, version string, uid types.UID, mutating bool,
) (*admissionv1.AdmissionResponse, error) {
	response := review.Response
	if response == nil || versionDiffers(review, version) {
		return nil, errors.New("webhook response was absent")
	}
	if version == beta {
		return convertBetaResponse(response, mutating), nil
	}
	if response.UID != uid {
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, response.UID)
	}
	want := admissionv1.SchemeGroupVersion.WithKind(reviewKind)
	if got := review.GroupVersionKind(); got != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want.String(), got.String())
	}
	switch {
	case !mutating && len(response.Patch) > 0:
		return nil, errors.New("validating webhook may not return response.patch")
	case !mutating && response.PatchType != nil:
		return nil, errors.New("validating webhook may not return response.patchType")
	case len(response.Patch) > 0 && response.PatchType == nil:
		return nil, errors.New("webhook returned response.patch but not response.patchType")
	case len(response.Patch) == 0 && response.PatchType != nil:
		return nil, errors.New("webhook returned response.patchType but not response.patch")
	case response.PatchType != nil && *response.PatchType == "":
		return nil, fmt.Errorf("webhook returned invalid response.patchType of %q", *response.PatchType)
	}
	return response, nil
}

// versionDiffers reports whether the response has another version than the request, which Kubernetes treats as a
// missing response.
func versionDiffers(a *admissionv1.AdmissionReview, version string) bool {
	gvk := a.GroupVersionKind()
	return gvk.Group == admissionv1.GroupName && gvk.Kind == reviewKind && gvk.Version != version &&
		slices.Contains(versions, gvk.Version)
}

// convertBetaResponse completes a v1beta1 response, where the UID and the patch type are optional.
func convertBetaResponse(r *admissionv1.AdmissionResponse, mutating bool) *admissionv1.AdmissionResponse {
	out := *r
	out.PatchType = nil
	if !mutating {
		out.Patch = nil
	}
	if len(out.Patch) > 0 {
		t := admissionv1.PatchTypeJSONPatch
		out.PatchType = &t
	}
	return &out
}

const (
	reviewKind = "AdmissionReview"
	beta       = "v1beta1"
)

// versions are the supported versions of AdmissionReview; they have the same fields.
var versions = []string{"v1", beta}

func encode(review *admissionv1.AdmissionReview, version string) ([]byte, error) {
	review.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   admissionv1.GroupName,
		Version: version,
		Kind:    reviewKind,
	})
	return json.Marshal(review)
}
