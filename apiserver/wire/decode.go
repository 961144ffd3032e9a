// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"keelson/lib/quantity"
	"keelson/lib/yamlalias"
)

// Validation is the handling of unknown and duplicate fields.
type Validation string

// The values of ?fieldValidation=; Warn is the default.
const (
	Ignore Validation = "Ignore"
	Warn   Validation = "Warn"
	Strict Validation = "Strict"
)

var (
	lenientJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{})
	strictJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Strict: true})
	lenientYAML = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true})
	strictYAML = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	protoBody = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
)

func decoder(m Media, v Validation) runtime.Decoder {
	switch {
	case m == Proto:
		return protoBody
	case m == YAML && v == Ignore:
		return lenientYAML
	case m == YAML:
		return strictYAML
	case v == Ignore:
		return lenientJSON
	default:
		return strictJSON
	}
}

// Decode decodes body into a new object of kind gvk, of the same type as into, and sets its kind. Unknown and duplicate
// fields are an error, a warning, or ignored, according to validation. Errors are Status errors (400).
func Decode(body []byte, m Media, validation Validation, gvk schema.GroupVersionKind, into runtime.Object, warn func(
	string,
),
) (runtime.Object, error) {
	if m == JSON {
		if err := checkQuantities(body, gvk, into); err != nil {
			return nil, err
		}
		if decodePlain(body, gvk, into) {
			return into, nil
		}
	}
	if m == YAML {
		defer acquireYAMLSlot()()
		if err := yamlalias.Check(body); err != nil {
			return nil, decodeError(err, nil, gvk, body)
		}
		if doc, err := yaml.YAMLToJSON(body); err == nil { // the decoder reports what is no YAML
			if _, err := CheckDepth(doc); err != nil {
				return nil, err
			}
			if err := checkQuantities(doc, gvk, into); err != nil {
				return nil, err
			}
		}
	}
	if m == Proto {
		if err := checkProto(body, gvk, into); err != nil {
			return nil, err
		}
	}
	obj, actual, err := decoder(m, validation).Decode(body, &gvk, into)
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil || validation == Strict {
			return nil, decodeError(err, actual, gvk, body)
		}
		for _, e := range strict.Errors() {
			warnYAML(e, warn)
		}
	}
	if actual == nil {
		actual = &gvk
	}
	if actual.GroupVersion() != gvk.GroupVersion() {
		return nil, versionMismatch(*actual, gvk)
	}
	if actual.Kind != gvk.Kind {
		return nil, apierrors.NewBadRequest(kindMismatch(*actual, gvk))
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj, nil
}

// decodePlain is the fast path for JSON of kind gvk without unknown or duplicate fields: it decodes directly into a Go
// type. Otherwise it returns false and leaves into unchanged.
func decodePlain(body []byte, gvk schema.GroupVersionKind, into runtime.Object) bool {
	strict, err := kjson.UnmarshalStrict(body, into)
	if err == nil && len(strict) == 0 && into.GetObjectKind().GroupVersionKind() == gvk {
		into.GetObjectKind().SetGroupVersionKind(gvk)
		return true
	}
	reflect.ValueOf(into).Elem().SetZero()
	return false
}

// checkQuantities rejects JSON with a quantity that takes too long to compute with.
func checkQuantities(doc []byte, gvk schema.GroupVersionKind, into runtime.Object) error {
	var named metav1.TypeMeta
	if !quantity.JSONMayExceed(doc) || kjson.UnmarshalCaseSensitivePreserveInts(doc, &named) != nil {
		return nil //nolint:nilerr // the decoder reports what is no JSON
	}
	t := decodedType(runtime.TypeMeta{APIVersion: named.APIVersion, Kind: named.Kind}, gvk, into)
	if t == nil {
		return nil
	}
	if err := quantity.CheckJSON(doc, t); err != nil {
		actual := named.GroupVersionKind()
		return decodeError(err, &actual, gvk, doc)
	}
	return nil
}

func versionMismatch(actual, want schema.GroupVersionKind) error {
	return apierrors.NewBadRequest(
		fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			actual.GroupVersion(), want.GroupVersion()))
}

func kindMismatch(actual, want schema.GroupVersionKind) string {
	return fmt.Sprintf("%s in version %q cannot be handled as a %s: converting (%s.%s) to (%s.%s): unknown conversion",
		actual.Kind, actual.Version, want.Kind, actual.Version, actual.Kind, internal(want.Group), want.Kind)
}

// internal is Kubernetes' package of a group's internal types, which its messages contain.
func internal(group string) string {
	if group == "" || group == "events.k8s.io" {
		return "core"
	}
	name, _, _ := strings.Cut(group, ".")
	return name
}

// decodeError is the error for a body that cannot be decoded, with Kubernetes' message.
func decodeError(err error, actual *schema.GroupVersionKind, want schema.GroupVersionKind, body []byte) error {
	if actual != nil && actual.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", actual.Kind,
			actual.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)",
		want.Kind, err, summary(body)))
}

