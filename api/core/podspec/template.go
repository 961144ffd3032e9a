// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TemplateColumns are the wide columns of kinds that make pods; TemplateCells fills them. selector describes theirs.
func TemplateColumns(selector string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{
			Name:        "Containers",
			Type:        "string",
			Priority:    1,
			Description: "Names of each container in the template.",
		},
		{
			Name:        "Images",
			Type:        "string",
			Priority:    1,
			Description: "Images referenced by each container in the template.",
		},
		{
			Name:        "Selector",
			Type:        "string",
			Priority:    1,
			Description: selector,
		},
	}
}

// TemplateCells are names and images of t's containers, and the selector.
func TemplateCells(t *corev1.PodTemplateSpec, sel *metav1.LabelSelector) []any {
	names := make([]string, len(t.Spec.Containers))
	images := make([]string, len(t.Spec.Containers))
	for i := range t.Spec.Containers {
		names[i] = t.Spec.Containers[i].Name
		images[i] = t.Spec.Containers[i].Image
	}
	return []any{strings.Join(names, ","), strings.Join(images, ","), metav1.FormatLabelSelector(sel)}
}

// NameWarnings are for names of objects that name pods: pods are also hosts.
func NameWarnings(name string) []string {
	msgs := validation.IsDNS1123Label(name)
	if len(msgs) == 0 {
		return nil
	}
	return []string{
		fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising "+
			"behavior; a DNS label is recommended: %v", msgs),
	}
}
