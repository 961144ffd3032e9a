// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The values of imagePullCredentialsVerificationPolicy: for which images on the node a pod needs credentials that can
// pull them.
const (
	NeverVerify                  = "NeverVerify"
	NeverVerifyPreloadedImages   = "NeverVerifyPreloadedImages" // those that the kubelet pulled; the default
	NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages"
	AlwaysVerify                 = "AlwaysVerify"
)

// ValidatePolicy validates a policy and its allowlist, which only NeverVerifyAllowlistedImages has.
func ValidatePolicy(policy string, allowlist []string) error {
	switch policy {
	case "", NeverVerify, NeverVerifyPreloadedImages, AlwaysVerify:
		if len(allowlist) > 0 {
			return fmt.Errorf("preloadedImagesVerificationAllowlist: can't be set if "+
				"imagePullCredentialsVerificationPolicy is not %q", NeverVerifyAllowlistedImages)
		}
		return nil
	case NeverVerifyAllowlistedImages:
	default:
		return fmt.Errorf("imagePullCredentialsVerificationPolicy %q is none of %s, %s, %s and %s",
			policy, NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify)
	}
	var errs []error
	for _, p := range allowlist {
		name, _ := strings.CutSuffix(p, "/*")
		switch {
		case name == "" || strings.ContainsAny(name, "* \t"):
			errs = append(errs,
				fmt.Errorf("preloadedImagesVerificationAllowlist: %q is neither REPOSITORY nor PREFIX/*", p))
		case name == p && withoutTag(p) != p:
			errs = append(errs,
				fmt.Errorf("preloadedImagesVerificationAllowlist: %q has a tag or a digest, which is not allowed", p))
		}
	}
	return errors.Join(errs...)
}

// repository returns an image's full name without tag and digest: docker.io/library/busybox for busybox:1.
func repository(image string) string {
	host, rest := split(image)
	if host == "docker.io" && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return host + "/" + withoutTag(rest)
}

// withoutTag returns a name without tag and digest.
func withoutTag(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// allowlisted reports whether an image matches a list of repositories ("docker.io/library/busybox") and prefixes
// ("registry.example.com/*").
func allowlisted(image string, list []string) bool {
	repo := repository(image)
	return slices.ContainsFunc(list, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(repo, prefix)
		}
		return repo == p
	})
}

// accessible reports whether a pod with these credentials may use an image on the node without a new pull.
func (m *Manager) accessible(image, id string, creds []Credential) bool {
	result := m.verified(image, id, creds)
	m.checked.WithLabelValues(result).Inc()
	return result != mustBeVerified
}

// verified returns why a pod with these credentials may use an image on the node, or mustBeVerified.
func (m *Manager) verified(image, id string, creds []Credential) string {
	if nodeLocal(image) { // it is never pulled
		return allowedByPolicy
	}
	pulled, have := m.records.pulled(image, id)
	switch m.cfg.VerificationPolicy {
	case NeverVerify:
		return allowedByPolicy
	case NeverVerifyAllowlistedImages:
		if allowlisted(image, m.cfg.VerificationAllowlist) {
			return allowedByPolicy
		}
	case AlwaysVerify:
	default:
		if !pulled {
			return allowedByPolicy
		}
	}
	if have.NodePodsAccessible {
		return foundInRecord
	}
	for _, c := range creds {
		s := c.secret()
		for _, h := range have.KubernetesSecrets {
			sameHash := h.CredentialHash != "" && h.CredentialHash == s.CredentialHash
			if !sameHash && !h.same(s) {
				continue
			}
			if h != s { // the same credentials in another secret, or a secret with new ones
				if err := m.records.add(image, id,
					imagePullCredentials{KubernetesSecrets: []imagePullSecret{s}}); err != nil {
					m.cfg.Log.Warn("write image pulled record", "image", image, "err", err)
				}
			}
			return foundInRecord
		}
	}
	return mustBeVerified
}

// pulledWith returns the pulled record's entry for a credential; nil: the pull used none.
func pulledWith(c *Credential) *imagePullCredentials {
	if c == nil {
		return &imagePullCredentials{NodePodsAccessible: true}
	}
	return &imagePullCredentials{KubernetesSecrets: []imagePullSecret{c.secret()}}
}

func (c Credential) secret() imagePullSecret {
	return imagePullSecret{
		UID:            string(c.Secret.UID),
		Namespace:      c.Secret.Namespace,
		Name:           c.Secret.Name,
		CredentialHash: c.hash(),
	}
}

// hash identifies the credentials; empty: they cannot be encoded.
func (c Credential) hash() string {
	b, err := json.Marshal(c.Auth)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// Recover resolves the intents of interrupted pulls, and prunes the records of removed images. It must be called before
// the first Ensure.
func (m *Manager) Recover(ctx context.Context) error {
	images, err := m.records.intents()
	errs := []error{err}
	for _, image := range images {
		ref, err := Normalize(image)
		if err != nil {
			ref = image
		}
		resp, err := m.svc.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		if err != nil {
			errs = append(errs, fmt.Errorf("look at image %s: %w", image, err)) // its intent stays
			continue
		}
		errs = append(errs, m.records.resolveIntent(image, resp.GetImage().GetId()))
	}
	return errors.Join(append(errs, m.prune(ctx))...)
}

// prune removes the records of images that are not on the node any more.
func (m *Manager) prune(ctx context.Context) error {
	begin := time.Now()
	resp, err := m.svc.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	ids := map[string]bool{}
	for _, img := range resp.GetImages() {
		ids[img.GetId()] = true
	}
	return m.records.prune(ids, begin)
}
