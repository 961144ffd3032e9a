// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Config is a parsed EncryptionConfiguration.
type Config struct{ entries []entry }

// entry is one element of resources.
type entry struct {
	resources []schema.GroupResource // "*" stands for any
	providers []provider
}

// The file format (apiserver.config.k8s.io/v1 EncryptionConfiguration).
type (
	file struct {
		metav1.TypeMeta `json:",inline"`
		Resources       []fileResources `json:"resources"`
	}
	fileResources struct {
		Resources []string       `json:"resources"`
		Providers []fileProvider `json:"providers"`
	}
	fileProvider struct {
		AESGCM    *fileKeys `json:"aesgcm,omitempty"`
		AESCBC    *fileKeys `json:"aescbc,omitempty"`
		Secretbox *fileKeys `json:"secretbox,omitempty"`
		Identity  *struct{} `json:"identity,omitempty"`
		KMS       any       `json:"kms,omitempty"`
	}
	fileKeys struct {
		Keys []fileKey `json:"keys"`
	}
	fileKey struct {
		Name   string `json:"name"`
		Secret string `json:"secret"`
	}
)

// Load reads an EncryptionConfiguration file.
func Load(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read encryption configuration: %w", err)
	}
	c, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("encryption configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse parses a configuration. Errors name the location, never a key's secret.
func Parse(b []byte) (*Config, error) {
	var f file
	if err := yaml.UnmarshalStrict(b, &f); err != nil {
		return nil, fmt.Errorf("it is not of the form of an EncryptionConfiguration%s", sanitizeError(err))
	}
	if f.Kind != "EncryptionConfiguration" || f.APIVersion != "apiserver.config.k8s.io/v1" {
		return nil, fmt.Errorf("it is a %s of %s, not an EncryptionConfiguration of apiserver.config.k8s.io/v1",
			f.Kind, f.APIVersion)
	}
	if len(f.Resources) == 0 {
		return nil, errors.New("resources: at least one is needed")
	}
	c := &Config{}
	for i, r := range f.Resources {
		e, err := readEntry(r)
		if err != nil {
			return nil, fmt.Errorf("resources[%d]%w", i, err)
		}
		c.entries = append(c.entries, e)
	}
	return c, nil
}

func readEntry(r fileResources) (entry, error) {
	var e entry
	if len(r.Resources) == 0 {
		return e, errors.New(".resources: at least one is needed")
	}
	if len(r.Providers) == 0 {
		return e, errors.New(".providers: at least one is needed")
	}
	for i, name := range r.Resources {
		gr := schema.ParseGroupResource(name)
		if name == "" || gr.Resource == "" || gr.Group == "*" && gr.Resource != "*" || strings.Contains(name, "/") ||
			strings.ToLower(name) != name {
			return e, fmt.Errorf(".resources[%d]: %q is no resource: RESOURCE, RESOURCE.GROUP, *.GROUP, *. or *.* are",
				i, name)
		}
		if name == "*" {
			return e, fmt.Errorf(".resources[%d]: use '*.' to encrypt all the resources from core API group or *.* "+
				"to encrypt all resources", i)
		}
		e.resources = append(e.resources, gr)
	}
	for i, p := range r.Providers {
		made, err := readProvider(p)
		if err != nil {
			return e, fmt.Errorf(".providers[%d]%w", i, err)
		}
		e.providers = append(e.providers, made)
	}
	return e, nil
}

func readProvider(p fileProvider) (provider, error) {
	var out provider
	set := 0
	var err error
	for _, c := range []struct {
		cipher string
		keys   *fileKeys
		sizes  []int
		make   func([]byte) (box, error)
	}{
		{"aesgcm", p.AESGCM, []int{16, 24, 32}, newGCM},
		{"aescbc", p.AESCBC, []int{16, 24, 32}, newCBC},
		{"secretbox", p.Secretbox, []int{32}, newNaCl},
	} {
		if c.keys == nil {
			continue
		}
		set++
		if out, err = readKeys(c.cipher, c.keys.Keys, c.sizes, c.make); err != nil {
			return nil, err
		}
	}
	if p.Identity != nil {
		set++
		out = identity{}
	}
	if p.KMS != nil {
		return nil, errors.New(": kms is not supported")
	}
	if set != 1 {
		return nil, errors.New(": exactly one of aesgcm, aescbc, secretbox and identity is needed")
	}
	return out, nil
}

func readKeys(cipher string, keys []fileKey, sizes []int, newBox func([]byte) (box, error)) (provider, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf(".%s.keys: at least one is needed", cipher)
	}
	out := &keyedProvider{prefix: prefix + cipher + ":v1:"}
	seen := map[string]bool{}
	for i, k := range keys {
		at := fmt.Sprintf(".%s.keys[%d]", cipher, i)
		if k.Name == "" || strings.Contains(k.Name, ":") || seen[k.Name] {
			return nil, fmt.Errorf("%s.name: %q is empty, there twice, or has a ':' in it", at, k.Name)
		}
		seen[k.Name] = true
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		if err != nil {
			return nil, fmt.Errorf("%s.secret: it is not base64", at)
		}
		fits := false
		for _, n := range sizes {
			fits = fits || n == len(secret)
		}
		if !fits {
			return nil, fmt.Errorf("%s.secret: it has %d bytes, must have one of %v", at, len(secret), sizes)
		}
		b, err := newBox(secret)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		out.keys = append(out.keys, namedBox{k.Name, keyID(cipher, k.Name, secret), b})
	}
	return out, nil
}

// keyID says which key it is: stored values name a key by its cipher and name. The key cannot be found from it.
func keyID(cipher, name string, secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s:%s", cipher, name) // a hash takes everything
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// KeyIDs are the keys that new values are encrypted with, and those that stored values can be read with.
func (c *Config) KeyIDs() (writes, reads []string) {
	for _, e := range c.entries {
		for i, p := range e.providers {
			keyed, ok := p.(*keyedProvider)
			if !ok {
				continue
			}
			for j, k := range keyed.keys {
				if i == 0 && j == 0 {
					writes = append(writes, k.id)
				}
				reads = append(reads, k.id)
			}
		}
	}
	slices.Sort(writes)
	slices.Sort(reads)
	return slices.Compact(writes), slices.Compact(reads)
}

// providers are those of the first entry that matches gr; none: it is not encrypted.
func (c *Config) providers(gr schema.GroupResource) []provider {
	for _, e := range c.entries {
		for _, r := range e.resources {
			if (r.Group == "*" || r.Group == gr.Group) && (r.Resource == "*" || r.Resource == gr.Resource) {
				return e.providers
			}
		}
	}
	return nil
}

// errorDetail matches parts of a decoder's error that cannot contain a secret: a line number or a field name.
var errorDetail = regexp.MustCompile(`line \d+|unknown field "[A-Za-z0-9_.-]+"|key "[A-Za-z]+" already set`)

func sanitizeError(err error) string {
	if at := errorDetail.FindString(err.Error()); at != "" {
		return ": " + at
	}
	return ""
}
