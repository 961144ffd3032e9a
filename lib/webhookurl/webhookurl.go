// SPDX-License-Identifier: Apache-2.0

// Package webhookurl cleans the URLs by which webhooks are configured. All callers of webhooks use it: those of
// authentication and authorization, of admission and of conversion.
package webhookurl

import (
	"net/url"
	"path"
)

// Clean returns the endpoint of a webhook that is configured by URL. Its path is cleaned as client-go does, with which
// Kubernetes calls webhooks: a server would redirect https://host//path, and redirects are not followed.
func Clean(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	u.Path = path.Join("/", u.Path)
	u.RawPath = ""
	return u.String(), nil
}