// summary is the beginning of an undecodable body.
func summary(body []byte) string {
	const most = 30
	switch {
	case len(body) == 0:
		return "<empty>"
	case body[0] == '{' && len(body) > most:
		return string(body[:most]) + " ..."
	case body[0] == '{':
		return string(body)
	case len(body) > most:
		return fmt.Sprintf("%02x ...", body[:most])
	default:
		return fmt.Sprintf("%02x", body)
	}
}

// DecodeDeleteOptions decodes the body of a DELETE. Its kind may be in meta.k8s.io, core or the resource's group.
func DecodeDeleteOptions(body []byte, m Media, gv schema.GroupVersion, into *metav1.DeleteOptions) error {
	want := schema.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: "DeleteOptions"}
	if m == Proto {
		if err := checkProto(body, want, into); err != nil {
			return err
		}
	}
	if m == YAML {
		if err := yamlalias.Check(body); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	_, actual, err := decoder(m, Ignore).Decode(body, &want, into)
	if runtime.IsNotRegisteredError(err) && m != Proto {
		return decodeForeignOptions(body, want, into) // in a custom resource's group
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if actual.Kind != want.Kind {
		return apierrors.NewBadRequest(fmt.Sprintf("decoded object cannot be converted to DeleteOptions: it is a %s",
			actual.Kind))
	}
	return nil
}

// DecodeApply decodes the body of a server-side apply. Duplicate keys are an error, a warning, or ignored, according to
// validation.
func DecodeApply(body []byte, validation Validation, warn func(string)) (*unstructured.Unstructured, error) {
	if u := decodeApplyJSON(body); u != nil {
		return u, nil
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	if err := unmarshalYAML(body, &obj.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if validation == Ignore {
		return obj, nil
	}
	if err := checkStrictYAML(body); err != nil {
		if validation == Strict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
		}
		warnYAML(err, warn)
	}
	return obj, nil
}

// decodeApplyJSON decodes JSON without duplicate keys that means the same as YAML; else it returns nil. YAML decoding
// takes 40 times as long.
func decodeApplyJSON(body []byte) *unstructured.Unstructured {
	if _, err := CheckDepth(body); err != nil {
		return nil
	}
	for _, odd := range []string{`\ud`, `\uD`, `"<<"`} { // surrogates and merge keys
		if bytes.Contains(body, []byte(odd)) {
			return nil
		}
	}
	u := &unstructured.Unstructured{}
	strict, err := kjson.UnmarshalStrict(body, &u.Object)
	if err != nil || len(strict) > 0 || u.Object == nil || hasFloat(u.Object) {
		return nil
	}
	return u
}

// hasFloat reports non-integer numbers, which YAML parses differently.
func hasFloat(v any) bool {
	switch v := v.(type) {
	case float64:
		return true
	case map[string]any:
		for _, member := range v {
			if hasFloat(member) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasFloat)
	}
	return false
}

func strictYAMLToJSON(body []byte) error {
	defer acquireYAMLSlot()()
	if err := yamlalias.Check(body); err != nil {
		return err
	}
	_, err := yaml.YAMLToJSONStrict(body)
	return err
}

func checkStrictYAML(body []byte) error {
	defer acquireYAMLSlot()()
	if err := yamlalias.Check(body); err != nil {
		return err
	}
	return yaml.UnmarshalStrict(body, &map[string]any{})
}

// unmarshalYAML keeps integers as integers.
func unmarshalYAML(body []byte, into *map[string]any) error {
	doc, err := YAMLToJSON(body)
	if err != nil {
		return err
	}
	if _, err := CheckDepth(doc); err != nil {
		return err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, into); err != nil {
		return fmt.Errorf("error unmarshaling JSON: while decoding JSON: %w", err)
	}
	return nil
}

// warnYAML splits a YAML decoder's error list into warnings.
func warnYAML(err error, warn func(string)) {
	text := err.Error()
	for _, prefix := range []string{
		"error converting YAML to JSON: yaml: unmarshal errors:\n", "yaml: unmarshal errors:\n",
	} {
		if list, ok := strings.CutPrefix(text, prefix); ok {
			for line := range strings.SplitSeq(list, "\n") {
				warn(strings.TrimSpace(line))
			}
			return
		}
	}
	warn(text)
}

// decodeForeignOptions decodes DeleteOptions of a group version without Go types.
func decodeForeignOptions(body []byte, want schema.GroupVersionKind, into *metav1.DeleteOptions) error {
	doc, err := YAMLToJSON(body)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(doc, into)
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	got := into.GroupVersionKind()
	if got.Kind == "" { // what is left out is what the request asks for, as in the body of a built-in kind
		got.Kind = want.Kind
	}
	if got.Version == "" {
		got.Group = want.Group
		got.Version = want.Version
	}
	meta := got.Version == "v1" && (got.Group == metav1.GroupName || got.Group == "")
	if got.Kind != want.Kind || !meta && got.GroupVersion() != want.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("decoded object cannot be converted to DeleteOptions: it is %s",
			got))
	}
	return nil
}
