// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"keelson/cluster"
)

// apiFlags are the flags about the API server that `up` and `apiserver` share; they are kube-apiserver's, by name and meaning.
func apiFlags(fl *pflag.FlagSet, o *cluster.APIOptions) {
	fl.StringVar(&o.EncryptionConfig, "encryption-provider-config", "", "encrypt resources at rest as the EncryptionConfiguration in `FILE` says")
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
	fl.Var((*negated)(&o.NoAnonymous), "anonymous-auth", "let requests without a credential be judged as those of system:anonymous")
	fl.Lookup("anonymous-auth").NoOptDefVal = "true"
	fl.StringVar(&o.AuthenticationConfig, "authentication-config", "", "believe the tokens of the issuers, and let in the strangers, that the AuthenticationConfiguration in `FILE` names")
	fl.StringVar(&o.AuthorizationConfig, "authorization-config", "", "ask the authorizers that the AuthorizationConfiguration in `FILE` names what users may do")
	fl.StringVar(&o.TracingConfig, "tracing-config-file", "", "send OpenTelemetry spans as the TracingConfiguration in `FILE` says")
	fl.StringVar(&o.AdmissionConfig, "admission-control-config-file", "", "tell admission plugins what the AdmissionConfiguration in `FILE` holds for them")
	fl.StringSliceVar(&o.EnableAdmission, "enable-admission-plugins", nil, "admission `PLUGINS` to run beside the default ones, separated by commas")
	fl.StringSliceVar(&o.DisableAdmission, "disable-admission-plugins", nil, "default admission `PLUGINS` not to run, separated by commas")
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

// apiArgs are the flags of apiFlags that were given in fl, as arguments for another process.
func apiArgs(fl *pflag.FlagSet) []string {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	apiFlags(known, &cluster.APIOptions{})
	var args []string
	fl.Visit(func(f *pflag.Flag) {
		if known.Lookup(f.Name) == nil {
			return
		}
		value := f.Value.String()
		if t := f.Value.Type(); t == "stringSlice" || t == "stringToString" {
			value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}
