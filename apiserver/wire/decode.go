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
)

// Validation says what happens to unknown and duplicate fields.
type Validation string

// The values of ?fieldValidation=; Warn is the default.
const (
	Ignore Validation = "Ignore"
	Warn   Validation = "Warn"
	Strict Validation = "Strict"
)

var (
	lenientJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})
	strictJSON  = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Strict: true})
	lenientYAML = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true})
	strictYAML  = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	protoBody   = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
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

// Decode reads body into a new object like into, of kind gvk, and fills in its kind. Unknown and duplicate fields are an error,
// reach warn, or are ignored, as v says. Errors are Status errors (400).
func Decode(body []byte, m Media, v Validation, gvk schema.GroupVersionKind, into runtime.Object, warn func(string)) (runtime.Object, error) {
	if m == JSON && decodePlain(body, gvk, into) {
		return into, nil
	}
	if m == YAML {
		defer takeYAML()()
	}
	obj, actual, err := decoder(m, v).Decode(body, &gvk, into)
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil || v == Strict {
			return nil, undecodable(err, actual, gvk, body)
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

// decodePlain reads a body that is JSON of kind gvk, and says so, with no field unknown or given twice, into an object of a Go
// type, without looking for its kind first. Of all others it says false, and leaves into as it was.
func decodePlain(body []byte, gvk schema.GroupVersionKind, into runtime.Object) bool {
	strict, err := kjson.UnmarshalStrict(body, into)
	if err == nil && len(strict) == 0 && into.GetObjectKind().GroupVersionKind() == gvk {
		into.GetObjectKind().SetGroupVersionKind(gvk)
		return true
	}
	reflect.ValueOf(into).Elem().SetZero()
	return false
}

func versionMismatch(actual, want schema.GroupVersionKind) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
		actual.GroupVersion(), want.GroupVersion()))
}

func kindMismatch(actual, want schema.GroupVersionKind) string {
	return fmt.Sprintf("%s in version %q cannot be handled as a %s: converting (%s.%s) to (%s.%s): unknown conversion",
		actual.Kind, actual.Version, want.Kind, actual.Version, actual.Kind, internal(want.Group), want.Kind)
}

// internal is what Kubernetes calls the package of a group's types without a version, which it decodes into.
func internal(group string) string {
	if group == "" || group == "events.k8s.io" {
		return "core"
	}
	name, _, _ := strings.Cut(group, ".")
	return name
}

// undecodable words a body that could not be read as Kubernetes does.
func undecodable(err error, actual *schema.GroupVersionKind, want schema.GroupVersionKind, body []byte) error {
	if actual != nil && actual.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", actual.Kind, actual.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", want.Kind, err, summary(body)))
}

// summary shows the beginning of a body that nobody could read.
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

// DecodeDeleteOptions reads the body of a DELETE, whose kind may be that of meta.k8s.io, of core or of the resource's own group.
func DecodeDeleteOptions(body []byte, m Media, gv schema.GroupVersion, into *metav1.DeleteOptions) error {
	want := schema.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: "DeleteOptions"}
	_, actual, err := decoder(m, Ignore).Decode(body, &want, into)
	if runtime.IsNotRegisteredError(err) && m != Proto {
		return decodeForeignOptions(body, want, into) // of a custom resource's group
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if actual.Kind != want.Kind {
		return apierrors.NewBadRequest(fmt.Sprintf("decoded object cannot be converted to DeleteOptions: it is a %s", actual.Kind))
	}
	return nil
}

// DecodeApply reads the body of a server-side apply. Duplicate keys are an error, reach warn, or are ignored, as v says.
func DecodeApply(body []byte, v Validation, warn func(string)) (*unstructured.Unstructured, error) {
	if u := decodeApplyJSON(body); u != nil {
		return u, nil
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if err := unmarshalYAML(body, &u.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if v == Ignore {
		return u, nil
	}
	if err := checkStrictYAML(body); err != nil {
		if v == Strict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
		}
		warnYAML(err, warn)
	}
	return u, nil
}

// decodeApplyJSON reads a body that is JSON, has no key twice, and means the same when it is read as YAML. Of all others it returns nil. To
// read YAML takes 40 times as long.
func decodeApplyJSON(body []byte) *unstructured.Unstructured {
	if CheckDepth(body) != nil {
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

// hasFloat finds numbers that are not whole: YAML knows other forms of them.
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
	defer takeYAML()()
	_, err := yaml.YAMLToJSONStrict(body)
	return err
}

func checkStrictYAML(body []byte) error {
	defer takeYAML()()
	return yaml.UnmarshalStrict(body, &map[string]any{})
}

// unmarshalYAML keeps whole numbers whole.
func unmarshalYAML(body []byte, into *map[string]any) error {
	doc, err := YAMLToJSON(body)
	if err != nil {
		return err
	}
	if err := CheckDepth(doc); err != nil {
		return err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, into); err != nil {
		return fmt.Errorf("error unmarshaling JSON: while decoding JSON: %w", err)
	}
	return nil
}

// warnYAML takes a YAML decoder's list of complaints apart.
func warnYAML(err error, warn func(string)) {
	text := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: yaml: unmarshal errors:\n", "yaml: unmarshal errors:\n"} {
		if list, ok := strings.CutPrefix(text, prefix); ok {
			for line := range strings.SplitSeq(list, "\n") {
				warn(strings.TrimSpace(line))
			}
			return
		}
	}
	warn(text)
}

// decodeForeignOptions reads DeleteOptions of a group version that has no Go types.
func decodeForeignOptions(body []byte, want schema.GroupVersionKind, into *metav1.DeleteOptions) error {
	doc, err := YAMLToJSON(body)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(doc, into)
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	got := into.GroupVersionKind()
	known := got == want || got.Kind == want.Kind && (got.Group == metav1.GroupName || got.Group == "") && got.Version == "v1"
	if !known && !got.Empty() {
		return apierrors.NewBadRequest(fmt.Sprintf("decoded object cannot be converted to DeleteOptions: it is %s", got))
	}
	return nil
}
