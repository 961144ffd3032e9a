// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/internal/check"
)

const (
	// AppArmorPrefix begins the annotation that names the profile of a container.
	AppArmorPrefix   = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	seccompPod       = "seccomp.security.alpha.kubernetes.io/pod"
	seccompContainer = "container.seccomp.security.alpha.kubernetes.io/"
	localhostProfile = "localhost/"
)

// Annotations checks the annotations that mean something for pods; the list stands at them.
func (c *Checker) Annotations(a map[string]string) {
	from := c.Len()
	if v, ok := a[corev1.MirrorPodAnnotationKey]; ok && c.spec.NodeName == "" {
		c.Key(corev1.MirrorPodAnnotationKey)
		c.Invalid("", v, "must set spec.nodeName if mirror pod annotation is set")
		c.Out()
	}
	if v := a[corev1.TolerationsAnnotationKey]; v != "" {
		checkTolerationsAnnotation(c.List, v)
	}
	if v, ok := a[corev1.PodDeletionCost]; ok {
		// Of the forms that ParseInt takes, a plus sign and leading zeros are not allowed.
		if _, err := strconv.ParseInt(v, 10, 32); err != nil || v[0] == '+' || v[0] == '0' && v != "0" {
			c.Key(corev1.PodDeletionCost)
			c.Invalid("", v, "must be a 32bit integer")
			c.Out()
		}
	}
	for k, v := range a {
		if k == seccompPod || strings.HasPrefix(k, seccompContainer) {
			checkSeccompName(c.List, k, v)
		}
		if name, ok := strings.CutPrefix(k, AppArmorPrefix); ok {
			c.Key(k)
			c.appArmorAnnotation(name, v)
			c.Out()
		}
	}
	c.Sort(from)
}

func checkTolerationsAnnotation(errs *check.List, v string) {
	var list []corev1.Toleration
	if err := json.Unmarshal([]byte(v), &list); err != nil {
		errs.Invalid("", corev1.TolerationsAnnotationKey, err.Error())
		return
	}
	errs.In(corev1.TolerationsAnnotationKey)
	Tolerations(errs, list)
	errs.Out()
}

func checkSeccompName(errs *check.List, child, v string) {
	switch {
	case v == corev1.SeccompProfileRuntimeDefault, v == corev1.DeprecatedSeccompProfileDockerDefault,
		v == corev1.SeccompProfileNameUnconfined:
	case strings.HasPrefix(v, localhostProfile):
		checkDescending(errs, child, strings.TrimPrefix(v, localhostProfile))
	default:
		errs.Invalid(child, v, "must be a valid seccomp profile")
	}
}

func (c *Checker) appArmorAnnotation(container, v string) {
	found := false
	EachContainer(c.spec, func(ctr *corev1.Container) { found = found || ctr.Name == container })
	if !found {
		c.Invalid("", container, "container not found")
	}
	if v != "" && v != corev1.DeprecatedAppArmorBetaProfileRuntimeDefault &&
		v != corev1.DeprecatedAppArmorBetaProfileNameUnconfined &&
		!strings.HasPrefix(v, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
		c.Invalid("", v, fmt.Sprintf("invalid AppArmor profile name: %q", v))
	}
}

// ProfilesMatch wants the old annotations for seccomp and AppArmor to say what the fields say; the list stands at the
// spec.
func (c *Checker) ProfilesMatch(a map[string]string) {
	sc := c.spec.SecurityContext
	if sc != nil && sc.SeccompProfile != nil {
		if v, ok := a[seccompPod]; ok {
			checkSeccompMatches(c.List, v, sc.SeccompProfile)
		}
	}
	eachContainerAt(c.List, c.spec, func(ctr *corev1.Container) {
		if ctr.SecurityContext == nil || ctr.SecurityContext.SeccompProfile == nil {
			return
		}
		if v, ok := a[seccompContainer+ctr.Name]; ok {
			checkSeccompMatches(c.List, v, ctr.SecurityContext.SeccompProfile)
		}
	})
	if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		return
	}
	eachContainerAt(c.List, c.spec, func(ctr *corev1.Container) {
		var p *corev1.AppArmorProfile
		if sc != nil {
			p = sc.AppArmorProfile
		}
		if own := ctr.SecurityContext; own != nil && own.AppArmorProfile != nil {
			p = own.AppArmorProfile
		}
		if v, ok := a[AppArmorPrefix+ctr.Name]; ok && p != nil {
			checkAppArmorMatches(c.List, v, p)
		}
	})
}

