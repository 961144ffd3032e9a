// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/kind"
)

// textTypes are the accepted types for kinds without a Go type.
var textTypes = []string{TypeJSON, TypeYAML}

// NegotiateText is Negotiate for kinds without a Go type, which have no protobuf form; conversions (as=) may have one.
func NegotiateText(r *http.Request, ok func(MediaTypeOptions) bool) (MediaTypeOptions, error) {
	w, err := Negotiate(r, ok)
	if err != nil || w.Media != Proto || w.As != "" {
		return w, err
	}
	var rest []string
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if !strings.Contains(part, TypeProto) || strings.Contains(part, "as=") {
			rest = append(rest, part)
		}
	}
	if w, fits := Accept(strings.Join(rest, ","), ok); fits && len(rest) > 0 {
		return w, nil
	}
	return MediaTypeOptions{}, notAcceptable()
}

// NegotiateStream is negotiate (Negotiate or NegotiateText) for a watch, which has no YAML form.
func NegotiateStream(r *http.Request, ok func(MediaTypeOptions) bool, negotiate func(*http.Request, func(
	MediaTypeOptions,
) bool) (MediaTypeOptions, error),
) (MediaTypeOptions, error) {
	w, err := negotiate(r, ok)
	if err != nil || w.Media != YAML {
		return w, err
	}
	var rest []string
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if !strings.Contains(part, TypeYAML) {
			rest = append(rest, part)
		}
	}
	if w, fits := Accept(strings.Join(rest, ","), ok); fits && len(rest) > 0 && w.Media != YAML {
		return w, nil
	}
	return MediaTypeOptions{}, newStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+TypeJSON+";stream=watch, "+TypeProto+";stream=watch")
}

// DecodeCustom is Decode for kinds without a Go type: read is kind.Kind.Read.
func DecodeCustom(
	body []byte, m Media, validation Validation, gvk schema.GroupVersionKind,
	read func([]byte, bool) (kind.Object, []error, error), warn func(string),
) (kind.Object, error) {
	if m == Proto {
		return nil, UnsupportedMedia(textTypes)
	}
	var strict []error
	doc := body
	if m == YAML {
		var err error
		if doc, err = YAMLToJSON(body); err != nil {
			return nil, decodeError(err, nil, gvk, body)
		}
		if validation != Ignore {
			if err := strictYAMLToJSON(body); err != nil {
				strict = append(strict, err)
			}
		}
	}
	if _, err := CheckDepth(doc); err != nil {
		return nil, err
	}
	says, err := statedKind(doc)
	if err != nil {
		return nil, decodeError(err, nil, gvk, body)
	}
	if says.Kind != "" && says.Version == "" {
		return nil, versionMismatch(says, gvk)
	}
	obj, more, err := read(doc, validation != Ignore)
	if err != nil {
		return nil, decodeError(err, &says, gvk, body)
	}
	actual := obj.GetObjectKind().GroupVersionKind()
	if strict = append(strict, more...); len(strict) > 0 && validation == Strict {
		return nil, decodeError(runtime.NewStrictDecodingError(strict), &actual, gvk, body)
	}
	for _, e := range strict {
		warnYAML(e, warn)
	}
	if actual.GroupVersion() != gvk.GroupVersion() {
		return nil, versionMismatch(actual, gvk)
	}
	if actual.Kind != gvk.Kind {
		return nil, invalid.New(actual.GroupKind(), obj.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("kind"), actual.Kind, "must be "+gvk.Kind),
		})
	}
	return obj, nil
}

// statedKind is the kind in a JSON document.
func statedKind(doc []byte) (schema.GroupVersionKind, error) {
	var is struct { // clients see its tags in error messages
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	if err := json.Unmarshal(doc, &is); err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	gv, err := schema.ParseGroupVersion(is.APIVersion)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return gv.WithKind(is.Kind), nil
}
