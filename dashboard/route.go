// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// roots are the first parts of paths that are passed to the API server.
var roots = []string{"api", "apis", "openapi", "version", "keelson"}

// questions are the parts of /keelson/v1 that the page uses: they answer questions, with the asker's rights.
var questions = []string{"ask", "timeline", "why"}

const (
	maxPath     = 4 << 10
	maxSegments = 16
)

// What is wrong with a path.
var (
	errPath     = errors.New("this path cannot be read in one way only")
	errNotOurs  = errors.New("the dashboard does not pass this path to the API server")
	errTenant   = errors.New("the dashboard opens nothing of a pod or service: use keelson kubectl port-forward")
	errReadOnly = errors.New("this dashboard is read-only: run keelson dashboard without --read-only")
)

// route is a path of the API server, taken apart.
type route struct {
	segments    []string
	resource    string
	subresource string
}

// path is the path as it is sent.
func (r *route) path() (plain, escaped string) {
	var b strings.Builder
	for _, s := range r.segments {
		b.WriteString("/")
		b.WriteString(url.PathEscape(s))
	}
	return "/" + strings.Join(r.segments, "/"), b.String()
}

// segments takes a path apart. A segment that another server might take for more or less than one is an error.
func segments(escaped string) ([]string, error) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok || len(escaped) > maxPath {
		return nil, errPath
	}
	var out []string
	for part := range strings.SplitSeq(rest, "/") {
		s, err := url.PathUnescape(part)
		if err != nil || s == "" || s == "." || s == ".." || strings.ContainsAny(s, `/\%`) || !utf8.ValidString(s) ||
			strings.ContainsFunc(s, unicode.IsControl) || len(out) == maxSegments {
			return nil, errPath
		}
		out = append(out, s)
	}
	return out, nil
}

// routeOf is where a path leads, if it is one that is passed on.
func routeOf(escaped string) (*route, error) {
	parts, err := segments(escaped)
	if err != nil {
		return nil, err
	}
	r := &route{segments: parts}
	switch first := parts[0]; {
	case !slices.Contains(roots, first):
		return nil, errNotOurs
	case first == "keelson":
		if len(parts) < 3 || parts[1] != "v1" || !slices.Contains(questions, parts[2]) {
			return nil, errNotOurs
		}
		return r, nil
	case first == "api":
		return r, r.object(parts[min(2, len(parts)):])
	case first == "apis":
		return r, r.object(parts[min(3, len(parts)):])
	}
	return r, nil
}

// object finds resource and subresource in what follows the version: [namespaces NAMESPACE] RESOURCE [NAME [SUB]].
func (r *route) object(rest []string) error {
	if len(rest) == 0 { // discovery
		return nil
	}
	if rest[0] == "watch" || rest[0] == "proxy" { // the old ways
		return errNotOurs
	}
	if rest[0] == "namespaces" && len(rest) > 2 && rest[2] != "status" && rest[2] != "finalize" {
		rest = rest[2:]
	}
	r.resource = rest[0]
	const withSub = 3
	if len(rest) >= withSub {
		r.subresource = rest[2]
	}
	switch {
	case r.resource == "proxy" || r.subresource == "proxy" || r.subresource == "portforward":
		return errTenant
	case len(rest) > withSub:
		return errNotOurs
	}
	return nil
}

// opens reports whether a path leads into a container by a websocket.
func (r *route) opens() bool {
	return r.resource == "pods" && (r.subresource == "exec" || r.subresource == "attach")
}

// reviews are resources to which a POST writes nothing.
var reviews = []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}

// writes reports whether a request may change something.
func (r *route) writes(method string) bool {
	switch {
	case r.opens():
		return true
	case method == http.MethodGet || method == http.MethodHead:
		return false
	case method == http.MethodPost && (slices.Contains(reviews, r.resource) || r.segments[0] == "keelson"):
		return false
	}
	return true
}