func checkSeccompMatches(errs *check.List, v string, seccompProfile *corev1.SeccompProfile) {
	const child, why = "securityContext.seccompProfile.", "seccomp type in annotation and field must match"
	switch seccompProfile.Type {
	case corev1.SeccompProfileTypeUnconfined:
		if v != corev1.SeccompProfileNameUnconfined {
			errs.Forbidden(child+"type", why)
		}
	case corev1.SeccompProfileTypeRuntimeDefault:
		if v != corev1.SeccompProfileRuntimeDefault && v != corev1.DeprecatedSeccompProfileDockerDefault {
			errs.Forbidden(child+"type", why)
		}
	case corev1.SeccompProfileTypeLocalhost:
		name, ok := strings.CutPrefix(v, localhostProfile)
		if !ok {
			errs.Forbidden(child+"type", why)
		} else if seccompProfile.LocalhostProfile == nil || name != *seccompProfile.LocalhostProfile {
			errs.Forbidden(child+"localhostProfile", "seccomp profile in annotation and field must match")
		}
	}
}

func checkAppArmorMatches(errs *check.List, v string, profile *corev1.AppArmorProfile) {
	const child, why = "securityContext.appArmorProfile.", "apparmor type in annotation and field must match"
	switch profile.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		if v != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			errs.Forbidden(child+"type", why)
		}
	case corev1.AppArmorProfileTypeRuntimeDefault:
		if v != corev1.DeprecatedAppArmorBetaProfileRuntimeDefault {
			errs.Forbidden(child+"type", why)
		}
	case corev1.AppArmorProfileTypeLocalhost:
		name, ok := strings.CutPrefix(v, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
		if !ok {
			errs.Forbidden(child+"type", why)
		} else if profile.LocalhostProfile == nil || name != *profile.LocalhostProfile {
			errs.Forbidden(child+"localhostProfile", "apparmor profile in annotation and field must match")
		}
	}
}

// AppArmorFromAnnotations fills the field of containers that have only the old annotation, unless the pod's own
// profile says the same.
func AppArmorFromAnnotations(p *corev1.Pod) {
	if len(p.Annotations) == 0 || p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return
	}
	EachContainer(&p.Spec, func(ctr *corev1.Container) {
		v, ok := p.Annotations[AppArmorPrefix+ctr.Name]
		if !ok || ctr.SecurityContext != nil && ctr.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := appArmorProfile(v)
		if profile == nil || sameAppArmor(profile, p.Spec.SecurityContext) {
			return
		}
		if ctr.SecurityContext == nil {
			ctr.SecurityContext = &corev1.SecurityContext{}
		}
		ctr.SecurityContext.AppArmorProfile = profile
	})
}

func appArmorProfile(annotation string) *corev1.AppArmorProfile {
	switch annotation {
	case corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	}
	name, ok := strings.CutPrefix(annotation, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	if !ok {
		return nil
	}
	profile := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	errs := check.At(nil)
	if checkAppArmor(errs, profile); errs.Len() > 0 {
		return nil
	}
	return profile
}

func sameAppArmor(p *corev1.AppArmorProfile, sc *corev1.PodSecurityContext) bool {
	if sc == nil || sc.AppArmorProfile == nil || sc.AppArmorProfile.Type != p.Type {
		return false
	}
	a := p.LocalhostProfile
	b := sc.AppArmorProfile.LocalhostProfile
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}
