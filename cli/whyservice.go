// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"keelson/timeline/packet"
)

// whyService tells where packets to a service go. All it looks at are objects of the API, so any cluster will do.
func (f *storyFlags) whyService(ctx context.Context, name string, std Stdio) error {
	ns := url.PathEscape(f.namespace)
	o := packet.Objects{Service: &corev1.Service{}}
	var pods corev1.PodList
	var slices discoveryv1.EndpointSliceList
	var policies networkingv1.NetworkPolicyList
	for _, get := range []struct {
		path string
		into any
	}{
		{"/api/v1/namespaces/" + ns + "/services/" + url.PathEscape(name), o.Service},
		{"/api/v1/namespaces/" + ns + "/pods", &pods},
		{"/apis/discovery.k8s.io/v1/namespaces/" + ns + "/endpointslices?labelSelector=" + url.QueryEscape(discoveryv1.LabelServiceName+"="+name), &slices},
		{"/apis/networking.k8s.io/v1/namespaces/" + ns + "/networkpolicies", &policies},
	} {
		body, err := f.get(ctx, get.path)
		if err != nil {
			return err
		}
		err = json.NewDecoder(body).Decode(get.into)
		_ = body.Close() // it was read, or its error is told
		if err != nil {
			return err
		}
	}
	o.Pods, o.Slices, o.Policies = pods.Items, slices.Items, policies.Items
	s := packet.Explain(&o)
	if f.output == "json" {
		return json.NewEncoder(std.Out).Encode(s)
	}
	packet.Render(std.Out, s)
	return nil
}
