// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"time"

	"keelson/apiserver/audit"
	"keelson/auth/remote"
	"keelson/lib/option"
)

// Audit configures the audit log.
type Audit struct {
	// PolicyFile is an audit Policy; events are written to LogPath and sent to the service in the kubeconfig
	// WebhookConfigFile.
	PolicyFile, LogPath, WebhookConfigFile string
	// LogMaxSize (MiB) is the size at which the log is rotated; LogMaxAge (days) and LogMaxBackups limit old files; 0:
	// no limit. The defaults are those of Kubernetes since v1.36: a log that is left alone does not fill the disk.
	LogMaxSize, LogMaxAge, LogMaxBackups int
}

func (o *Audit) rows() []option.Row {
	return []option.Row{
		option.New(&o.PolicyFile, "audit-policy-file", "",
			"audit policy: record requests as the Policy in `FILE` says"),
		option.New(&o.LogPath, "audit-log-path", "",
			"write audit events to `FILE`, one JSON document a line; - is standard output"),
		option.New(&o.LogMaxSize, "audit-log-maxsize", 100, "rotate the audit log after `MiB`; 0: never"),
		option.New(&o.LogMaxAge, "audit-log-maxage", 366, "delete rotated audit logs after `DAYS`; 0: never"),
		option.New(&o.LogMaxBackups, "audit-log-maxbackup", 100, "keep at most `N` rotated audit logs; 0: all"),
		option.New(&o.WebhookConfigFile, "audit-webhook-config-file", "",
			"audit webhook: kubeconfig `FILE` of the service that receives audit events"),
	}
}

func (o *Audit) validate() error {
	var errs []error
	if (o.LogPath != "" || o.WebhookConfigFile != "") && o.PolicyFile == "" {
		errs = append(errs, errors.New("an audit log needs a policy: give --audit-policy-file"))
	}
	if o.PolicyFile != "" && o.LogPath == "" && o.WebhookConfigFile == "" {
		errs = append(errs,
			errors.New("an audit policy needs a place for its events: give --audit-log-path or "+
				"--audit-webhook-config-file"))
	}
	if o.LogMaxSize < 0 || o.LogMaxAge < 0 || o.LogMaxBackups < 0 {
		errs = append(errs, errors.New("the bounds of the audit log may not be negative"))
	}
	return errors.Join(errs...)
}

// New returns the auditor; nil: auditing is off. The webhook is called through via.
func (o *Audit) New(via remote.Via) (*audit.Auditor, error) {
	if o.PolicyFile == "" {
		return nil, nil // auditing is off
	}
	policy, err := audit.LoadPolicy(o.PolicyFile)
	if err != nil {
		return nil, err
	}
	var sinks []audit.Sink
	if o.LogPath != "" {
		l, err := audit.OpenLog(audit.LogConfig{
			Path:       o.LogPath,
			MaxSize:    int64(o.LogMaxSize) << 20,
			MaxAge:     time.Duration(o.LogMaxAge) * 24 * time.Hour,
			MaxBackups: o.LogMaxBackups,
		})
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, l)
	}
	if o.WebhookConfigFile != "" {
		w, err := audit.NewWebhook(o.WebhookConfigFile, via)
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, w)
	}
	return audit.New(policy, sinks...), nil
}
