// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"keelson/apiserver/admission/config"
)

// Credentials authenticate the server to webhooks: users in a kubeconfig, named by the webhook's host and port, such as
// "hook.ns.svc", "hook.example.com:8443", "*.example.com" or "*". A nil *Credentials has none.
type Credentials struct {
	users webhookutil.AuthenticationInfoResolver
}

// configuration is the document's format.
type configuration struct {
	metav1.TypeMeta    `json:",inline"`
	KubeConfigFile     string `json:"kubeConfigFile"`
	StaticManifestsDir string `json:"staticManifestsDir"`
}

var kinds = []schema.GroupVersionKind{
	{Group: "apiserver.config.k8s.io", Version: "v1", Kind: "WebhookAdmissionConfiguration"},
	{Group: "apiserver.config.k8s.io", Version: "v1alpha1", Kind: "WebhookAdmission"},
}

// Read decodes a plugin's configuration and its kubeconfig; nil: no credentials.
func Read(document *config.Document) (*Credentials, error) {
	if document == nil {
		return nil, nil // no credentials are no error
	}
	var f configuration
	if err := document.Decode(&f, kinds...); err != nil {
		return nil, err
	}
	switch {
	case f.StaticManifestsDir != "":
		return nil, document.WrapError(errors.New("staticManifestsDir: webhooks from files are not supported"))
	case f.KubeConfigFile == "":
		return nil, nil // no credentials are no error
	case !filepath.IsAbs(f.KubeConfigFile):
		return nil, document.WrapError(field.Invalid(field.NewPath("kubeConfigFile"), f.KubeConfigFile,
			"must be an absolute file path"))
	}
	users, err := webhookutil.NewDefaultAuthenticationInfoResolver(f.KubeConfigFile)
	if err != nil {
		return nil, document.WrapError(err)
	}
	return &Credentials{users}, nil
}

// service returns the credentials for a Service's port; nil: none.
func (c *Credentials) service(name, namespace string, port int32) (*rest.Config, error) {
	if c == nil {
		return nil, nil // no credentials are no error
	}
	return c.users.ClientConfigForService(name, namespace, int(port))
}

// address returns the credentials for a URL; nil: none.
func (c *Credentials) address(endpoint string) (*rest.Config, error) {
	if c == nil {
		return nil, nil // no credentials are no error
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "443")
	}
	return c.users.ClientConfigFor(host)
}

// withCredentials adds the credentials to transport.
func withCredentials(cfg *rest.Config, transport *http.Transport) (http.RoundTripper, error) {
	if cfg == nil {
		return transport, nil
	}
	own, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	if own != nil {
		transport.TLSClientConfig.Certificates = append([]tls.Certificate(nil), own.Certificates...)
		transport.TLSClientConfig.GetClientCertificate = own.GetClientCertificate
	}
	return rest.HTTPWrappersForConfig(cfg, transport)
}
