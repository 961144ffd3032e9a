// SPDX-License-Identifier: Apache-2.0

package webhook

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
	"keelson/lib/webhookurl"
)

// Resolver returns host:port of an endpoint for a Service's port.
type Resolver func(ctx context.Context, namespace, name string, port int32) (string, error)

// maxResponseBytes limits a webhook's response.
const maxResponseBytes = 16 << 20

// webhookClient posts reviews to one webhook and keeps connections.
type webhookClient struct {
	endpoint  string
	client    *http.Client
	transport *http.Transport
}

func newWebhookClient(
	config *registrationv1.WebhookClientConfig, resolve Resolver, egress *outbound.Egress, creds *Credentials,
) (*webhookClient, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := bytes.TrimSpace(config.CABundle); len(ca) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	out := &webhookClient{}
	to := outbound.Options{TLS: conf, HTTP2: true}
	var cfg *rest.Config
	var err error
	switch reference := config.Service; {
	case reference != nil:
		port := int32(443)
		if reference.Port != nil {
			port = *reference.Port
		}
		// The certificate is for the Service's DNS name; the dialer resolves it to an endpoint.
		u := url.URL{
			Scheme: "https",
			Host: net.JoinHostPort(reference.Name+"."+reference.Namespace+".svc",
				strconv.Itoa(int(port))),
		}
		if reference.Path != nil {
			u.Path = "/" + strings.TrimPrefix(*reference.Path, "/")
		}
		out.endpoint = u.String()
		to.Target = outbound.Backend
		to.Resolve = func(ctx context.Context) (string, error) {
			return resolve(ctx, reference.Namespace, reference.Name, port)
		}
		cfg, err = creds.service(reference.Name, reference.Namespace, port)
	case config.URL != nil:
		if out.endpoint, err = webhookurl.Clean(*config.URL); err != nil {
			return nil, err
		}
		to.Target = outbound.Configured
		cfg, err = creds.address(out.endpoint)
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	if err != nil {
		return nil, err
	}
	out.transport = egress.Transport(to)
	shown, err := withCredentials(cfg, out.transport)
	if err != nil {
		return nil, err
	}
	out.client = &http.Client{
		Transport: egress.Observe("admission webhook", shown),
		CheckRedirect: func(
			*http.Request, []*http.Request,
		) error {
			return http.ErrUseLastResponse
		},
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(review))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", "kube-apiserver-admission")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes))
	if err != nil {
		return nil, fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 206 {
		retry, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // seconds, or empty
		text := strings.TrimSpace(string(body[:min(len(body), 2048)]))
		return nil, apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodPost, schema.GroupResource{}, "",
			text, retry, true)
	}
	answer := &admissionv1.AdmissionReview{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, answer); err != nil {
		return nil, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	return answer, nil
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
