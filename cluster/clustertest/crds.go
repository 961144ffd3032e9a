// SPDX-License-Identifier: Apache-2.0

package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
)

var crds = schema.GroupVersionResource{
	Group:    "apiextensions.k8s.io",
	Version:  "v1",
	Resource: "customresourcedefinitions",
}

// readDefinitions reads the CustomResourceDefinitions in a file, or in the files of a directory. It skips other
// objects.
func readDefinitions(path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		files = nil
		for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
			found, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
		slices.Sort(files)
	}
	var out []*unstructured.Unstructured
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
		for {
			u := &unstructured.Unstructured{}
			err := docs.Decode(&u.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Base(f), err)
			}
			if u.GetKind() == "CustomResourceDefinition" {
				out = append(out, u)
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is none")
	}
	return out, nil
}

// define creates a definition, unless it exists, and waits until it is served.
func (c *Cluster) define(ctx context.Context, d *unstructured.Unstructured) error {
	all := c.Dynamic.Resource(crds)
	if _, err := all.Create(ctx, d, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for begin := time.Now(); ; {
		got, err := all.Get(ctx, d.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		for _, x := range conditions {
			if m, ok := x.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
				return nil
			}
		}
		if time.Since(begin) > time.Minute {
			return fmt.Errorf("not established within a minute: %v", conditions)
		}
		time.Sleep(time.Millisecond)
	}
}
