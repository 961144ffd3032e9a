// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestRoutes: each path has one handler, whatever the order in which the routes are given.
func TestRoutes(t *testing.T) {
	routes := []Route{
		{Path: "/keelson/v1/", Handler: http.NotFoundHandler()},
		{Path: "/keelson/v1/ask/whatif", Handler: http.NotFoundHandler(), Heavy: true},
	}
	if err := checkRoutes(routes); err != nil {
		t.Error(err)
	}
	if got := heavy(routes); !slices.Equal(got, []string{"/keelson/v1/ask/whatif"}) {
		t.Errorf("heavy paths: %q", got)
	}
	others := paths{routes: append(routes, routes[0])}
	if _, err := others.handler(); err == nil || !strings.Contains(err.Error(), "path /keelson/v1/ of the API server") {
		t.Errorf("a path with two handlers: %v", err)
	}
}
