// SPDX-License-Identifier: Apache-2.0

// Package legacytokens cleans up secrets with automatically created service-account tokens that were not used for a
// year: they are first labelled as invalid, which the API server respects, and deleted a year later. The table of
// controllers starts it. It never touches secrets created by users, used by a pod, or not listed in their service
// account.
package legacytokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
)

const (
	invalidSince = "kubernetes.io/legacy-token-invalid-since"
	lastUsed     = "kubernetes.io/legacy-token-last-used"
	// tracking is the ConfigMap with the date since when the server records the use of tokens.
	tracking = "kube-apiserver-legacy-service-account-token-tracking"
	// DefaultPeriod is how long a token must be unused, and then invalid.
	DefaultPeriod = 365 * 24 * time.Hour
	// checkInterval is the interval of checks; the labels contain dates.
	checkInterval = 24 * time.Hour
)

// Controller cleans up once a day.
type Controller struct {
	env      *framework.Env
	loop     *framework.Loop[struct{}]
	reader   kubernetes.Interface
	period   time.Duration
	pods     corelisters.PodLister
	accounts corelisters.ServiceAccountLister
}

// New builds the controller; reader has the right to list secrets, which the controller's own account does not have.
// Nothing is cleaned up before the use has been recorded for the whole period. 0 is DefaultPeriod.
func New(env *framework.Env, reader kubernetes.Interface, period time.Duration) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:      env,
		reader:   reader,
		period:   period,
		pods:     core.Pods().Lister(),
		accounts: core.ServiceAccounts().Lister(),
	}
	if period == 0 {
		controller.period = DefaultPeriod
	}
	controller.loop = framework.NewLoop(env.Queue, 1, env.Log, controller.sync)
	controller.loop.WaitFor(core.Pods().Informer().HasSyncedChecker(),
		core.ServiceAccounts().Informer().HasSyncedChecker())
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	c.loop.Add(struct{}{})
	return c.loop.Run(ctx, ready)
}

func (c *Controller) sync(ctx context.Context, _ struct{}) error {
	defer c.loop.AddAfter(struct{}{}, checkInterval)
	m, err := c.env.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask since when the use of tokens is noted: %w", err)
	}
	since, err := time.Parse(time.DateOnly, m.Data["since"])
	if err != nil {
		return nil // an invalid date disables the cleanup
	}
	now := time.Now().UTC()
	if now.Before(since.Add(c.period)) {
		return nil
	}
	secrets, err := c.reader.CoreV1().Secrets("").List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken),
	})
	if err != nil {
		return fmt.Errorf("list secrets with tokens: %w", err)
	}
	var errs []error
	for i := range secrets.Items {
		errs = append(errs, c.clean(ctx, &secrets.Items[i], now))
	}
	return errors.Join(errs...)
}

// secretAction is the action on a secret.
type secretAction int

const (
	keep secretAction = iota
	invalidate
	remove
)

// decide decides about an automatically created secret that no pod uses.
func decide(s *corev1.Secret, now time.Time, period time.Duration) secretAction {
	limit := now.Add(-period)
	if s.DeletionTimestamp != nil || s.CreationTimestamp.After(limit) {
		return keep
	}
	if text, ok := s.Labels[lastUsed]; ok {
		if used, err := time.Parse(time.DateOnly, text); err != nil || used.After(limit) {
			return keep
		}
	}
	since, err := time.Parse(time.DateOnly, s.Labels[invalidSince])
	switch {
	case err != nil:
		return invalidate
	case since.After(limit):
		return keep
	}
	return remove
}

func (c *Controller) clean(ctx context.Context, secret *corev1.Secret, now time.Time) error {
	what := decide(secret, now, c.period)
	if what == keep || secret.Type != corev1.SecretTypeServiceAccountToken {
		return nil
	}
	account, err := c.accounts.ServiceAccounts(secret.Namespace).Get(secret.Annotations[corev1.ServiceAccountNameKey])
	if err != nil || string(account.UID) != secret.Annotations[corev1.ServiceAccountUIDKey] ||
		!slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name }) {
		return nil //nolint:nilerr // not found: the tokens controller deletes secrets without an account
	}
	pods, err := c.pods.Pods(secret.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return mounts(p, secret.Name) }) {
		return nil
	}
	api := c.env.Client.CoreV1().Secrets(secret.Namespace)
	if what == remove {
		rv := secret.ResourceVersion
		err = api.Delete(ctx, secret.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{ResourceVersion: &rv},
		})
	} else {
		var patch []byte
		patch, err = json.Marshal(map[string]any{"metadata": map[string]any{
			"uid":             secret.UID,
			"resourceVersion": secret.ResourceVersion,
			"labels":          map[string]string{invalidSince: now.Format(time.DateOnly)},
		}})
		if err == nil {
			_, err = api.Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is checked again tomorrow
	}
	if err != nil {
		return fmt.Errorf("clean up secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	c.env.Log.Info("cleaned up unused service account token", "secret", secret.Namespace+"/"+secret.Name, "deleted",
		what == remove)
	return nil
}

// mounts reports whether a pod uses a secret as a volume or in its environment.
func mounts(p *corev1.Pod, secret string) bool {
	reads := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name == secret
		}) || slices.ContainsFunc(c.EnvFrom, func(e corev1.EnvFromSource) bool {
			return e.SecretRef != nil && e.SecretRef.Name == secret
		})
	}
	return slices.ContainsFunc(p.Spec.Containers, reads) || slices.ContainsFunc(p.Spec.InitContainers, reads) ||
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			if v.Secret != nil {
				return v.Secret.SecretName == secret
			}
			return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
				return s.Secret != nil && s.Secret.Name == secret
			})
		})
}
