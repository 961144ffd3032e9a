// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/auth/rbac/validation"

	"keelson/api/kind"
)

// The functions of this file compare an object of the cluster (have) with the server's (want). They modify have towards
// want and report whether that changed anything. upkeep says for which kinds, and when.

// typed is f for a reconcile or replace function of a row.
func typed[T kind.Object](f func(have, want T) bool) func(have, want kind.Object) bool {
	return func(have, want kind.Object) bool {
		h, ok := have.(T)
		w, same := want.(T)
		return ok && same && f(h, w)
	}
}

// protected reports whether an administrator disabled the reconciliation of a role or binding.
func protected(o kind.Object) bool {
	return o.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false"
}

// reconcileClusterRole adds missing rules, selectors, labels and annotations; extra ones stay.
func reconcileClusterRole(have, want *rbacv1.ClusterRole) bool {
	if protected(have) {
		return false
	}
	changed := addMetadata(have, want)
	changed = addRules(&have.Rules, want.Rules) || changed
	switch {
	case want.AggregationRule == nil && have.AggregationRule != nil:
		have.AggregationRule = nil
		return true
	case want.AggregationRule == nil:
		return changed
	case have.AggregationRule == nil:
		have.AggregationRule = &rbacv1.AggregationRule{}
	}
	return addMissing(&have.AggregationRule.ClusterRoleSelectors, want.AggregationRule.ClusterRoleSelectors) || changed
}

func reconcileRole(have, want *rbacv1.Role) bool {
	if protected(have) {
		return false
	}
	changed := addMetadata(have, want)
	return addRules(&have.Rules, want.Rules) || changed
}

func reconcileClusterRoleBinding(have, want *rbacv1.ClusterRoleBinding) bool {
	if protected(have) {
		return false
	}
	changed := addMetadata(have, want)
	return addMissing(&have.Subjects, want.Subjects) || changed
}

func reconcileRoleBinding(have, want *rbacv1.RoleBinding) bool {
	if protected(have) {
		return false
	}
	changed := addMetadata(have, want)
	return addMissing(&have.Subjects, want.Subjects) || changed
}

// A binding's role cannot change.
func replaceClusterRoleBinding(have, want *rbacv1.ClusterRoleBinding) bool {
	return have.RoleRef != want.RoleRef && !protected(have)
}

func replaceRoleBinding(have, want *rbacv1.RoleBinding) bool {
	return have.RoleRef != want.RoleRef && !protected(have)
}

// addMetadata adds want's labels and annotations that have does not have; it changes no value.
func addMetadata(have, want kind.Object) bool {
	labels, more := union(have.GetLabels(), want.GetLabels())
	if more {
		have.SetLabels(labels)
	}
	annotations, some := union(have.GetAnnotations(), want.GetAnnotations())
	if some {
		have.SetAnnotations(annotations)
	}
	return more || some
}

// union adds the keys of want that have does not have, and reports whether there are any.
func union(have, want map[string]string) (out map[string]string, more bool) {
	out = maps.Clone(want)
	if out == nil {
		return have, false
	}
	maps.Copy(out, have)
	return out, len(out) > len(have)
}

// addRules adds the rules of want that those of have do not cover.
func addRules(have *[]rbacv1.PolicyRule, want []rbacv1.PolicyRule) bool {
	if apiequality.Semantic.DeepEqual(*have, want) {
		return false
	}
	_, missing := validation.Covers(*have, want)
	*have = append(*have, missing...)
	return len(missing) > 0
}

func addMissing[T any](have *[]T, want []T) bool {
	changed := false
	for _, w := range want {
		if !slices.ContainsFunc(*have, func(h T) bool { return apiequality.Semantic.DeepEqual(h, w) }) {
			*have = append(*have, w)
			changed = true
		}
	}
	return changed
}

func replaceField[T any](have *T, want T) bool {
	if apiequality.Semantic.DeepEqual(*have, want) {
		return false
	}
	*have = want
	return true
}

func reconcileFlowSchema(have, want *flowcontrolv1.FlowSchema) bool {
	mandatory := want.Name == flowcontrolv1.FlowSchemaNameExempt || want.Name == flowcontrolv1.FlowSchemaNameCatchAll
	return reconcileSpec(have, &have.Spec, want.Spec, mandatory)
}

func reconcilePriorityLevel(have, want *flowcontrolv1.PriorityLevelConfiguration) bool {
	mandatory := want.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt ||
		want.Name == flowcontrolv1.PriorityLevelConfigurationNameCatchAll
	return reconcileSpec(have, &have.Spec, want.Spec, mandatory)
}

