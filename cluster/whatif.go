// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/cluster/scheduling"
	"keelson/lib/quantity"
	"keelson/scheduler/whatif"
)

// WhatIf asks what the scheduler would do with a manifest's pods, or with other nodes.
type WhatIf struct {
	// Config is how to reach the cluster.
	Config *rest.Config
	// Manifest may be nil. Namespace is the default for its objects.
	Manifest  io.Reader
	Namespace string
	// Drain and Remove are names of nodes; Add is "N,cpu=AMOUNT,memory=AMOUNT", or empty.
	Drain, Remove []string
	Add           string
	// Scheduler is the configuration of the simulated scheduler.
	Scheduler scheduling.Options
}

// WhatIfAnswer is the result of a WhatIf.
type WhatIfAnswer = whatif.Answer

// WhatIfOutcome is where one pod would go.
type WhatIfOutcome = whatif.Outcome

// whatIfTimeout limits one simulation.
const whatIfTimeout = 2 * time.Minute

// Ask reads the cluster's state and runs the simulation. It changes nothing: its client sends only GET requests.
func (w *WhatIf) Ask(ctx context.Context) (*WhatIfAnswer, error) {
	question := &whatif.Question{Drain: w.Drain, Remove: w.Remove, Reader: whatif.NewReader()}
	var err error
	if question.Add, err = AddedNodes(w.Add); err != nil {
		return nil, err
	}
	if w.Manifest != nil {
		if question.Manifest, err = whatif.ReadManifest(w.Manifest, w.Namespace); err != nil {
			return nil, err
		}
	}
	_, configuration, err := w.Scheduler.Read()
	if err != nil {
		return nil, err
	}
	cfg := rest.CopyConfig(w.Config)
	cfg.Wrap(question.Reader.Wrap)
	cl, err := client.Remote(cfg, "keelson-whatif")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, whatIfTimeout, errors.New("the question took too long"))
	defer cancel()
	return whatif.Ask(ctx, whatif.Config{Client: cl, Configuration: configuration}, question)
}

// maxAddedNodes limits the number of added nodes.
const maxAddedNodes = 5000

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
