// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission/config"
)

// readNodeSelectors decodes the configuration of PodNodeSelector: node selectors by namespace.
func readNodeSelectors(d *config.Document) (map[string]string, error) {
	if d == nil {
		return nil, nil
	}
	var f struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	err := d.DecodePlain(&f)
	return f.Selectors, err
}

// tolerations is the configuration of PodTolerationRestriction.
type tolerations struct {
	metav1.TypeMeta `json:",inline"`
	Default         []corev1.Toleration `json:"default,omitempty"`
	Whitelist       []corev1.Toleration `json:"whitelist,omitempty"`
}

func readTolerations(d *config.Document) (tolerations, error) {
	var t tolerations
	if d == nil {
		return t, nil
	}
	err := d.Decode(&t, schema.GroupVersionKind{
		Group:   "podtolerationrestriction.admission.k8s.io",
		Version: "v1alpha1",
		Kind:    "Configuration",
	})
	return t, err
}
