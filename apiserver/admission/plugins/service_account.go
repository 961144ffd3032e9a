// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"

	"keelson/apiserver/admission"
)

// serviceAccount sets every pod's service account, its image pull secrets, and a volume with its token.
type serviceAccount struct {
	Reader admission.Reader
	// WaitTimeout is how long to wait for the default account of a new namespace (0: five seconds).
	WaitTimeout time.Duration
}

const (
	defaultAccount = "default"
	tokenMountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolume    = "kube-api-access-"
	// tokenLife is slightly more than an hour, so that a kubelet, which refreshes at 80 %, is always in time.
	tokenLife = 3607
)

func (serviceAccount) Name() string { return "ServiceAccount" }

// Admit sets the account, its pull secrets and the token volume of a new pod.
func (p serviceAccount) Admit(ctx context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create)
	if pod == nil {
		return err
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil // Validate rejects mirror pods with one
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
		req.Changed("spec.serviceAccountName")
	}
	if pod.Spec.DeprecatedServiceAccount != pod.Spec.ServiceAccountName {
		pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
		req.Changed("spec.serviceAccount")
	}
	sa, err := p.account(ctx, req, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if automount(pod, sa) && mountToken(pod) {
		req.Changed("spec.volumes", "spec.containers[*].volumeMounts")
	}
	if len(pod.Spec.ImagePullSecrets) == 0 && len(sa.ImagePullSecrets) > 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(sa.ImagePullSecrets)
		req.Changed("spec.imagePullSecrets")
	}
	return nil
}

// Validate checks the account again after all mutators have run, and rejects mirror pods with accounts or secrets.
func (p serviceAccount) Validate(ctx context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create)
	if pod == nil {
		return err
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !mirror {
		_, err := p.account(ctx, req, pod.Spec.ServiceAccountName)
		return err
	}
	if pod.Spec.ServiceAccountName != "" {
		return admission.Forbidden(req, "a mirror pod may not reference service accounts")
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret != nil {
			return admission.Forbidden(req, "a mirror pod may not reference secrets")
		}
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil
		}) {
			return admission.Forbidden(req, "a mirror pod may not use ServiceAccountToken volume projections")
		}
	}
	return nil
}

// account reads the service account. The default one of a new namespace may not exist yet, so it waits a short time.
func (p serviceAccount) account(ctx context.Context, req *admission.Request, name string) (*corev1.ServiceAccount, error) {
	patience := p.WaitTimeout
	if patience == 0 {
		patience = 5 * time.Second // a busy machine may create it late
	}
	end := time.Now().Add(patience)
	for {
		sa, err := admission.Get[*corev1.ServiceAccount](ctx, p.Reader, admission.ServiceAccounts, req.Namespace, name)
		if err == nil {
			return sa, nil
		}
		if !admission.IsNotFound(err) {
			return nil, err
		}
		if name != defaultAccount || time.Now().After(end) {
			return nil, admission.Forbidden(req, "error looking up service account %s/%s: %w", req.Namespace, name,
				apierrors.NewNotFound(corev1.Resource("serviceaccount"), name))
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for service account %s/%s: %w", req.Namespace, name, ctx.Err())
		}
	}
}

func automount(pod *corev1.Pod, sa *corev1.ServiceAccount) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return sa.AutomountServiceAccountToken == nil || *sa.AutomountServiceAccountToken
}

// mountToken mounts a token volume into every container without an own mount there; false: there is no such container.
func mountToken(pod *corev1.Pod) bool {
	names := make(map[string]bool, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		names[pod.Spec.Volumes[i].Name] = true
	}
	// A second round finds the volume of the first.
	name := tokenVolume + rand.String(5)
	again := false
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; strings.HasPrefix(v.Name, tokenVolume) && v.Projected != nil {
			name = v.Name
			again = true
		}
	}
	for names[name] && !again {
		name = tokenVolume + rand.String(5)
	}
	mount := corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenMountPath}
	used := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == tokenMountPath
			}) {
				c.VolumeMounts = append(slices.Clip(c.VolumeMounts), mount)
				used = true
			}
		}
	}
	if used && !again {
		pod.Spec.Volumes = append(slices.Clip(pod.Spec.Volumes), corev1.Volume{Name: name, VolumeSource: tokenSource()})
	}
	return used
}

func tokenSource() corev1.VolumeSource {
	mode := corev1.ProjectedVolumeSourceDefaultMode
	life := int64(tokenLife)
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &life}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{
					Path:     "namespace",
					FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
				},
			}}},
		},
	}}
}
