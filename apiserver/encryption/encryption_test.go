// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/store"
	"keelson/store/embed"
	"keelson/store/storetest"
)

func secret(c byte, n int) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(c), n)))
}

func configOf(t testing.TB, providers string) *Config {
	t.Helper()
	c, err := Parse([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- " +
		"resources: [secrets, '*.apps']\n  providers:\n" + providers))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func resourceOf(key string) schema.GroupResource {
	parts := strings.Split(key, "/")
	if len(parts) > 2 && parts[2] == "deployments" {
		return schema.GroupResource{Group: "apps", Resource: "deployments"}
	}
	if len(parts) > 2 {
		return schema.GroupResource{Resource: parts[2]}
	}
	return schema.GroupResource{}
}

func inner(t testing.TB) store.Store {
	t.Helper()
	s, err := embed.Open(embed.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestStore: an encrypted store is a store.
func TestStore(t *testing.T) {
	all, err := Parse([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- " +
		"resources: ['*.*']\n  providers:\n  - secretbox: {keys: [{name: a, secret: " + secret('a', 32) + "}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, func(t *testing.T) store.Store { return New(inner(t), all, resourceOf) })
}

func TestProviders(t *testing.T) {
	a := secret('a', 32)
	b := secret('b', 32)
	for _, c := range []struct{ name, providers, begins string }{
		{
			"secretbox", "  - secretbox: {keys: [{name: k1, secret: " + a + "}]}\n  - identity: {}\n",
			"k8s:enc:secretbox:v1:k1:",
		},
		{"aesgcm", "  - aesgcm: {keys: [{name: k1, secret: " + a + "}]}\n  - identity: {}\n", "k8s:enc:aesgcm:v1:k1:"},
		{
			"aesgcm-16", "  - aesgcm: {keys: [{name: k1, secret: " + secret('a', 16) + "}]}\n  - identity: {}\n",
			"k8s:enc:aesgcm:v1:k1:",
		},
		{"aescbc", "  - aescbc: {keys: [{name: k1, secret: " + a + "}]}\n  - identity: {}\n", "k8s:enc:aescbc:v1:k1:"},
		{"identity", "  - identity: {}\n  - secretbox: {keys: [{name: k1, secret: " + a + "}]}\n", "plain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := inner(t)
			st := New(raw, configOf(t, c.providers), resourceOf)
			ctx := t.Context()
			for i, value := range []string{"plain", "plain of 16 byte", "plain" + strings.Repeat("x", 5000)} {
				key := fmt.Sprintf("/registry/secrets/default/s%d", i)
				if _, err := st.Create(ctx, key, []byte(value)); err != nil {
					t.Fatal(err)
				}
				stored, _, err := raw.Get(ctx, key, 0)
				if err != nil || !strings.HasPrefix(string(stored.Value), c.begins) ||
					c.begins != "plain" && strings.Contains(string(stored.Value), "plain") {
					t.Errorf("stored %.60q, %v", stored.Value, err)
				}
				got, _, err := st.Get(ctx, key, 0)
				if err != nil || string(got.Value) != value || got.Stale {
					t.Errorf("read back %.60q (stale %v), %v", got.Value, got.Stale, err)
				}
			}
			// Written before encryption was on.
			if _, err := raw.Create(ctx, "/registry/secrets/default/old", []byte("old")); err != nil {
				t.Fatal(err)
			}
			got, _, err := st.Get(ctx, "/registry/secrets/default/old", 0)
			if err != nil || string(got.Value) != "old" || got.Stale != (c.name != "identity") {
				t.Errorf("an old value: %q, stale %v, %v", got.Value, got.Stale, err)
			}
			// Others are left alone.
			if _, err := st.Create(ctx, "/registry/pods/default/p", []byte("pod")); err != nil {
				t.Fatal(err)
			}
			if stored, _, err := raw.Get(ctx, "/registry/pods/default/p", 0); err != nil ||
				string(stored.Value) != "pod" {
				t.Errorf("a pod is stored as %q, %v", stored.Value, err)
			}
		})
	}
	t.Run("rotation", func(t *testing.T) {
		raw := inner(t)
		ctx := t.Context()
		before := New(raw, configOf(t, "  - secretbox: {keys: [{name: k1, secret: "+a+"}]}\n"), resourceOf)
		written, err := before.Create(ctx, "/registry/deployments/default/s", []byte("v"))
		if err != nil {
			t.Fatal(err)
		}
		both := New(raw,
			configOf(t, "  - aesgcm: {keys: [{name: k2, secret: "+b+"}]}\n  - secretbox: {keys: [{name: k1, secret: "+a+
				"}]}\n"), resourceOf)
		kv, _, err := both.Get(ctx, "/registry/deployments/default/s", 0)
		if err != nil || string(kv.Value) != "v" || !kv.Stale {
			t.Fatalf("with both keys: %q, stale %v, %v", kv.Value, kv.Stale, err)
		}
		if _, err := both.Update(ctx, kv.Key, kv.Value, written.Revision); err != nil {
			t.Fatal(err)
		}
		after := New(raw, configOf(t, "  - aesgcm: {keys: [{name: k2, secret: "+b+"}]}\n"), resourceOf)
		if kv, _, err := after.Get(ctx, kv.Key, 0); err != nil || string(kv.Value) != "v" || kv.Stale {
			t.Errorf("with the new key alone: %q, stale %v, %v", kv.Value, kv.Stale, err)
		}
		if _, _, err := before.Get(ctx, kv.Key, 0); err == nil ||
			!strings.Contains(err.Error(), "no matching prefix found") {
			t.Errorf("with the old key alone: %v", err)
		}
		plain := New(raw, configOf(t, "  - identity: {}\n"), resourceOf)
		if _, _, err := plain.Get(ctx, kv.Key, 0); err == nil {
			t.Error("read without a key")
		}
		// A value moved to another key does not open: its place is part of what is sealed.
		stored, _, err := raw.Get(ctx, kv.Key, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Create(ctx, "/registry/deployments/default/moved", stored.Value); err != nil {
			t.Fatal(err)
		}
		if _, _, err := after.Get(ctx, "/registry/deployments/default/moved", 0); err == nil {
			t.Error("a value in another's place was opened")
		}
	})
}

func TestParse(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"
	for text, want := range map[string]string{
		"a: b: c":           "not of the form",
		"a: 1\nb\n":         "not of the form of an EncryptionConfiguration: line 3",
		"kind: Pod":         "it is a Pod",
		head:                "resources: at least one is needed",
		head + "extra: 1\n": `not of the form of an EncryptionConfiguration: unknown field "extra"`,
		head +
			"resources: [{resources: [], providers: [{identity: {}}]}]": "resources[0].resources: at least one",
		head +
			"resources: [{resources: [secrets], providers: []}]": "resources[0].providers: at least one",
		head +
			"resources: [{resources: ['*'], providers: [{identity: {}}]}]": "use '*.'",
		head +
			"resources: [{resources: ['*.*'], providers: [{}]}]": "exactly one of",
		head + "resources: [{resources: [secrets], providers: [{identity: {}, aesgcm: {keys: [{name: a, secret: " +
			"YQ==}]}}]}]": "aesgcm.keys[0].secret: it has 1 bytes, must have one of [16 24 32]",
		head +
			"resources: [{resources: [secrets], providers: [{secretbox: {keys: [{name: a, secret: '!'}]}}]}]": "it is not base64",
		head +
			"resources: [{resources: [secrets], providers: [{secretbox: {keys: [{name: 'a:b', secret: YQ==}]}}]}]": "has a ':' in it",
		head +
			"resources: [{resources: [secrets], providers: [{secretbox: {keys: []}}]}]": "secretbox.keys: at least one",
		head +
			"resources: [{resources: [secrets], providers: [{kms: {name: x}}]}]": "kms is not supported",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	c := configOf(f, "  - secretbox: {keys: [{name: k, secret: "+secret('a', 32)+"}]}\n  - aescbc: {keys: [{name: k, "+
		"secret: "+secret('a', 32)+"}]}\n  - aesgcm: {keys: [{name: k, secret: "+secret('a', 32)+"}]}\n")
	s := New(nil, c, resourceOf)
	for _, p := range c.entries[0].providers {
		sealed, err := p.seal("/registry/secrets/a/b", []byte("hello"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(sealed)
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		_, _, _ = s.decrypt("/registry/secrets/a/b", stored) // must not panic
	})
}

// FuzzParse: a configuration is read or refused, and never both.
func FuzzParse(f *testing.F) {
	key := secret('a', 32)
	f.Add("- resources: [secrets, '*.apps']\n  providers: [{secretbox: {keys: [{name: k, secret: " + key +
		"}]}}, {identity: {}}]\n")
	f.Add("- resources: ['*.']\n  providers: [{aesgcm: {keys: [{name: k, secret: " + key + "}, {name: k, secret: " +
		key + "}]}}]\n")
	f.Add("- resources: [a/b]\n  providers: [{aescbc: {keys: [{name: '', secret: " + key + "x}]}, kms: {}}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(
			[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" + text))
		if (c == nil) == (err == nil) {
			t.Fatalf("%q: got %v and %v", text, c, err)
		}
	})
}
