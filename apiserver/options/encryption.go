// SPDX-License-Identifier: Apache-2.0

package options

import (
	"context"
	"errors"

	"keelson/apiserver/configreload"
	"keelson/apiserver/encryption"
	"keelson/apiserver/resources"
	"keelson/lib/option"
	"keelson/store"
)

// Encryption configures encryption at rest.
type Encryption struct {
	// ConfigFile is an EncryptionConfiguration.
	ConfigFile string
	// Reload reloads it when it changes.
	Reload bool
}

func (o *Encryption) rows() []option.Row {
	return []option.Row{
		option.New(&o.ConfigFile, "encryption-provider-config", "",
			"encrypt resources at rest as the EncryptionConfiguration in `FILE` says"),
		option.New(&o.Reload, "encryption-provider-config-automatic-reload", false,
			"reload the EncryptionConfiguration when its file changes"),
	}
}

func (o *Encryption) validate() error {
	if o.Reload && o.ConfigFile == "" {
		return errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	return nil
}

// KeyIDs are the keys that this server encrypts with, and those that it can read with; see encryption.KeyIDs. known is
// false where they may change while it runs.
func (o *Encryption) KeyIDs() (writes, reads []string, known bool, err error) {
	if o.ConfigFile == "" || o.Reload {
		return nil, nil, !o.Reload, nil
	}
	cfg, err := encryption.Load(o.ConfigFile)
	if err != nil {
		return nil, nil, false, err
	}
	writes, reads = cfg.KeyIDs()
	return writes, reads, true, nil
}

// Wrap returns st with encryption if there is a ConfigFile.
func (o *Encryption) Wrap(st store.Store, files *configreload.Files) (store.Store, error) {
	if o.ConfigFile == "" {
		return st, nil
	}
	cfg, err := encryption.Load(o.ConfigFile)
	if err != nil {
		return nil, err
	}
	s := encryption.New(st, cfg, resources.OfKey)
	if !o.Reload {
		return s, nil
	}
	return s, files.Configuration(o.ConfigFile, "encryption", func(b []byte) (configreload.Apply, error) {
		return func(_ context.Context, b []byte) error { return s.Apply(b) }, s.Apply(b)
	})
}
