// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/apiserver/backend"
	"keelson/auth"
)

// Discovery is what a server reports about its group version. Missing parts are nil.
type Discovery struct {
	Service   *v1.APIService
	Resources *apidiscoveryv2.APIVersionDiscovery
	V3        *spec3.OpenAPI
	V2        *spec.Swagger
	Sum       string // of V3 and V2
}

// Limits of a probe.
const (
	probeTimeout     = 5 * time.Second
	maxResponseBytes = 32 << 20
)

// prober is the user of discovery requests. It may read everything.
var prober = &auth.User{Name: "system:kube-aggregator", Groups: []string{auth.Masters}}

// condition checks whether r is available.
func (s *Services) condition(ctx context.Context, r *remote) v1.APIServiceCondition {
	ref := r.service.Spec.Service
	no := func(reason, message string) v1.APIServiceCondition {
		return v1.APIServiceCondition{
			Type:    v1.Available,
			Status:  v1.ConditionFalse,
			Reason:  reason,
			Message: message,
		}
	}
	unready, err := backend.Ready(ctx, s.config.Reader, ref.Namespace, ref.Name, *ref.Port)
	switch {
	case apierrors.IsNotFound(err):
		return no("ServiceNotFound", fmt.Sprintf("service/%s in %q is not present", ref.Name, ref.Namespace))
	case unready:
		return no("MissingEndpoints", err.Error())
	case err != nil:
		return no("ServicePortError", err.Error())
	case r.configErr != nil:
		return no("FailedDiscoveryCheck", r.configErr.Error())
	}
	gv := gvOf(r.service)
	if _, err := r.fetch(ctx, pathOf(gv), ""); err != nil {
		r.close()
		return no("FailedDiscoveryCheck", fmt.Sprintf("failing or missing response from https://%s%s: %v", r.host(),
			pathOf(gv), err))
	}
	return v1.APIServiceCondition{
		Type:    v1.Available,
		Status:  v1.ConditionTrue,
		Reason:  "Passed",
		Message: "all checks passed",
	}
}

func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// fetch reads a document from r.
func (r *remote) fetch(ctx context.Context, path, accept string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.host()+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	setUser(req.Header, prober)
	plain, _ := r.conns.current()
	resp, err := plain.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, fmt.Errorf("bad status from https://%s%s: %d", r.host(), path, resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes))
}

// fetchDiscovery reads the discovery and OpenAPI documents of r. Only the resource list is required.
func (r *remote) fetchDiscovery(ctx context.Context) (*Discovery, error) {
	discovery := &Discovery{Service: r.service}
	gv := gvOf(r.service)
	var err error
	if discovery.Resources, err = r.resources(ctx, gv); err != nil {
		return nil, err
	}
	sum := sha256.New()
	if b, err := r.fetch(ctx, "/openapi/v3/apis/"+gv.String(), "application/json"); err == nil {
		doc := &spec3.OpenAPI{}
		if json.Unmarshal(b, doc) == nil {
			discovery.V3 = doc
			_, _ = sum.Write(b) // a hash's Write never fails
		}
	}
	if b, err := r.fetch(ctx, "/openapi/v2", "application/json"); err == nil {
		doc := &spec.Swagger{}
		if json.Unmarshal(b, doc) == nil {
			discovery.V2 = doc
			_, _ = sum.Write(b)
		}
	}
	discovery.Sum = hex.EncodeToString(sum.Sum(nil))
	return discovery, nil
}

const aggregatedJSON = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// resources reads discovery, in aggregated form if the server supports it.
func (r *remote) resources(ctx context.Context, gv schema.GroupVersion) (*apidiscoveryv2.APIVersionDiscovery, error) {
	b, err := r.fetch(ctx, "/apis", aggregatedJSON+",application/json")
	if err == nil {
		list := &apidiscoveryv2.APIGroupDiscoveryList{}
		if json.Unmarshal(b, list) == nil && list.Kind == "APIGroupDiscoveryList" {
			for i := range list.Items {
				for j := range list.Items[i].Versions {
					if list.Items[i].Name == gv.Group && list.Items[i].Versions[j].Version == gv.Version {
						return &list.Items[i].Versions[j], nil
					}
				}
			}
			return nil, errors.New("its discovery does not name " + gv.String())
		}
	}
	if b, err = r.fetch(ctx, pathOf(gv), "application/json"); err != nil {
		return nil, err
	}
	list := &metav1.APIResourceList{}
	if err := json.Unmarshal(b, list); err != nil {
		return nil, fmt.Errorf("decode discovery of %s: %w", gv, err)
	}
	return versionOf(gv, list), nil
}

// sameDiscovery reports whether two discoveries have the same result.
func sameDiscovery(a, b *Discovery) bool {
	return a != nil && b != nil && a.Sum == b.Sum && reflect.DeepEqual(a.Resources, b.Resources)
}
