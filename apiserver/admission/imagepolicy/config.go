// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"fmt"
	"time"

	"keelson/apiserver/admission/config"
)

// Config says which service is asked, and what happens when it does not answer.
type Config struct {
	// KubeConfigFile names the service.
	KubeConfigFile string
	// AllowTTL and DenyTTL are how long answers are remembered; 0: not at all.
	AllowTTL, DenyTTL time.Duration
	// RetryBackoff goes before the second question.
	RetryBackoff time.Duration
	// DefaultAllow lets pods pass while the service does not answer.
	DefaultAllow bool
}

// form is the document's. Lives are in seconds, the backoff in milliseconds; 0: the default, -1: none.
type form struct {
	ImagePolicy struct {
		KubeConfigFile string `json:"kubeConfigFile"`
		AllowTTL       int64  `json:"allowTTL"`
		DenyTTL        int64  `json:"denyTTL"`
		RetryBackoff   int64  `json:"retryBackoff"`
		DefaultAllow   bool   `json:"defaultAllow"`
	} `json:"imagePolicy"`
}

// Read reads the plugin's configuration, without which it cannot be.
func Read(d *config.Document) (Config, error) {
	if d == nil {
		return Config{}, errNoConfig
	}
	var f form
	if err := d.DecodePlain(&f); err != nil {
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
			return Config{}, d.Wrong(fmt.Errorf("valid value is between %v and %v, got %v", v.least, v.most, got))
		default:
			*v.into = got
		}
	}
	return c, nil
}
