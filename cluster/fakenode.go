// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/api/metrics"
	"keelson/simulate"
)

// SilenceNode makes a fake node behave as one whose power fails: its last lease lasts for last more. With last 0 the node comes back.
func SilenceNode(ctx context.Context, to *rest.Config, name string, last time.Duration) error {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	return silenceNode(ctx, cl, name, last)
}

func silenceNode(ctx context.Context, cl kubernetes.Interface, name string, last time.Duration) error {
	n, err := cl.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %q: `keelson kubectl get nodes` lists them", name)
	case err != nil:
		return fmt.Errorf("read node %s: %w", name, err)
	case !metrics.Fake(n):
		return fmt.Errorf("node %s is a machine and not simulated: stop or start its kubelet there (`keelson down`, `keelson up` or `keelson kubelet`)", name)
	}
	var value any // null takes the annotation away
	if last > 0 {
		value = last.String()
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{simulate.AnnotationSilent: value}}})
	if err != nil {
		return err
	}
	if _, err := cl.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", name, err)
	}
	return nil
}
