// SPDX-License-Identifier: Apache-2.0

// Package tokens fills secrets of type kubernetes.io/service-account-token with a token of their service account, the
// namespace and the CA bundle, and deletes those of deleted service accounts. The table of controllers starts it. Such
// tokens do not expire; it never creates the secrets, users do.
package tokens

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/client"
	"keelson/controllers/framework"
	"keelson/pki"
)

// Controller handles the secrets.
type Controller struct {
	env       *framework.Env
	loop      *framework.Loop[framework.Key]
	secrets   corelisters.SecretLister
	accounts  corelisters.ServiceAccountLister
	informers *client.Informers // only secrets of that type
	key       func() crypto.Signer
	ca        framework.Bundle
}

// New builds the controller; key returns the key that signs the tokens, ca is the CA bundle by which pods verify the
// API server. Without a key the secrets stay empty.
func New(env *framework.Env, key func() crypto.Signer, ca framework.Bundle) (framework.Controller, error) {
	own := env.Reader().Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = "type=" + string(corev1.SecretTypeServiceAccountToken)
	}})
	secrets := coreinformers.New(own.Scoped()).Secrets()
	accounts := coreinformers.New(env.Shared.Scoped()).ServiceAccounts()
	controller := &Controller{
		env:       env,
		secrets:   secrets.Lister(),
		accounts:  accounts.Lister(),
		informers: own,
		key:       key,
		ca:        ca,
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, secrets.Informer(), framework.Each(func(s *corev1.Secret) {
			controller.loop.Add(framework.KeyOf(s))
		})),
		framework.On(controller.loop, accounts.Informer(), framework.Handlers[*corev1.ServiceAccount]{
			Add:    controller.enqueueSecretsOf,
			Delete: controller.enqueueSecretsOf,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("service-account tokens: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	return c.ca.While(ctx, c.enqueueAll, func() error { return c.loop.RunWith(ctx, ready, c.informers) })
}

// enqueueAll checks every secret again, because the bundle has changed.
func (c *Controller) enqueueAll() {
	secrets, err := c.secrets.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, s := range secrets {
		c.loop.Add(framework.KeyOf(s))
	}
}

// enqueueSecretsOf queues the secrets of an account.
func (c *Controller) enqueueSecretsOf(sa *corev1.ServiceAccount) {
	secrets, err := c.secrets.Secrets(sa.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, s := range secrets {
		if s.Annotations[corev1.ServiceAccountNameKey] == sa.Name {
			c.loop.Add(framework.KeyOf(s))
		}
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	secret, err := c.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (secret.Type != corev1.SecretTypeServiceAccountToken ||
		secret.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return err
	}
	name := secret.Annotations[corev1.ServiceAccountNameKey]
	if name == "" || c.key == nil {
		return nil
	}
	// Not from the cache: a secret must not be deleted because a cache is stale.
	sa, err := c.env.Client.CoreV1().ServiceAccounts(key.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if uid := secret.Annotations[corev1.ServiceAccountUIDKey]; err != nil || uid != "" && uid != string(sa.UID) {
		return c.deleteSecret(ctx, secret)
	}
	next, err := c.withTokenData(secret, sa)
	if err != nil || next == nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Secrets(key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("fill secret %s: %w", key, err)
	}
	return nil
}

func (c *Controller) deleteSecret(ctx context.Context, s *corev1.Secret) error {
	err := c.env.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete secret %s/%s, whose service account is gone: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// withTokenData returns secret with the missing data, nil if nothing is missing.
func (c *Controller) withTokenData(secret *corev1.Secret, sa *corev1.ServiceAccount) (*corev1.Secret, error) {
	ca := c.ca.PEM()
	hasToken := len(secret.Data[corev1.ServiceAccountTokenKey]) > 0
	hasCA := bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], ca)
	hasNamespace := string(secret.Data[corev1.ServiceAccountNamespaceKey]) == secret.Namespace
	hasUID := secret.Annotations[corev1.ServiceAccountUIDKey] == string(sa.UID)
	if hasToken && hasCA && hasNamespace && hasUID {
		return nil, nil // nothing is missing
	}
	next := secret.DeepCopy()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	if len(ca) > 0 {
		next.Data[corev1.ServiceAccountRootCAKey] = ca
	}
	next.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	next.Annotations[corev1.ServiceAccountUIDKey] = string(sa.UID)
	if !hasToken {
		token, err := pki.LegacyToken{
			Namespace:  secret.Namespace,
			Secret:     secret.Name,
			Account:    sa.Name,
			AccountUID: string(sa.UID),
		}.Sign(c.key())
		if err != nil {
			return nil, err
		}
		next.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	return next, nil
}
