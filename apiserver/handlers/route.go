// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"

	"keelson/api/patch"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
)

// checkRoute rejects a request for which Kubernetes has no route, before the body is read. Routes depend on method,
// Content-Type and Accept. If the row has RoutedByPath, they depend on the path only.
func checkRoute(r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	if rq.Name != "" && rq.Subresource == "" {
		wrong := path.IsValidPathSegmentName(rq.Name) //nolint:staticcheck // clients know its messages
		if len(wrong) > 0 {
			return apierrors.NewBadRequest(`Name parameter invalid: "` + rq.Name + `": ` + strings.Join(wrong, ";"))
		}
	}
	if res.RoutedByPath {
		return nil
	}
	if r.Method == http.MethodHead && !isConnect(rq, res) {
		return wire.MethodNotAllowed()
	}
	if rq.Verb == "patch" && !isConnect(rq, res) {
		if !slices.Contains(patch.Types, patchType(r)) {
			return wire.UnsupportedRoute()
		}
	}
	if media := responseMedia(rq, res); len(media) > 0 && !wire.Accepts(r, media...) {
		return wire.NotAcceptableRoute(media...)
	}
	return nil
}

// The media types of responses, as listed in a 406.
var (
	objectMedia = []string{wire.TypeJSON, wire.TypeYAML, wire.TypeProto}
	listMedia   = append(slices.Clone(objectMedia), wire.TypeJSON+";stream=watch", wire.TypeProto+";stream=watch")
	logMedia    = append([]string{"text/plain"}, objectMedia...)
)

// responseMedia are the media types of a response; none for streams, which negotiate their own.
func responseMedia(rq *pipeline.Request, res *resources.Resource) []string {
	switch {
	case rq.Subresource == "log":
		return logMedia
	case isConnect(rq, res):
		return nil
	case rq.Name == "" && (rq.Verb == "list" || rq.Verb == "watch"):
		return listMedia
	}
	return objectMedia
}

// isConnect reports whether a request opens a stream or is proxied, whatever its method.
func isConnect(rq *pipeline.Request, res *resources.Resource) bool {
	return rq.Subresource != "" && slices.ContainsFunc(res.Subresources, func(s resources.Sub) bool {
		return s.Name == rq.Subresource && s.Connect
	})
}
