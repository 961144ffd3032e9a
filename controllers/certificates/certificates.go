// SPDX-License-Identifier: Apache-2.0

// Package certificates handles CertificateSigningRequests: it approves those of kubelets, signs approved ones of
// Kubernetes' own signers with the cluster's CA, and deletes old ones. The table of controllers starts a controller for
// each of these tasks. It never approves other requests and never signs for other signers.
package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	certlisters "k8s.io/client-go/listers/certificates/v1"

	"keelson/controllers/framework"
	"keelson/pki"
)

// Task is what a controller does.
type Task int

// The tasks.
const (
	Approve Task = iota
	Sign
	Clean
)

// Controller handles requests for one task.
type Controller struct {
	task    Task
	env     *framework.Env
	loop    *framework.Loop[framework.Key]
	csrs    certlisters.CertificateSigningRequestLister
	signers Signers
}

// recheckInterval is when a request without the required permission is checked again: permissions may change.
const recheckInterval = 2 * time.Minute

// New builds the controller of a task. by is for Sign: it signs only for these signers.
func New(env *framework.Env, by Signers, task Task) (framework.Controller, error) {
	csrs := certificatesinformers.New(env.Shared.Scoped()).CertificateSigningRequests()
	controller := &Controller{
		task:    task,
		env:     env,
		csrs:    csrs.Lister(),
		signers: by,
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	if err := framework.On(controller.loop, csrs.Informer(),
		framework.Each(func(csr *certv1.CertificateSigningRequest) {
			controller.loop.Add(framework.KeyOf(csr))
		})); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	csr, err := c.csrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.task == Clean {
		return c.clean(ctx, csr)
	}
	approved := has(csr, certv1.CertificateApproved)
	switch {
	case has(csr, certv1.CertificateDenied) || has(csr, certv1.CertificateFailed) || len(csr.Status.Certificate) > 0:
		return nil
	case approved && c.task == Sign:
		return c.sign(ctx, csr)
	case !approved && c.task == Approve:
		return c.approve(ctx, csr)
	}
	return nil
}

// clean deletes an expired request.
func (c *Controller) clean(ctx context.Context, csr *certv1.CertificateSigningRequest) error {
	end := expiryOf(csr)
	if end.IsZero() {
		return nil
	}
	if left := time.Until(end); left > 0 {
		c.loop.AddAfter(framework.KeyOf(csr), left+time.Second)
		return nil
	}
	return c.delete(ctx, csr)
}

func has(csr *certv1.CertificateSigningRequest, t certv1.RequestConditionType) bool {
	for i := range csr.Status.Conditions {
		if csr.Status.Conditions[i].Type == t {
			return true
		}
	}
	return false
}

// approve approves the request of a kubelet.
func (c *Controller) approve(ctx context.Context, csr *certv1.CertificateSigningRequest) error {
	kind := recognize(csr)
	if kind == nil {
		return nil // not a kubelet's request: another approver decides
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   csr.Spec.Username,
		UID:    csr.Spec.UID,
		Groups: csr.Spec.Groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group:       certv1.GroupName,
			Resource:    "certificatesigningrequests",
			Verb:        "create",
			Subresource: kind.permission,
			Version:     "*",
		},
	}}
	for k, v := range csr.Spec.Extra {
		if review.Spec.Extra == nil {
			review.Spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		review.Spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := c.env.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask whether %s may have its certificate: %w", csr.Spec.Username, err)
	}
	if !review.Status.Allowed {
		c.loop.AddAfter(framework.KeyOf(csr), recheckInterval)
		return nil
	}
	if node := servingNodeOf(csr); node != "" {
		if ok, err := c.mayHaveServing(ctx, csr, node); !ok || err != nil {
			return err
		}
	}
	return c.addCondition(ctx, csr, certv1.CertificateApproved, "AutoApproved", kind.message)
}

func (c *Controller) requeueAfter(csr *certv1.CertificateSigningRequest, after time.Duration) {
	c.loop.AddAfter(framework.KeyOf(csr), after)
}

// addCondition adds a condition with the subresource to which it belongs.
func (c *Controller) addCondition(
	ctx context.Context, csr *certv1.CertificateSigningRequest, t certv1.RequestConditionType, reason, message string,
) error {
	next := csr.DeepCopy()
	now := metav1.Now()
	next.Status.Conditions = append(next.Status.Conditions, certv1.CertificateSigningRequestCondition{
		Type:               t,
		Status:             corev1.ConditionTrue,
		Reason:             reason,
		Message:            message,
		LastUpdateTime:     now,
		LastTransitionTime: now,
	})
	var err error
	if t == certv1.CertificateFailed {
		_, err = c.env.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, next,
			metav1.UpdateOptions{})
	} else {
		_, err = c.env.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, next,
			metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write %s of certificate request %s: %w", t, csr.Name, err)
	}
	return nil
}

// sign issues the certificate of an approved request.
func (c *Controller) sign(ctx context.Context, csr *certv1.CertificateSigningRequest) error {
	authority := c.signers.Authorities[csr.Spec.SignerName]
	if authority == nil {
		return nil
	}
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err == nil {
		err = valid(csr.Spec.SignerName, req, csr.Spec.Usages)
	}
	var use x509Usages
	if err == nil {
		use, err = x509UsagesOf(csr.Spec.Usages)
	}
	if err != nil {
		return c.addCondition(ctx, csr, certv1.CertificateFailed, "SignerValidationFailure", err.Error())
	}
	ca, err := authority()
	if err != nil {
		return fmt.Errorf("sign for %s: %w", csr.Spec.SignerName, err)
	}
	cert, err := ca.Sign(req, use.key, use.extended, durationOf(csr, c.signers.duration()))
	if err != nil {
		return err
	}
	next := csr.DeepCopy()
	next.Status.Certificate = cert
	_, err = c.env.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write certificate of request %s: %w", csr.Name, err)
	}
	return nil
}

// Lifetimes of certificates and of requests.
const (
	defaultDuration = 365 * 24 * time.Hour
	minDuration     = 10 * time.Minute
	decidedTTL      = time.Hour
	pendingTTL      = 24 * time.Hour
)

// durationOf is the lifetime that the request asks for, up to longest.
func durationOf(csr *certv1.CertificateSigningRequest, longest time.Duration) time.Duration {
	if csr.Spec.ExpirationSeconds == nil {
		return longest
	}
	return min(max(time.Duration(*csr.Spec.ExpirationSeconds)*time.Second, minDuration), longest)
}

// expiryOf is when a request is deleted: an hour after the decision, a day after its creation, or when its certificate
// expires.
func expiryOf(csr *certv1.CertificateSigningRequest) time.Time {
	end := csr.CreationTimestamp.Add(pendingTTL)
	for i := range csr.Status.Conditions {
		cond := &csr.Status.Conditions[i]
		if cond.Type == certv1.CertificateApproved && len(csr.Status.Certificate) == 0 {
			continue // its signer may still sign it
		}
		if at := cond.LastUpdateTime; !at.IsZero() {
			end = at.Add(decidedTTL)
		}
	}
	if notAfter, ok := notAfter(csr.Status.Certificate); ok && notAfter.Before(end) {
		end = notAfter
	}
	return end
}

func notAfter(cert []byte) (time.Time, bool) {
	block, _ := pem.Decode(cert)
	if block == nil {
		return time.Time{}, false
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return parsed.NotAfter, true
}

func (c *Controller) delete(ctx context.Context, csr *certv1.CertificateSigningRequest) error {
	err := c.env.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &csr.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete certificate request %s: %w", csr.Name, err)
	}
	return nil
}

var errUsage = errors.New("unsupported usage")
