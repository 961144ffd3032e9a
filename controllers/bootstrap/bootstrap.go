// SPDX-License-Identifier: Apache-2.0

// Package bootstrap maintains the objects of joins by bootstrap token: Signer signs the ConfigMap
// kube-public/cluster-info with each token, so that a joining machine with a token can verify it, and Cleaner deletes
// expired tokens. The table of controllers starts both. It never creates a token.
package bootstrap

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/client"
	"keelson/controllers/framework"
)

// The keys of a bootstrap token's secret (Kubernetes documentation, "Authenticating with Bootstrap Tokens").
const (
	prefix     = "bootstrap-token-"
	idKey      = "token-id"
	secretKey  = "token-secret"
	expiration = "expiration"
	signing    = "usage-bootstrap-signing"
)

// The signed ConfigMap: its kubeconfig, and a key for each signature.
const (
	clusterInfoName = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	signatureKey    = "jws-kubeconfig-"
)

var (
	tokenID     = regexp.MustCompile(`^[a-z0-9]{6}$`)
	tokenSecret = regexp.MustCompile(`^[a-z0-9]{16}$`)
)

// secretsOf watches only bootstrap token secrets.
func secretsOf(env *framework.Env) *client.Informers {
	return env.Client.Informers(0, client.Scope{
		Namespace: metav1.NamespaceSystem,
		Tweak:     func(o *metav1.ListOptions) { o.FieldSelector = "type=" + string(corev1.SecretTypeBootstrapToken) },
	})
}

// Signer signs cluster-info.
type Signer struct {
	env       *framework.Env
	loop      *framework.Loop[framework.Key]
	secrets   corelisters.SecretLister
	infos     corelisters.ConfigMapLister
	informers []*client.Informers
}

// NewSigner builds the signer.
func NewSigner(env *framework.Env) (framework.Controller, error) {
	tokens := secretsOf(env)
	public := env.Client.Informers(0, client.Scope{
		Namespace: metav1.NamespacePublic,
		Tweak:     func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + clusterInfoName },
	})
	secrets := coreinformers.New(tokens.Scoped()).Secrets()
	infos := coreinformers.New(public.Scoped()).ConfigMaps()
	signer := &Signer{
		env:       env,
		secrets:   secrets.Lister(),
		infos:     infos.Lister(),
		informers: []*client.Informers{tokens, public},
	}
	signer.loop = framework.NewLoop(env.Queue, 1, env.Log, signer.sync)
	key := framework.Key{Namespace: metav1.NamespacePublic, Name: clusterInfoName}
	err := errors.Join(
		framework.On(signer.loop, secrets.Informer(), framework.Each(func(*corev1.Secret) { signer.loop.Add(key) })),
		framework.On(signer.loop, infos.Informer(), framework.Each(func(*corev1.ConfigMap) { signer.loop.Add(key) })),
	)
	if err != nil {
		return nil, fmt.Errorf("bootstrap signer: %w", err)
	}
	return signer, nil
}

// Run implements framework.Controller.
func (c *Signer) Run(ctx context.Context, ready func()) error {
	return c.loop.RunWith(ctx, ready, c.informers...)
}

func (c *Signer) sync(ctx context.Context, key framework.Key) error {
	info, err := c.infos.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil // without the ConfigMap there are no joins by token
	}
	if err != nil {
		return err
	}
	secrets, err := c.secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	now := time.Now()
	want, err := signed(info.Data, secrets, now)
	if err != nil {
		return err
	}
	for _, s := range secrets {
		if end, ok := expirationOf(s); ok && end.After(now) {
			c.loop.AddAfter(key, end.Sub(now))
		}
	}
	if want == nil || maps.Equal(want, info.Data) {
		return nil
	}
	next := info.DeepCopy()
	next.Data = want
	_, err = c.env.Client.CoreV1().ConfigMaps(key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("sign %s: %w", key, err)
	}
	return nil
}

// signed returns data with a signature of its kubeconfig for each signing token, and no others; nil without a
// kubeconfig.
func signed(data map[string]string, secrets []*corev1.Secret, now time.Time) (map[string]string, error) {
	content, ok := data[kubeconfigKey]
	if !ok {
		return nil, nil // nothing to sign
	}
	want := maps.Clone(data)
	maps.DeleteFunc(want, func(k, _ string) bool { return strings.HasPrefix(k, signatureKey) })
	for _, s := range secrets {
		id := string(s.Data[idKey])
		secret := string(s.Data[secretKey])
		if s.Type != corev1.SecretTypeBootstrapToken || s.DeletionTimestamp != nil || s.Name != prefix+id ||
			string(s.Data[signing]) != "true" ||
			!tokenID.MatchString(id) || !tokenSecret.MatchString(secret) || expired(s, now) {
			continue
		}
		signature, err := detachedSignature(content, id, secret)
		if err != nil {
			return nil, fmt.Errorf("sign with token %s: %w", id, err)
		}
		want[signatureKey+id] = signature
	}
	return want, nil
}

// detachedSignature is the JSON web signature (HS256, RFC 7515 appendix F) of content, without the content. The library
// does not accept keys as short as tokens.
func detachedSignature(content, id, secret string) (string, error) {
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(text(header) + "." + text([]byte(content)))) // Write of a hash never fails
	return text(header) + ".." + text(mac.Sum(nil)), nil
}

// expirationOf is when a token expires; ok is false for a token without expiration.
func expirationOf(s *corev1.Secret) (end time.Time, ok bool) {
	text := string(s.Data[expiration])
	if text == "" {
		return time.Time{}, false
	}
	end, err := time.Parse(time.RFC3339, text)
	if err != nil { // an invalid expiration counts as expired
		return time.Time{}, true
	}
	return end, true
}

func expired(s *corev1.Secret, now time.Time) bool {
	end, ok := expirationOf(s)
	return ok && !now.Before(end)
}

// Cleaner deletes expired tokens.
type Cleaner struct {
	env       *framework.Env
	loop      *framework.Loop[framework.Key]
	secrets   corelisters.SecretLister
	informers *client.Informers
}

// NewCleaner builds the cleaner.
func NewCleaner(env *framework.Env) (framework.Controller, error) {
	own := secretsOf(env)
	secrets := coreinformers.New(own.Scoped()).Secrets()
	c := &Cleaner{env: env, secrets: secrets.Lister(), informers: own}
	c.loop = framework.NewLoop(env.Queue, 1, env.Log, c.sync)
	add := func(s *corev1.Secret) { c.loop.Add(framework.KeyOf(s)) }
	err := framework.On(c.loop, secrets.Informer(), framework.Handlers[*corev1.Secret]{
		Add:    add,
		Update: func(_, cur *corev1.Secret) { add(cur) },
	})
	if err != nil {
		return nil, fmt.Errorf("bootstrap tokens: %w", err)
	}
	return c, nil
}

// Run implements framework.Controller.
func (c *Cleaner) Run(ctx context.Context, ready func()) error {
	return c.loop.RunWith(ctx, ready, c.informers)
}

func (c *Cleaner) sync(ctx context.Context, key framework.Key) error {
	secret, err := c.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	end, ok := expirationOf(secret)
	if !ok || secret.DeletionTimestamp != nil {
		return nil
	}
	if left := time.Until(end); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	err = c.env.Client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete expired bootstrap token %s: %w", key, err)
	}
	return nil
}
