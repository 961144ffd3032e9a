// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type entry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// Credential is the entry of a pull secret for an image's registry.
type Credential struct {
	Auth   *runtimeapi.AuthConfig
	Secret *corev1.Secret
}

// maxCredentials is how many entries are tried for one image: a secret has room for 10,000, and each is a pull.
const maxCredentials = 16

// Credentials returns the entries of pull secrets that match an image, the most specific first, at most
// maxCredentials. Invalid secrets are skipped.
func Credentials(secrets []*corev1.Secret, ref string) []Credential {
	type match struct {
		key    string
		entry  entry
		secret *corev1.Secret
	}
	var found []match
	for _, s := range secrets {
		for key, e := range entries(s) {
			if matchesImage(key, ref) {
				found = append(found, match{key, e, s})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(len(b.key), len(a.key)), strings.Compare(a.key, b.key))
	})
	found = found[:min(len(found), maxCredentials)]
	out := make([]Credential, 0, len(found))
	for _, m := range found {
		out = append(out, Credential{auth(m.key, m.entry), m.secret})
	}
	return out
}

func entries(s *corev1.Secret) map[string]entry {
	var file struct {
		Auths map[string]entry `json:"auths"`
	}
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		if json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &file) != nil {
			return nil
		}
	case corev1.SecretTypeDockercfg:
		if json.Unmarshal(s.Data[corev1.DockerConfigKey], &file.Auths) != nil {
			return nil
		}
	default:
	}
	return file.Auths
}

func auth(server string, e entry) *runtimeapi.AuthConfig {
	authConfig := &runtimeapi.AuthConfig{
		Username:      e.Username,
		Password:      e.Password,
		ServerAddress: server,
		IdentityToken: e.IdentityToken,
		RegistryToken: e.RegistryToken,
	}
	if b, err := base64.StdEncoding.DecodeString(strings.TrimRight(e.Auth, "\r\n")); err == nil &&
		authConfig.Username == "" {
		if u, p, ok := strings.Cut(string(b), ":"); ok {
			authConfig.Username = u
			authConfig.Password = p
		}
	}
	return authConfig
}

// matchesImage reports whether a config's key ("registry.example.com:5000/team", "*.example.com",
// "https://index.docker.io/v1/") is for the image.
func matchesImage(key, ref string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(key, "/"), "/v1"), "/v2")
	keyHost, keyPath, _ := strings.Cut(key, "/")
	host, rest := split(ref)
	if isDockerHub(keyHost) && isDockerHub(host) {
		return keyPath == "" || within(rest, keyPath)
	}
	kh, kport, _ := strings.Cut(keyHost, ":")
	h, port, _ := strings.Cut(host, ":")
	if kport != port || strings.Count(kh, ".") != strings.Count(h, ".") {
		return false
	}
	kparts := strings.Split(kh, ".")
	hparts := strings.Split(h, ".")
	for i := range kparts {
		if ok, err := path.Match(kparts[i], hparts[i]); err != nil || !ok {
			return false
		}
	}
	return keyPath == "" || within(rest, keyPath)
}

func within(rest, prefix string) bool {
	tail, ok := strings.CutPrefix(rest, prefix)
	return ok && (tail == "" || tail[0] == '/' || tail[0] == ':' || tail[0] == '@')
}

func isDockerHub(host string) bool {
	return host == "docker.io" || host == "index.docker.io" || host == "registry-1.docker.io"
}

// split splits an image reference into registry and rest. A name without a registry belongs to Docker Hub.
func split(ref string) (host, rest string) {
	first, rest, ok := strings.Cut(ref, "/")
	if ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return first, rest
	}
	if !ok {
		return "docker.io", "library/" + ref
	}
	return "docker.io", ref
}
