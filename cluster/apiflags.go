// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// flags are kube-apiserver's, by name and meaning.
func (o *APIOptions) flags(fl *pflag.FlagSet) {
	o.Flags = func() map[string]string { return values(fl) }
	fl.StringVar(&o.EncryptionConfig, "encryption-provider-config", "", "encrypt resources at rest as the EncryptionConfiguration in `FILE` says")
	fl.BoolVar(&o.EncryptionReload, "encryption-provider-config-automatic-reload", false, "read it again when it changes")
	fl.StringVar(&o.Serving.CertFile, "tls-cert-file", "", "serve the API with the certificate in `FILE`, in place of the cluster's own")
	fl.StringVar(&o.Serving.KeyFile, "tls-private-key-file", "", "its key, in `FILE`")
	fl.StringArrayVar(&o.Serving.SNI, "tls-sni-cert-key", nil, "show `CERT,KEY[:NAMES]` to clients that ask for its names, or for NAMES; may be repeated")
	fl.StringVar(&o.AuditPolicy, "audit-policy-file", "", "record requests as the audit Policy in `FILE` says")
	fl.StringVar(&o.AuditLog, "audit-log-path", "", "write audit events to `FILE`, one JSON document a line; - is standard output")
	fl.IntVar(&o.AuditMaxSize, "audit-log-maxsize", 100, "begin a new audit log file after `MB`; 0: never")
	fl.IntVar(&o.AuditMaxAge, "audit-log-maxage", 0, "delete old audit log files after `DAYS`; 0: never")
	fl.IntVar(&o.AuditMaxBackups, "audit-log-maxbackup", 0, "keep at most `N` old audit log files; 0: all")
	fl.StringVar(&o.AuditWebhook, "audit-webhook-config-file", "", "send audit events to the service that the kubeconfig `FILE` names")
	fl.StringVar(&o.OIDC.IssuerURL, "oidc-issuer-url", "", "believe the ID tokens of the OpenID Connect issuer at `URL`")
	fl.StringVar(&o.OIDC.ClientID, "oidc-client-id", "", "the audience that such tokens must have")
	fl.StringVar(&o.OIDC.CAFile, "oidc-ca-file", "", "PEM `FILE` with the authorities of the issuer's certificate")
	fl.StringVar(&o.OIDC.UsernameClaim, "oidc-username-claim", "sub", "claim that is the user's name")
	fl.StringVar(&o.OIDC.UsernamePrefix, "oidc-username-prefix", "", "goes before the user's name; - for nothing")
	fl.StringVar(&o.OIDC.GroupsClaim, "oidc-groups-claim", "", "claim that is the user's groups")
	fl.StringVar(&o.OIDC.GroupsPrefix, "oidc-groups-prefix", "", "goes before each group")
	fl.StringToStringVar(&o.OIDC.RequiredClaims, "oidc-required-claim", nil, "`CLAIM=VALUE` that tokens must have; may be repeated")
	fl.StringSliceVar(&o.OIDC.SigningAlgs, "oidc-signing-algs", []string{"RS256"}, "algorithms that tokens may be signed with")
	fl.StringVar(&o.TokenWebhook, "authentication-token-webhook-config-file", "", "ask the service that the kubeconfig `FILE` names about bearer tokens")
	fl.DurationVar(&o.TokenWebhookTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "how long its answers hold")
	fl.StringVar(&o.AuthorizationWebhook, "authorization-webhook-config-file", "", "ask the service that the kubeconfig `FILE` names what users may do")
	fl.DurationVar(&o.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long its permissions hold")
	fl.DurationVar(&o.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long its refusals hold")
	fl.StringVar(&o.TokenFile, "token-auth-file", "", "believe the bearer tokens that the CSV `FILE` lists")
	fl.StringVar(&o.ClientCA, "client-ca-file", "", "believe client certificates of the authorities in `FILE` beside those of the cluster's own")
	proxyFlags(fl, o)
	tokenFlags(fl, &o.Tokens)
	fl.StringSliceVar(&o.AuthorizationModes, "authorization-mode", nil, "ask `WHO`, in this order, what users may do: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny (default Node,RBAC)")
	fl.Var((*negated)(&o.NoAnonymous), "anonymous-auth", "let requests without a credential be judged as those of system:anonymous")
	fl.Lookup("anonymous-auth").NoOptDefVal = "true"
	fl.StringVar(&o.AuthenticationConfig, "authentication-config", "", "believe the tokens of the issuers, and let in the strangers, that the AuthenticationConfiguration in `FILE` names")
	fl.StringVar(&o.AuthorizationConfig, "authorization-config", "", "ask the authorizers that the AuthorizationConfiguration in `FILE` names what users may do")
	fl.StringVar(&o.TracingConfig, "tracing-config-file", "", "send OpenTelemetry spans as the TracingConfiguration in `FILE` says")
	fl.StringVar(&o.AdmissionConfig, "admission-control-config-file", "", "tell admission plugins what the AdmissionConfiguration in `FILE` holds for them")
	fl.StringSliceVar(&o.EnableAdmission, "enable-admission-plugins", nil, "admission `PLUGINS` to run beside the default ones, separated by commas")
	fl.StringSliceVar(&o.DisableAdmission, "disable-admission-plugins", nil, "default admission `PLUGINS` not to run, separated by commas")
}

// flags are about what services are given.
func (o *ServiceOptions) flags(fl *pflag.FlagSet) {
	fl.StringVar(&o.ClusterIPRange, "service-cluster-ip-range", "", "give services addresses of `CIDR`, or of two CIDRs of IPv4 and IPv6 separated by a comma, the default family's first (default 10.96.0.0/16)")
	fl.StringVar(&o.Advertise, "advertise-address", "", "`IP` at which others reach the API server, if something leads from there to it: the endpoint of the service kubernetes")
	fl.StringVar(&o.NodePortRange, "service-node-port-range", "", "give services node ports of `RANGE` (default 30000-32767)")
}

// proxyFlags are about proxies in front of the server.
func proxyFlags(fl *pflag.FlagSet, api *APIOptions) {
	o := &api.Proxy
	fl.StringVar(&o.CAFile, "requestheader-client-ca-file", "", "let proxies with a certificate of the authorities in `FILE` say in headers who asks")
	fl.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", nil, "common `NAMES` that such proxies may have; none: any")
	fl.StringSliceVar(&o.UsernameHeaders, "requestheader-username-headers", []string{"X-Remote-User"}, "`HEADERS` for the user's name")
	fl.StringSliceVar(&o.UIDHeaders, "requestheader-uid-headers", []string{"X-Remote-Uid"}, "`HEADERS` for the user's uid")
	fl.StringSliceVar(&o.GroupHeaders, "requestheader-group-headers", []string{"X-Remote-Group"}, "`HEADERS` for the user's groups")
	fl.StringSliceVar(&o.ExtraPrefixes, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"}, "beginnings of the `HEADERS` for what else is known of the user")
}

// tokenFlags are about the tokens of service accounts.
func tokenFlags(fl *pflag.FlagSet, o *TokenOptions) {
	fl.StringArrayVar(&o.Issuers, "service-account-issuer", nil, "`URL` that tokens of service accounts are from; may be repeated: all are believed, the first one issues")
	fl.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", "", "sign such tokens with the private key in `FILE`, in place of the data directory's")
	fl.StringArrayVar(&o.KeyFiles, "service-account-key-file", nil, "believe tokens that the keys in `FILE` signed, too; may be repeated")
	fl.StringSliceVar(&o.Audiences, "api-audiences", nil, "`AUDIENCES` that tokens for this API name (default the issuers)")
	fl.StringVar(&o.JWKSURI, "service-account-jwks-uri", "", "`URL` at which others find the keys, as the issuer's description says")
	fl.DurationVar(&o.Longest, "service-account-max-token-expiration", 0, "longest life of a token; 0: any")
	fl.Var((*negated)(&o.Short), "service-account-extend-token-expiration", "let the tokens that kubelets ask for pods live a year, and count uses after their hour")
	fl.Lookup("service-account-extend-token-expiration").NoOptDefVal = "true"
}

// negated is a flag that is true where the option is false.
type negated bool

// String is the flag's value.
func (n *negated) String() string { return strconv.FormatBool(!bool(*n)) }

// Set reads the flag's value.
func (n *negated) Set(text string) error {
	v, err := strconv.ParseBool(text)
	*n = negated(!v)
	return err
}

// Type is how the usage text names it.
func (*negated) Type() string { return "bool" }

// values are all flags that people may give, with what they are.
func values(fl *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	fl.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			out[f.Name] = f.Value.String()
		}
	})
	return out
}
