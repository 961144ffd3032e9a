// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Settings say from where images are pulled, and how. They contain secrets. The zero Settings pull each image from the
// registry that it names.
type Settings struct {
	// Mirrors are tried before the registry, by its host ("docker.io"); "*" is for the hosts without a row.
	Mirrors map[string]Mirror `json:"mirrors,omitempty"`
	// Hosts are the settings of registries and mirrors, by HOST[:PORT].
	Hosts map[string]Host `json:"hosts,omitempty"`
}

// Mirror is where the images of a registry are, too.
type Mirror struct {
	// Endpoints are URLs (http[s]://HOST[:PORT][/PREFIX]) in the order in which they are tried.
	Endpoints []string `json:"endpoints,omitempty"`
	// Rewrite replaces the repository's path at the mirror: the first regular expression, in order of the texts, that
	// matches, by its replacement ($1 is a group).
	Rewrite map[string]string `json:"rewrite,omitempty"`
}

// Host is how a registry or mirror is reached. Certificates are PEM.
type Host struct {
	Auth *Auth `json:"auth,omitempty"` // for pulls without a pull secret of the host; nil: none
	// CA are the authorities of the host's certificate; nil: those of the machine.
	CA        []byte `json:"ca,omitempty"`
	Cert, Key []byte // the client's; nil: none
	// SkipVerify accepts any certificate.
	SkipVerify bool `json:"skipVerify,omitempty"`
}

// AddMirror adds HOST=URL as the first endpoint of a registry host.
func (s *Settings) AddMirror(text string) error {
	host, url, ok := strings.Cut(text, "=")
	if !ok || host == "" || url == "" {
		return fmt.Errorf("image mirror %q is not of the form HOST=URL (docker.io=http://127.0.0.1:5000)", text)
	}
	if s.Mirrors == nil {
		s.Mirrors = map[string]Mirror{}
	}
	mirror := s.Mirrors[host]
	mirror.Endpoints = append([]string{url}, mirror.Endpoints...)
	s.Mirrors[host] = mirror
	return nil
}

// settingsFile is the format of registries.yaml, which is k3s'
// (https://docs.k3s.io/installation/private-registry).
type settingsFile struct {
	Mirrors map[string]struct {
		Endpoint []string          `json:"endpoint"`
		Rewrite  map[string]string `json:"rewrite"`
	} `json:"mirrors"`
	Configs map[string]struct {
		Auth *struct {
			Username      string `json:"username"`
			Password      string `json:"password"`
			Auth          string `json:"auth"`
			IdentityToken string `json:"identity_token"`
		} `json:"auth"`
		TLS struct {
			CAFile             string `json:"ca_file"`
			CertFile           string `json:"cert_file"`
			KeyFile            string `json:"key_file"`
			InsecureSkipVerify bool   `json:"insecure_skip_verify"`
		} `json:"tls"`
	} `json:"configs"`
}

// hostForm is HOST[:PORT]. HOST may be an address.
var hostForm = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// ParseSettings reads a registries.yaml. read reads the files that it names. What it returns can be given to New.
func ParseSettings(raw []byte, read func(path string) ([]byte, error)) (Settings, error) {
	var file settingsFile
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		text := strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: ")
		return Settings{}, errors.New(strings.Join(strings.Fields(strings.TrimPrefix(text, "json: ")), " "))
	}
	s := Settings{Mirrors: map[string]Mirror{}, Hosts: map[string]Host{}}
	for host, mirror := range file.Mirrors {
		if registryHost(host) != host { // no image is of it
			return Settings{}, fmt.Errorf("mirrors: %s is %s: write that", host, registryHost(host))
		}
		if host != "*" && !hostForm.MatchString(host) {
			return Settings{}, fmt.Errorf("mirrors: %q is not of the form HOST[:PORT], or \"*\"", host)
		}
		s.Mirrors[host] = Mirror{Endpoints: mirror.Endpoint, Rewrite: mirror.Rewrite}
	}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(file.Configs)) {
		config := file.Configs[name]
		if !hostForm.MatchString(name) { // also "*": a login is for one host
			return Settings{}, fmt.Errorf("configs: %q is not of the form HOST[:PORT]", name)
		}
		address := hostPort(registryHost(name), "https")
		if other, ok := seen[address]; ok {
			return Settings{}, fmt.Errorf("configs: %s and %s are one host: write one of them", other, name)
		}
		seen[address] = name
		host := Host{SkipVerify: config.TLS.InsecureSkipVerify}
		if config.Auth != nil {
			host.Auth = &Auth{
				Username:      config.Auth.Username,
				Password:      config.Auth.Password,
				Auth:          config.Auth.Auth,
				IdentityToken: config.Auth.IdentityToken,
			}
			if _, err := host.Auth.authenticator(name); err != nil {
				return Settings{}, fmt.Errorf("configs: %s: auth is not base64 of user:password", name)
			}
		}
		for _, file := range []struct {
			path string
			to   *[]byte
		}{{config.TLS.CAFile, &host.CA}, {config.TLS.CertFile, &host.Cert}, {config.TLS.KeyFile, &host.Key}} {
			if file.path == "" {
				continue
			}
			var err error
			if *file.to, err = read(file.path); err != nil {
				return Settings{}, fmt.Errorf("%s: %w", name, err)
			}
		}
		s.Hosts[name] = host
	}
	_, err := New(s)
	return s, err
}

// tlsConfig returns the configuration of connections to the host; nil: the default.
func (h Host) tlsConfig() (*tls.Config, error) {
	if h.CA == nil && h.Cert == nil && h.Key == nil && !h.SkipVerify {
		return nil, nil
	}
	cfg := &tls.Config{InsecureSkipVerify: h.SkipVerify} //nolint:gosec // the administrator asks for it
	if h.CA != nil {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(h.CA) {
			return nil, errors.New("ca_file contains no certificate")
		}
	}
	if h.Cert != nil || h.Key != nil {
		pair, err := tls.X509KeyPair(h.Cert, h.Key)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// rule rewrites paths of repositories.
type rule struct {
	from *regexp.Regexp
	to   string
}
