// SPDX-License-Identifier: Apache-2.0

// Package fakenode is what a command does with fake nodes (keelson/simulate) from outside: how many there are and their
// names, as a flag states them, and the end and return of one. It knows a cluster by its API, and runs no node.
package fakenode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/api/metrics"
	"keelson/simulate"
)

// Silence makes a fake node behave as after a power failure: its last lease is valid for last. With last 0 the node
// recovers.
func Silence(ctx context.Context, to *rest.Config, name string, last time.Duration) error {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	return silence(ctx, cl, name, last)
}

func silence(ctx context.Context, cl kubernetes.Interface, name string, last time.Duration) error {
	n, err := cl.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %q: `keelson kubectl get nodes` lists them", name)
	case err != nil:
		return fmt.Errorf("read node %s: %w", name, err)
	case !metrics.Fake(n):
		return fmt.Errorf("node %s is a machine and not simulated: stop or start its kubelet there (`keelson down`, "+
			"`keelson up` or `keelson kubelet`)", name)
	}
	var value any // null removes the annotation
	if last > 0 {
		value = last.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{simulate.AnnotationSilent: value}},
	})
	if err != nil {
		return err
	}
	if _, err := cl.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", name, err)
	}
	return nil
}

// Parse parses a number of fake nodes, names, or both: "3", "node01,node02", "node01,100".
func Parse(text string) (count int, names []string, err error) {
	counted := false
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		n, err := strconv.Atoi(part)
		switch {
		case err == nil && counted:
			return 0, nil, fmt.Errorf("%q has two numbers of fake nodes", text)
		case err == nil:
			count = n
			counted = true
		case part == "":
			return 0, nil, fmt.Errorf("%q is not a number of fake nodes, nor names of them (node01,node02)", text)
		default:
			names = append(names, part)
		}
	}
	return count, names, nil
}

// Validate returns one sentence for each error in a number of numbered nodes and the names of others. own is the name
// of this machine's node; empty: it is none.
func Validate(count int, names []string, own string) error {
	var errs []error
	if n := count + len(names); count < 0 || n > 20000 {
		errs = append(errs, fmt.Errorf("%d fake nodes: between 0 and 20000 are possible", n))
	}
	seen := map[string]bool{}
	for _, name := range names {
		msgs := validation.IsDNS1123Subdomain(name)
		number, numbered := strings.CutPrefix(name, "fake-")
		n, err := strconv.Atoi(number)
		switch {
		case len(msgs) > 0:
			errs = append(errs, fmt.Errorf("fake node %q: %s", name, strings.Join(msgs, "; ")))
		case seen[name]:
			errs = append(errs, fmt.Errorf("fake node %q is named twice", name))
		case name == own:
			errs = append(errs,
				fmt.Errorf("fake node %q has the name of this machine's node: choose another, or another --node-name",
					name))
		case numbered && err == nil && n < count:
			errs = append(errs, fmt.Errorf("fake node %q has the name of one of those that are numbered", name))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}