// reconcileSpec restores the spec and the annotation of a mandatory object. A suggested one belongs to the
// administrator if its annotation says "false", or says nothing and its spec was changed.
func reconcileSpec[T any](have kind.Object, spec *T, want T, mandatory bool) bool {
	annotation, err := strconv.ParseBool(have.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	automatic := annotation
	switch {
	case mandatory:
		automatic = true
	case err != nil:
		automatic = have.GetGeneration() == 1
	}
	changed := automatic && replaceField(spec, want)
	if err == nil && annotation == automatic {
		return changed
	}
	annotations := maps.Clone(have.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(automatic)
	have.SetAnnotations(annotations)
	return true
}

// strayFlowControl reports whether a FlowSchema or PriorityLevelConfiguration belongs to the server, which has none of
// that name: an earlier version made it.
func strayFlowControl(have kind.Object) bool {
	own, err := strconv.ParseBool(have.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return err == nil && own
}

// reconcileServiceCIDR adds a second IP family; other ranges stay.
func reconcileServiceCIDR(have, want *networkingv1.ServiceCIDR) bool {
	return len(have.Spec.CIDRs) == 1 && len(want.Spec.CIDRs) == 2 && have.Spec.CIDRs[0] == want.Spec.CIDRs[0] &&
		replaceField(&have.Spec.CIDRs, want.Spec.CIDRs)
}

// deprecated, but still read by clients
func reconcileOwnEndpoints(have, want *corev1.Endpoints) bool {
	changed := replaceField(&have.Labels, want.Labels)
	return replaceField(&have.Subsets, want.Subsets) || changed
}

func reconcileOwnSlice(have, want *discoveryv1.EndpointSlice) bool {
	changed := replaceField(&have.Labels, want.Labels)
	changed = replaceField(&have.Endpoints, want.Endpoints) || changed
	return replaceField(&have.Ports, want.Ports) || changed
}

// An EndpointSlice's address type cannot change.
func replaceOwnSlice(have, want *discoveryv1.EndpointSlice) bool {
	return have.AddressType != want.AddressType
}

// RetiredAnnotation has, in a ConfigMap of Config.Objects, the hex SHA-256 of each certificate that is removed from
// the stored ConfigMap, because its key was replaced.
const RetiredAnnotation = "keelson.io/retired-authorities"

// reconcileConfigMap adds the CAs and lists of want to a ConfigMap by which others authenticate requests. Those of
// other servers stay; what is no CA or no list is removed. A date is restored only if it is none.
func reconcileConfigMap(have, want *corev1.ConfigMap) bool {
	changed := false
	retired := strings.Fields(want.Annotations[RetiredAnnotation])
	for key, value := range want.Data {
		merged := have.Data[key]
		switch {
		case strings.HasSuffix(key, "client-ca-file"):
			merged = mergeAuthorities(merged, value, retired, time.Now())
		case strings.HasPrefix(key, "requestheader-"):
			merged = mergeLists(merged, value)
		default:
			if _, err := time.Parse(time.DateOnly, merged); err != nil {
				merged = value
			}
		}
		if merged == have.Data[key] {
			continue
		}
		if have.Data == nil {
			have.Data = map[string]string{}
		}
		have.Data[key] = merged
		changed = true
	}
	return changed
}

// expiredGrace is how long an expired CA stays.
const expiredGrace = 5 * time.Minute

// mergeAuthorities is have with the CAs of want and without retired ones; have itself if that changes nothing.
func mergeAuthorities(have, want string, retired []string, now time.Time) string {
	blocks, clean := authorities(have, now)
	before := len(blocks)
	blocks = slices.DeleteFunc(blocks, func(b []byte) bool {
		sum := sha256.Sum256(b)
		return slices.Contains(retired, hex.EncodeToString(sum[:]))
	})
	clean = clean && len(blocks) == before
	for _, own := range first(authorities(want, now)) {
		if !slices.ContainsFunc(blocks, func(b []byte) bool { return bytes.Equal(b, own) }) {
			blocks = append(blocks, own)
			clean = false
		}
	}
	if clean {
		return have
	}
	var out bytes.Buffer
	for _, b := range blocks {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: b}) // a Buffer takes everything
	}
	return out.String()
}

func first[A, B any](a A, _ B) A { return a }

// authorities are the certificates in text that have not expired; clean reports whether there is nothing else.
func authorities(text string, now time.Time) (blocks [][]byte, clean bool) {
	clean = true
	rest := []byte(text)
	for {
		block, after := pem.Decode(rest)
		if block == nil {
			return blocks, clean && len(bytes.TrimSpace(rest)) == 0
		}
		clean = clean && bytes.HasPrefix(bytes.TrimSpace(rest), []byte("-----BEGIN"))
		rest = after
		certificate, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil || now.After(certificate.NotAfter.Add(expiredGrace)) {
			clean = false
			continue
		}
		blocks = append(blocks, block.Bytes)
	}
}

// mergeLists is the JSON list have with the items of want.
func mergeLists(have, want string) string {
	var list, own []string
	if json.Unmarshal([]byte(want), &own) != nil || json.Unmarshal([]byte(have), &list) != nil {
		return want
	}
	if !addMissing(&list, own) {
		return have
	}
	merged, err := json.Marshal(list)
	if err != nil {
		return want
	}
	return string(merged)
}
