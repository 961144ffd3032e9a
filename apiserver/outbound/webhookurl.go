// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"net/url"
	"path"
)

// WebhookURL returns the endpoint of a webhook that is configured by URL. Its path is cleaned as client-go does, with
// which Kubernetes calls webhooks: a server would redirect https://host//path, and redirects are not followed.
func WebhookURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	u.Path = path.Join("/", u.Path)
	u.RawPath = ""
	return u.String(), nil
}
