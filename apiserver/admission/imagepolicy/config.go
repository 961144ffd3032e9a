// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"fmt"
	"time"

	"keelson/apiserver/admission/config"
)

// Config configures the webhook.
type Config struct {
	// KubeConfigFile names the service.
	KubeConfigFile string
	// AllowTTL and DenyTTL are how long answers are cached; 0: not at all.
	AllowTTL, DenyTTL time.Duration
	// RetryBackoff is the wait before the first retry.
	RetryBackoff time.Duration
	// DefaultAllow admits pods while the service fails.
	DefaultAllow bool
}

// configuration is the document's format. TTLs are in seconds, the backoff in milliseconds; 0: the default, -1: none.
type configuration struct {
	ImagePolicy struct {
		KubeConfigFile string `json:"kubeConfigFile"`
		AllowTTL       int64  `json:"allowTTL"`
		DenyTTL        int64  `json:"denyTTL"`
		RetryBackoff   int64  `json:"retryBackoff"`
		DefaultAllow   bool   `json:"defaultAllow"`
	} `json:"imagePolicy"`
}

// Read decodes the plugin's configuration, which is required.
func Read(document *config.Document) (Config, error) {
	if document == nil {
		return Config{}, errNoConfig
	}
	var f configuration
	if err := document.DecodePlain(&f); err != nil {
		return Config{}, err
	}
	in := f.ImagePolicy
	c := Config{KubeConfigFile: in.KubeConfigFile, DefaultAllow: in.DefaultAllow}
	for _, v := range []struct {
		into               *time.Duration
		value              int64
		unit               time.Duration
		least, most, plain time.Duration
	}{
		{&c.RetryBackoff, in.RetryBackoff, time.Millisecond, 1, 5 * time.Minute, 500 * time.Millisecond},
		{&c.AllowTTL, in.AllowTTL, time.Second, time.Second, 30 * time.Minute, 5 * time.Minute},
		{&c.DenyTTL, in.DenyTTL, time.Second, time.Second, 30 * time.Minute, 30 * time.Second},
	} {
		switch got := time.Duration(v.value) * v.unit; {
		case v.value == -1:
		case v.value == 0:
			*v.into = v.plain
		case got < v.least || got > v.most:
			return Config{}, document.WrapError(fmt.Errorf("valid value is between %v and %v, got %v", v.least, v.most,
				got))
		default:
			*v.into = got
		}
	}
	return c, nil
}
