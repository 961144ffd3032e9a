// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"io/fs"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"keelson/runtime/image/manifest"
)

// noSettings are the connections without settings.
func noSettings(t *testing.T) *connections {
	t.Helper()
	c, err := newConnections(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func noFile(path string) ([]byte, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

// TestParseSettings: a registries.yaml as k3s reads it, and that its content reaches a helper process whole.
func TestParseSettings(t *testing.T) {
	s, err := ParseSettings([]byte(`
mirrors:
  docker.io:
    endpoint: ["https://mirror.test:5000/hub", "http://10.0.0.1/v2/cache"]
    rewrite:
      "^library/(.*)": "official/$1"
  "*":
    endpoint: [http://10.0.0.2:5000]
  quay.io: {}
configs:
  mirror.test:5000:
    auth: {username: me, password: secret}
    tls: {insecure_skip_verify: true}
  registry-1.docker.io:
    auth: {identity_token: tok}
  registry.test:443:
    auth: {username: port}
`), noFile)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var copied Settings
	if err := json.Unmarshal(raw, &copied); err != nil || !reflect.DeepEqual(s, copied) {
		t.Errorf("in a helper: %+v, want %+v, %v", copied, s, err)
	}
	r, err := New(copied)
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string][]string{
		"nginx:1": {
			"mirror.test:5000/hub/official/nginx:1", "10.0.0.1/cache/official/nginx:1", "index.docker.io/library/nginx:1",
		},
		"docker.io/me/app:1": {"mirror.test:5000/hub/me/app:1", "10.0.0.1/cache/me/app:1", "index.docker.io/me/app:1"},
		"quay.io/a/b:1":      {"quay.io/a/b:1"},
		"other.test/a:1":     {"10.0.0.2:5000/a:1", "other.test/a:1"},
	} {
		n, err := manifest.ParseName(image)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range r.Endpoints(n) {
			ref, err := e.reference(n)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ref.Name())
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
	for host, want := range map[string]*Auth{
		"mirror.test:5000": {Username: "me", Password: "secret"},
		"docker.io":        {IdentityToken: "tok"},
		"mirror.test":      nil, // another port
		"registry.test":    {Username: "port"},
		"quay.io":          nil,
	} {
		if got := r.login(Endpoint{Host: host}); !reflect.DeepEqual(got, want) {
			t.Errorf("login of %s: %+v, want %+v", host, got, want)
		}
	}
	if r.connections.to(&url.URL{Scheme: "https", Host: "mirror.test:5000"}) == r.connections.home {
		t.Error("the TLS settings of mirror.test are not used")
	}
	if r.connections.to(&url.URL{Scheme: "https", Host: "quay.io"}) != r.connections.home {
		t.Error("quay.io has no TLS settings")
	}
}

// TestParseSettingsRefuses: what is wrong is named, and no secret is repeated.
func TestParseSettingsRefuses(t *testing.T) {
	read := func(path string) ([]byte, error) {
		if path == "ca.pem" {
			return []byte("no certificate"), nil
		}
		return noFile(path)
	}
	for text, want := range map[string]string{
		"mirors: {}":                                                            `unknown field "mirors"`,
		"mirrors: {a: {endpoints: [x]}}":                                        `unknown field "endpoints"`,
		"mirrors: {a: {endpoint: [b.test]}}":                                    `mirror of a: "b.test" is not of the form http[s]://`,
		"mirrors: {a: {endpoint: [ftp://b]}}":                                   `mirror of a: "ftp://b" is not of the form http[s]://`,
		"mirrors: {a: {rewrite: {'(': b}}}":                                     "mirror of a: rewrite: error parsing regexp",
		"configs: {a: {tls: {ca_file: none}}}":                                  "a: open none: file does not exist",
		"configs: {a: {tls: {ca_file: ca.pem}}}":                                "a: ca_file contains no certificate",
		"configs: {a: {tls: {key_file: ca.pem}}}":                               "a: cert_file and key_file: ",
		"configs: {a: {auth: {username: [s3cr3t]}}}":                            "username",
		"configs: {docker.io: {}, registry-1.docker.io: {auth: {username: u}}}": "are one host: write one of them",
		"configs: {a: {}, 'a:443': {}}":                                         "configs: a and a:443 are one host",
		"configs: {'*': {auth: {username: u}}}":                                 `configs: "*" is not of the form HOST[:PORT]`,
		"configs: {https://a: {}}":                                              `configs: "https://a" is not of the form HOST[:PORT]`,
		"configs: {a: {auth: {auth: '!s3cr3t'}}}":                               "configs: a: auth is not base64 of user:password",
		"mirrors: {https://a: {}}":                                              `mirrors: "https://a" is not of the form HOST[:PORT]`,
		"mirrors: {index.docker.io: {}}":                                        "mirrors: index.docker.io is docker.io: write that",
		"configs: [":                                                            "yaml: ",
		"a: 1\na: 2\n":                                                          `key "a" already set`,
	} {
		_, err := ParseSettings([]byte(text), read)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s:\n got %v\nwant ...%s", text, err, want)
		}
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add([]byte("mirrors: {docker.io: {endpoint: [https://m.test/v2/x], rewrite: {a: b}}}"))
	f.Add([]byte("configs: {a: {auth: {username: u}, tls: {insecure_skip_verify: true}}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseSettings(text, noFile)
		if err != nil {
			return
		}
		if _, err := New(s); err != nil {
			t.Errorf("accepted, and cannot be used: %v", err)
		}
	})
}
