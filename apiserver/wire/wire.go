// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes request and response bodies: content negotiation, bytes to objects, objects to
// bytes, Status bodies, and lists and watch frames built from encoded items. pipeline, handlers and discovery call it.
// It knows no storage, no users and no resources.
//
// Invariants:
//  1. Objects passed in are never modified: a missing kind is set in a shallow copy.
//  2. Encoded bytes may be shared between responses and are never modified.
package wire

import (
	"cmp"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Media is an encoding.
type Media uint8

// The supported encodings.
const (
	JSON Media = iota
	YAML
	Proto
)

// The media types in headers.
const (
	TypeJSON  = "application/json"
	TypeYAML  = "application/yaml"
	TypeProto = "application/vnd.kubernetes.protobuf"
)

var mediaTypes = [...]string{JSON: TypeJSON, YAML: TypeYAML, Proto: TypeProto}

// String is the media type.
func (m Media) String() string { return mediaTypes[m] }

// MediaTypeOptions is the form of response that a client requests.
type MediaTypeOptions struct {
	Media  Media
	Pretty bool
	// As, Group and Version name a conversion: as=Table;g=meta.k8s.io;v=v1. As is empty for the object itself.
	As, Group, Version string
	// Stream is the parameter stream ("watch"); Profile the aggregated discovery profile.
	Stream, Profile string
}

// clause is one entry of an Accept header.
type clause struct {
	kind, sub string
	q         float64
	params    map[string]string
}

// Accept chooses the best encoding for an Accept header. ok reports which conversions the endpoint supports; nil: none.
// An empty header means JSON. The second result is false if nothing matches (406).
func Accept(accept string, ok func(MediaTypeOptions) bool) (MediaTypeOptions, bool) {
	switch accept {
	case "", "*/*", TypeJSON, "application/json, */*":
		return MediaTypeOptions{Media: JSON}, true
	case TypeProto, TypeProto + "," + TypeJSON, TypeProto + ", " + TypeJSON:
		return MediaTypeOptions{Media: Proto}, true
	}
	for _, clause := range parseAccept(accept) {
		for m, name := range mediaTypes {
			kind, sub, _ := strings.Cut(name, "/")
			if clause.kind != "*" && clause.kind != kind || clause.sub != "*" && clause.sub != sub {
				continue
			}
			w := MediaTypeOptions{
				Media:   Media(m),
				As:      clause.params["as"],
				Group:   clause.params["g"],
				Version: clause.params["v"],
				Stream:  clause.params["stream"],
				Profile: clause.params["profile"],
				Pretty:  clause.params["pretty"] == "1",
			}
			if w.As == "" && w.Group == "" && w.Version == "" || w.As != "" && ok != nil && ok(w) {
				return w, true
			}
		}
	}
	return MediaTypeOptions{}, false
}

// maxClauses limits the evaluated entries of an Accept header, maxAccept its bytes, because unauthenticated clients can
// send them.
const maxClauses, maxAccept = 100, 8 << 10

func parseAccept(header string) []clause {
	parts := strings.SplitN(header[:min(len(header), maxAccept)], ",", maxClauses+1)
	parts = parts[:min(len(parts), maxClauses)]
	clauses := make([]clause, 0, len(parts))
	for _, part := range parts {
		name, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		kind, sub, _ := strings.Cut(name, "/")
		if name == "*" {
			sub = "*"
		}
		c := clause{
			kind:   kind,
			sub:    sub,
			q:      1,
			params: params,
		}
		if q, found := params["q"]; found {
			if c.q, err = strconv.ParseFloat(q, 64); err != nil || c.q != c.q {
				c.q = 1
			}
		}
		clauses = append(clauses, c)
	}
	slices.SortStableFunc(clauses, func(a, b clause) int {
		return cmp.Or(cmp.Compare(b.q, a.q), cmp.Compare(wildcards(a), wildcards(b)))
	})
	return clauses
}

func wildcards(c clause) int {
	switch {
	case c.kind == "*":
		return 2
	case c.sub == "*":
		return 1
	}
	return 0
}

// Negotiate is Accept for a request, with a Status error if nothing matches. Browsers, curl and ?pretty get indented
// JSON.
func Negotiate(r *http.Request, ok func(MediaTypeOptions) bool) (MediaTypeOptions, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	w, fits := Accept(accept, ok)
	if !fits {
		return MediaTypeOptions{}, notAcceptable(mediaTypes[:]...)
	}
	if w.Media == JSON && !w.Pretty {
		w.Pretty = wantsPretty(r)
	}
	return w, nil
}

// NegotiatePage is Negotiate for a text page that in JSON and YAML has only the forms accepted by ok. text reports the
// former.
func NegotiatePage(r *http.Request, ok func(MediaTypeOptions) bool) (w MediaTypeOptions, text bool, err error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return MediaTypeOptions{}, true, nil
	}
	for _, c := range parseAccept(accept) {
		w := MediaTypeOptions{As: c.params["as"], Group: c.params["g"], Version: c.params["v"]}
		for _, m := range []Media{JSON, YAML} {
			if w.Media = m; (c.kind == "*" || c.kind+"/"+c.sub == m.String() ||
				c.kind == "application" && c.sub == "*") && ok(w) {
				w.Pretty = m == JSON && (c.params["pretty"] == "1" || wantsPretty(r))
				return w, false, nil
			}
		}
		if (c.kind == "*" || c.kind == "text" && (c.sub == "plain" || c.sub == "*")) && w.As == "" {
			return MediaTypeOptions{}, true, nil
		}
	}
	return MediaTypeOptions{}, false, notAcceptable(TypeJSON, TypeYAML, "text/plain")
}

func wantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty=") {
		v := r.URL.Query().Get("pretty")
		return v != "" && v != "0" && v != "false"
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") ||
		strings.HasPrefix(agent, "Mozilla/5.0")
}

// BodyMedia is the encoding of a request body by its Content-Type; an empty type is JSON. False: 415.
func BodyMedia(contentType string) (Media, bool) {
	switch contentType {
	case "", TypeJSON:
		return JSON, true
	case TypeProto:
		return Proto, true
	}
	name, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return 0, false
	}
	i := slices.Index(mediaTypes[:], name)
	return Media(max(i, 0)), i >= 0
}
