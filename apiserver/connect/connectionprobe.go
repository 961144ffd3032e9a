// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	podkind "keelson/api/core/pod"
	"keelson/api/networking/reach"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
)

// Limits of a node's response about a connection.
const (
	probeSlack       = 10 * time.Second // added to the time-outs of the connection and of name resolution
	maxProbeResponse = 1 << 20
)

// simulatedBy is the annotation of fake nodes.
const simulatedBy = "keelson.dev/simulated-by"

// probe serves `keelson trace`: it makes the pod's node open one connection from inside the pod. It is unrelated to
// container probes. Authorization and admission treat it like an exec: the caller needs the right to create pods/exec,
// and admission gets the command keelson-probe.
func (c *Connections) probe(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	if r.Method != http.MethodPost {
		return wire.MethodNotAllowed() // a web page could trigger a GET
	}
	requested, err := reach.Parse(r.URL.Query())
	if err != nil {
		return apierrors.NewBadRequest(reach.Param + ": " + err.Error())
	}
	if err := c.admission.Connection(r.Context(), rq, res,
		&corev1.PodExecOptions{Command: requested.Command(), Stdout: true}); err != nil {
		return err
	}
	pod, err := c.probedPod(r.Context(), rq)
	if err != nil {
		return err
	}
	target, err := c.kubelets.target(r.Context(), rq, pod.Spec.NodeName,
		[]string{"keelson", "probe", pod.Namespace, pod.Name}, requested.Values())
	if err != nil {
		return err
	}

	// The kubelet probes from inside the pod's network, and answers when the probe has ended.
	ctx, cancel := context.WithTimeout(r.Context(), 2*requested.Timeout+probeSlack)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.kubelets.Transport().RoundTrip(req)
	if err != nil {
		return proxyError(err, target)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotFound {
		return apierrors.NewBadRequest(fmt.Sprintf("the kubelet of node %s makes no probes, or has no such pod (yet)",
			pod.Spec.NodeName))
	}
	if resp.StatusCode != http.StatusOK {
		return kubeletError(resp, rq)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeResponse))
	if err != nil {
		return proxyError(err, target)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may be gone
	return nil
}

// probedPod returns the request's pod, if it runs on a machine.
func (c *Connections) probedPod(ctx context.Context, rq *pipeline.Request) (*corev1.Pod, error) {
	pod, err := c.served.Pod(ctx, rq.Namespace, rq.Name)
	switch {
	case err != nil:
		return nil, err
	case pod.Spec.NodeName == "":
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	case podkind.Terminal(pod):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s has ended: its phase is %s", pod.Name,
			pod.Status.Phase))
	}
	node, err := c.kubelets.Node(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	if node.Annotations[simulatedBy] != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("node %s of pod %s is simulated: there is no packet to send",
			node.Name, pod.Name))
	}
	return pod, nil
}
