// SPDX-License-Identifier: Apache-2.0

// Package simulation asks what the scheduler would do with other pods or nodes (scheduler/whatif): for `keelson whatif`,
// and at the server, where every user may ask within limits (serve.go). It sends the API only GET requests, with the
// rights of who asks, and changes nothing.
package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/cluster/scheduling"
	"keelson/lib/quantity"
	"keelson/scheduler/whatif"
	"keelson/timeline/ask"
)

// Question is what to simulate, and the body of a request to Path.
type Question struct {
	// Manifest is YAML or JSON. Namespace is the default for its objects.
	Manifest  string `json:"manifest,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Drain and Remove are names of nodes; Add is "N,cpu=AMOUNT,memory=AMOUNT", or empty.
	Drain  []string `json:"drain,omitempty"`
	Remove []string `json:"remove,omitempty"`
	Add    string   `json:"addNodes,omitempty"`
}

// Answer is the result of a Question.
type Answer = whatif.Answer

// Outcome is where one pod would go.
type Outcome = whatif.Outcome

// ReadManifest sets the manifest.
func (q *Question) ReadManifest(in io.Reader) error {
	const tooMuch = 8<<20 + 1 // a byte more than the simulation takes, which says so
	b, err := io.ReadAll(io.LimitReader(in, tooMuch))
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	q.Manifest = string(b)
	return nil
}

// simulate reads the cluster's state by the connection cfg, and runs the simulation.
func (q *Question) simulate(ctx context.Context, cfg *rest.Config, of whatif.Config) (*Answer, error) {
	question := &whatif.Question{Drain: q.Drain, Remove: q.Remove, Reader: whatif.NewReader()}
	var err error
	if question.Add, err = AddedNodes(q.Add); err != nil {
		return nil, err
	}
	if question.Manifest, err = whatif.ReadManifest(strings.NewReader(q.Manifest), q.Namespace); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(question.Reader.Wrap)
	if of.Client, err = client.Remote(cfg, "keelson-whatif"); err != nil {
		return nil, err
	}
	return whatif.Ask(ctx, of, question)
}

// timeout limits one simulation of the command.
const timeout = 2 * time.Minute

// Ask answers the question about the cluster of a connection: at its server if that can, else here. A simulation with
// the configuration of a scheduler runs here, because the file is here, and its extenders are reached from here.
func Ask(
	ctx context.Context, cfg *rest.Config, question *Question, scheduler scheduling.Options,
) (*Answer, error) {
	_, configuration, err := scheduler.Read()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("the question took too long"))
	defer cancel()
	if scheduler.ConfigFile == "" {
		answer, err := askServer(ctx, cfg, question)
		if err == nil || !here(err) {
			return answer, err
		}
	}
	return question.simulate(ctx, cfg, whatif.Config{Configuration: configuration})
}

// askServer asks the server for the answer.
func askServer(ctx context.Context, cfg *rest.Config, question *Question) (*Answer, error) {
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	body, err := ask.Post(ctx, hc, cfg.Host, Path, question)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	out := &Answer{}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return out, nil
}

// here reports whether the simulation is to run in this process: the server does not know the question (another
// server, an older one), or it is more than the server takes. A refusal for lack of rights comes again here, and names
// the right.
func here(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return errors.Is(err, ask.ErrNoPage)
	}
	switch status.Status().Code {
	case http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
		http.StatusTooManyRequests, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Limits of added nodes: their number, and the resources and labels of each.
const (
	maxAddedNodes = 5000
	maxProperties = 100
)

// AddedNodes returns the nodes that "N,cpu=8,memory=32Gi" describes: added-1 and so on, with 110 pods each unless
// stated. A key is a resource name, or "label:KEY" for a label.
func AddedNodes(text string) ([]*corev1.Node, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, ",")
	n, err := strconv.Atoi(parts[0])
	if err != nil || n < 1 || n > maxAddedNodes {
		return nil, fmt.Errorf("%q is no number of nodes from 1 to %d", parts[0], maxAddedNodes)
	}
	if len(parts) > 1+maxProperties {
		return nil, fmt.Errorf("added nodes have %d resources and labels, more than %d", len(parts)-1, maxProperties)
	}
	has := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	labels := map[string]string{corev1.LabelOSStable: "linux"}
	for _, part := range parts[1:] {
		key, value, ok := strings.Cut(part, "=")
		label, isLabel := strings.CutPrefix(key, "label:")
		switch {
		case !ok || key == "" || isLabel && label == "":
			return nil, fmt.Errorf("%q is not of the form RESOURCE=AMOUNT or label:KEY=VALUE", part)
		case isLabel:
			labels[label] = value
		default:
			q, err := quantity.Parse(value)
			if err != nil || q.Sign() < 0 {
				return nil, fmt.Errorf("%s: %q is no amount", key, value)
			}
			has[corev1.ResourceName(key)] = q
		}
	}
	var out []*corev1.Node
	for i := range n {
		name := fmt.Sprintf("added-%d", i+1)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{}},
			Status:     corev1.NodeStatus{Allocatable: has, Capacity: has},
		}
		maps.Copy(node.Labels, labels)
		node.Labels[corev1.LabelHostname] = name
		out = append(out, node)
	}
	return out, nil
}
