// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"time"

	"keelson/apiserver"
	"keelson/apiserver/admission"
	admissionconfig "keelson/apiserver/admission/config"
	"keelson/apiserver/admission/plugins"
	"keelson/apiserver/audit"
	"keelson/apiserver/encryption"
	"keelson/apiserver/pipeline"
	"keelson/auth/authn"
	"keelson/store"
)

// APIOptions are what can be chosen about the API server beside its address; each is kube-apiserver's flag of the same name, and a file
// where that takes one. The zero value is a server without any of it.
type APIOptions struct {
	// Flags are those that the process was started with, for people who look (/flagz); may be nil.
	Flags func() map[string]string
	// EncryptionConfig is an EncryptionConfiguration: which resources are encrypted at rest, and how.
	EncryptionConfig string
	// EncryptionReload reads it again when it changes.
	EncryptionReload bool
	// AuditPolicy is an audit Policy; AuditLog where events are written, AuditWebhook a kubeconfig of a service they are sent to.
	AuditPolicy, AuditLog, AuditWebhook string
	// AuditMaxSize (MB) is when the log begins a new file; AuditMaxAge (days) and AuditMaxBackups bound the old ones; 0: no bound.
	AuditMaxSize, AuditMaxAge, AuditMaxBackups int
	// OIDC: an issuer whose ID tokens are believed, if its IssuerURL is set.
	OIDC authn.OIDCConfig
	// TokenWebhook and AuthorizationWebhook are kubeconfigs of services that judge tokens and requests.
	TokenWebhook, AuthorizationWebhook string
	TokenWebhookTTL                    time.Duration
	// TokenFile lists bearer tokens and whose they are.
	TokenFile string
	// Tokens are about service accounts' tokens.
	Tokens TokenOptions
	// Serving is about the certificates that the API is served with.
	Serving ServingOptions
	// ClientCA holds authorities whose client certificates are believed beside the cluster's own.
	ClientCA string
	// Proxy is about proxies that say who asks, if its CAFile is set.
	Proxy authn.ProxyConfig
	// NoAnonymous refuses requests without a credential.
	NoAnonymous bool
	// AuthenticationConfig is an AuthenticationConfiguration: issuers of tokens, in place of OIDC, and what strangers may ask for.
	AuthenticationConfig string
	// AuthorizationConfig is an AuthorizationConfiguration: who is asked what users may do, in place of the Node authorizer, RBAC and
	// AuthorizationWebhook.
	AuthorizationConfig string
	// AuthorizationModes are who is asked, in order, where no file says so; none: Node, RBAC and the webhook if there is one.
	AuthorizationModes             []string
	AuthorizedTTL, UnauthorizedTTL time.Duration
	// TracingConfig is a TracingConfiguration: where spans go, and how many.
	TracingConfig string
	// EnableAdmission adds admission plugins that are off by default, DisableAdmission takes others away.
	EnableAdmission, DisableAdmission []string
	// AdmissionConfig is an AdmissionConfiguration: what plugins are told beside that.
	AdmissionConfig string
}

// Validate returns one sentence per thing that is wrong.
func (o *APIOptions) Validate() error {
	var errs []error
	if (o.AuditLog != "" || o.AuditWebhook != "") && o.AuditPolicy == "" {
		errs = append(errs, errors.New("an audit log needs a policy: give --audit-policy-file"))
	}
	if o.AuditPolicy != "" && o.AuditLog == "" && o.AuditWebhook == "" {
		errs = append(errs, errors.New("an audit policy needs a place for its events: give --audit-log-path or --audit-webhook-config-file"))
	}
	if o.AuditMaxSize < 0 || o.AuditMaxAge < 0 || o.AuditMaxBackups < 0 {
		errs = append(errs, errors.New("the bounds of the audit log may not be negative"))
	}
	if o.OIDC.IssuerURL == "" && o.OIDC.ClientID != "" || o.OIDC.IssuerURL != "" && o.OIDC.ClientID == "" {
		errs = append(errs, errors.New("--oidc-issuer-url and --oidc-client-id must be given together"))
	}
	if o.AuthenticationConfig != "" && o.OIDC.IssuerURL != "" {
		errs = append(errs, errors.New("--authentication-config and --oidc-* exclude each other: name the issuer in the file"))
	}
	if o.AuthorizationConfig != "" && o.AuthorizationWebhook != "" {
		errs = append(errs, errors.New("--authorization-config and --authorization-webhook-* exclude each other: name the webhook in the file"))
	}
	if o.EncryptionReload && o.EncryptionConfig == "" {
		errs = append(errs, errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"))
	}
	_, err := o.Serving.parse()
	errs = append(errs, err, o.Tokens.validate(), o.validateModes())
	errs = append(errs, plugins.Check(o.EnableAdmission, o.DisableAdmission))
	return errors.Join(errs...)
}

// admission is the chain of admission plugins over the server's own objects, and what it must be told of.
func (o *APIOptions) admission(c plugins.Config) (*admission.Chain, []plugins.Follow, error) {
	c.Enable, c.Disable = o.EnableAdmission, o.DisableAdmission
	if o.AdmissionConfig != "" {
		var err error
		if c.File, err = admissionconfig.Load(o.AdmissionConfig, plugins.Names()); err != nil {
			return nil, nil, err
		}
	}
	return plugins.New(c)
}

// encrypted is st with its values encrypted, if a file says so.
func (l *liveFiles) encrypted(o *APIOptions, st store.Store) (store.Store, error) {
	if o.EncryptionConfig == "" {
		return st, nil
	}
	cfg, err := encryption.Load(o.EncryptionConfig)
	if err != nil {
		return nil, err
	}
	s := encryption.New(st, cfg, apiserver.ResourceOf)
	if o.EncryptionReload {
		f, err := l.add(o.EncryptionConfig, "encryption")
		if err != nil {
			return nil, err
		}
		f.apply = func(_ context.Context, b []byte) error { return s.Apply(b) }
	}
	return s, nil
}

// audit is what records requests; nil: nothing does.
func (o *APIOptions) audit() (*audit.Auditor, error) {
	if o.AuditPolicy == "" {
		return nil, nil //nolint:nilnil // no audit is no error
	}
	policy, err := audit.LoadPolicy(o.AuditPolicy)
	if err != nil {
		return nil, err
	}
	var sinks []audit.Sink
	if o.AuditLog != "" {
		l, err := audit.OpenLog(audit.LogConfig{
			Path: o.AuditLog, MaxSize: int64(o.AuditMaxSize) << 20, MaxAge: time.Duration(o.AuditMaxAge) * 24 * time.Hour, MaxBackups: o.AuditMaxBackups,
		})
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, l)
	}
	if o.AuditWebhook != "" {
		w, err := audit.NewWebhook(o.AuditWebhook)
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, w)
	}
	return audit.New(policy, sinks...), nil
}

// tracing is where spans go; nil: nowhere.
func (o *APIOptions) tracing() (*pipeline.Tracing, error) {
	if o.TracingConfig == "" {
		return nil, nil //nolint:nilnil // no tracing is no error
	}
	return pipeline.LoadTracing(o.TracingConfig)
}
