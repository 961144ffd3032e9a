// SPDX-License-Identifier: Apache-2.0

package apiextensions

import (
	"encoding/json"
	"fmt"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fromV1beta1 reads a definition as every stock Kubernetes stores it: in v1beta1, which says once what all versions
// have in common.
func fromV1beta1(doc []byte) (*v1.CustomResourceDefinition, error) {
	var old v1beta1.CustomResourceDefinition
	if err := json.Unmarshal(doc, &old); err != nil {
		return nil, fmt.Errorf("read definition: %w", err)
	}
	v1beta1.SetObjectDefaults_CustomResourceDefinition(&old)
	var in internal.CustomResourceDefinition
	if err := v1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&old, &in,
		nil); err != nil {
		return nil, fmt.Errorf("read definition %s: %w", old.Name, err)
	}
	out := &v1.CustomResourceDefinition{}
	if err := v1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(&in, out,
		nil); err != nil {
		return nil, fmt.Errorf("read definition %s: %w", old.Name, err)
	}
	out.TypeMeta = metav1.TypeMeta{}
	return out, nil
}
