// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"keelson/api/kind"
)

// textTypes is what kinds without a Go type are read from.
var textTypes = []string{TypeJSON, TypeYAML}

// NegotiateText is Negotiate for kinds without a Go type, which have no protobuf form; conversions (as=) may have one.
func NegotiateText(r *http.Request, ok func(Want) bool) (Want, error) {
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
	return Want{}, notAcceptable()
}

// DecodeCustom is Decode for kinds without a Go type: read is kind.Kind.Read.
func DecodeCustom(
	body []byte, m Media, v Validation, gvk schema.GroupVersionKind, read func([]byte, bool) (kind.Object, []error, error), warn func(string),
) (kind.Object, error) {
	if m == Proto {
		return nil, UnsupportedMedia(textTypes)
	}
	var strict []error
	doc := body
	if m == YAML {
		var err error
		if doc, err = yaml.YAMLToJSON(body); err != nil {
			return nil, undecodable(err, nil, gvk, body)
		}
		if v != Ignore {
			if _, err := yaml.YAMLToJSONStrict(body); err != nil {
				strict = append(strict, err)
			}
		}
	}
	obj, more, err := read(doc, v != Ignore)
	if err != nil {
		return nil, undecodable(err, nil, gvk, body)
	}
	actual := obj.GetObjectKind().GroupVersionKind()
	if strict = append(strict, more...); len(strict) > 0 && v == Strict {
		return nil, undecodable(runtime.NewStrictDecodingError(strict), &actual, gvk, body)
	}
	for _, e := range strict {
		warn(e.Error())
	}
	if actual.GroupVersion() != gvk.GroupVersion() {
		return nil, versionMismatch(actual, gvk)
	}
	if actual.Kind != gvk.Kind {
		return nil, apierrors.NewBadRequest(kindMismatch(actual, gvk))
	}
	return obj, nil
}
