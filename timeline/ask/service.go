// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podapi "keelson/api/core/pod"
	"keelson/api/networking/reach"
	"keelson/timeline/packet"
)

// Service explains where packets to a Service go, from API objects, which works on any cluster, and from what Keelson's
// nodes report.
func (c *Caller) Service(ctx context.Context, name string) (*packet.Service, error) {
	ns := url.PathEscape(c.Namespace)
	objects := packet.Objects{Service: &corev1.Service{}}
	var pods corev1.PodList
	var slices discoveryv1.EndpointSliceList
	var policies networkingv1.NetworkPolicyList
	for _, get := range []struct {
		path string
		into any
	}{
		{"/api/v1/namespaces/" + ns + "/services/" + url.PathEscape(name), objects.Service},
		{"/api/v1/namespaces/" + ns + "/pods", &pods},
		{
			"/apis/discovery.k8s.io/v1/namespaces/" + ns + "/endpointslices?labelSelector=" + url.QueryEscape(
				discoveryv1.LabelServiceName+"="+name), &slices,
		},
		{"/apis/networking.k8s.io/v1/namespaces/" + ns + "/networkpolicies", &policies},
	} {
		if err := c.read(ctx, get.path, get.into); err != nil {
			return nil, err
		}
	}
	objects.Pods = pods.Items
	objects.Slices = slices.Items
	objects.Policies = policies.Items
	objects.Unhealthy = c.unhealthy(ctx, ns, objects.Pods)
	s := packet.Explain(&objects)
	s.Serve(&objects, c.nodesServing(ctx, ns, url.PathEscape(name)), time.Now())
	return s, nil
}

// unhealthy are the Unhealthy events of the pods; none if all pods are ready or events may not be read.
func (c *Caller) unhealthy(ctx context.Context, ns string, pods []corev1.Pod) []corev1.Event {
	if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !podapi.Ready(&p) }) {
		return nil
	}
	var events corev1.EventList
	if c.read(ctx, "/api/v1/namespaces/"+ns+"/events?fieldSelector=reason%3DUnhealthy", &events) != nil {
		return nil
	}
	return events.Items
}

// Limits for the questions to nodes about a Service.
const (
	mostNodes   = 32
	nodesAtOnce = 8
	nodeLimit   = 5 * time.Second
)

// nodesServing asks the kubelets for their kernels' rules; none if the nodes cannot be listed.
func (c *Caller) nodesServing(ctx context.Context, ns, name string) []packet.Node {
	var nodes metav1.PartialObjectMetadataList
	body, err := c.Get(ctx, "/api/v1/nodes?limit=1000")
	if err != nil {
		return nil // the user may read only a namespace
	}
	err = json.NewDecoder(body).Decode(&nodes)
	_ = body.Close() // its content was read, or the error was reported
	if err != nil {
		return nil
	}
	var out []packet.Node
	for i := range nodes.Items {
		if nodes.Items[i].Annotations["keelson.dev/simulated-by"] == "" && len(out) < mostNodes {
			out = append(out, packet.Node{Serving: reach.Serving{Node: nodes.Items[i].Name}})
		}
	}
	var work errgroup.Group
	work.SetLimit(nodesAtOnce)
	for i := range out {
		work.Go(func() error {
			if err := c.nodeServing(ctx, ns, name, &out[i].Serving); err != nil {
				out[i].Error = err.Error()
			}
			return nil
		})
	}
	_ = work.Wait() // errors are recorded per node
	return out
}

func (c *Caller) nodeServing(ctx context.Context, ns, name string, into *reach.Serving) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	body, err := c.Get(ctx, "/api/v1/nodes/"+url.PathEscape(into.Node)+"/proxy/keelson/service/"+ns+"/"+name)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("decode its kubelet's answer: %w", err)
	}
	return nil
}
