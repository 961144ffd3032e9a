// SPDX-License-Identifier: Apache-2.0

// Package certificates describes the kinds of certificates.k8s.io/v1: requests
// for certificates and bundles of trust anchors. The registry lists them. It
// reads certificates and requests but never makes or signs one.
package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	// legacySigner signed whatever was approved; requests of v1 may not name it.
	legacySigner = "kubernetes.io/legacy-unknown"
	minExpiry    = 600 // seconds
)

func names(k, resource, singular string, namespaced bool, short ...string) kind.Names {
	gv := certificatesv1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		ShortNames: short,
		Namespaced: namespaced,
	}
}

type request = certificatesv1.CertificateSigningRequest

// CertificateSigningRequest describes certificates.k8s.io/v1 CertificateSigningRequest. Who asks is written in by the
// server: see SetRequester.
func CertificateSigningRequest() *kind.Kind {
	return kind.Spec[*request]{
		Names: names("CertificateSigningRequest", "certificatesigningrequests", "certificatesigningrequest", false,
			"csr"),
		New:     func() *request { return &request{} },
		NewList: func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
		PrepareCreate: func(r *request) {
			r.Status = certificatesv1.CertificateSigningRequestStatus{}
		},
		PrepareUpdate: func(r, old *request) {
			r.Spec = old.Spec
			r.Status = old.Status
		},
		ValidateName:   func(string, bool) []string { return nil },
		Validate:       func(r *request) field.ErrorList { return validateRequest(r, nil) },
		ValidateUpdate: func(r, old *request) field.ErrorList { return validateRequestUpdate(r, old, false, false) },
		Fields:         func(r *request) fields.Set { return fields.Set{"spec.signerName": r.Spec.SignerName} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, kind.AgeColumn,
			{Name: "SignerName", Type: "string", Description: "The signer that is asked for the certificate."},
			{Name: "Requestor", Type: "string", Description: "The user who made the request."},
			{Name: "RequestedDuration", Type: "string", Description: "How long the certificate is asked to be valid."},
			{Name: "Condition", Type: "string", Description: "What became of the request."},
		},
		Row: func(r *request) []any {
			asked := "<none>"
			if s := r.Spec.ExpirationSeconds; s != nil {
				asked = duration.HumanDuration(time.Duration(*s) * time.Second)
			}
			return []any{r.Name, kind.Age(r.CreationTimestamp), r.Spec.SignerName, r.Spec.Username, asked, condition(r)}
		},
		Status: &kind.Sub[*request]{
			PrepareUpdate: func(r, old *request) {
				r.Spec = old.Spec
				r.Status.Conditions = slices.Clone(r.Status.Conditions)
				keepDecision(r, old, certificatesv1.CertificateApproved)
				keepDecision(r, old, certificatesv1.CertificateDenied)
				stampConditions(r, old)
			},
			ValidateUpdate: func(r, old *request) field.ErrorList { return validateRequestUpdate(r, old, false, true) },
		},
		More: map[string]*kind.Sub[*request]{"approval": {
			PrepareUpdate: func(r, old *request) {
				conditions := r.Status.Conditions
				r.Spec = old.Spec
				r.Status = old.Status
				r.Status.Conditions = conditions
				stampConditions(r, old)
			},
			ValidateUpdate: func(r, old *request) field.ErrorList { return validateRequestUpdate(r, old, true, false) },
		}},
	}.Erase()
}

// SetRequester writes into a new request who made it.
func SetRequester(obj kind.Object, name, uid string, groups []string, extra map[string][]string) {
	r, ok := obj.(*request)
	if !ok {
		return
	}
	r.Spec.Username = name
	r.Spec.UID = uid
	r.Spec.Groups = slices.Clone(groups)
	r.Spec.Extra = nil
	for k, v := range extra {
		if r.Spec.Extra == nil {
			r.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		r.Spec.Extra[k] = slices.Clone(v)
	}
}

// condition sums up the status: "Approved,Issued".
func condition(r *request) string {
	var approved, denied, failed bool
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateApproved:
			approved = true
		case certificatesv1.CertificateDenied:
			denied = true
		case certificatesv1.CertificateFailed:
			failed = true
		}
	}
	out := "Pending"
	if denied {
		out = "Denied"
	} else if approved {
		out = "Approved"
	}
	if failed {
		out += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		out += ",Issued"
	}
	return out
}

// stampConditions fills in the times that the client left out.
func stampConditions(r, old *request) {
	now := metav1.Now().Rfc3339Copy()
	r.Status.Conditions = slices.Clone(r.Status.Conditions)
	for i := range r.Status.Conditions {
		c := &r.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		for _, before := range old.Status.Conditions {
			if before.Type == c.Type && before.Status == c.Status {
				c.LastTransitionTime = before.LastTransitionTime
				break
			}
		}
	}
}

// keepDecision leaves the conditions of type t as they were, unless there are more or fewer.
func keepDecision(r, old *request, t certificatesv1.RequestConditionType) {
	before := ofType(old, t)
	if len(before) != len(ofType(r, t)) {
		return
	}
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == t {
			*c, before = before[0], before[1:]
		}
	}
}

// usages are the known ones, in the order messages print them.
var usages = []certificatesv1.KeyUsage{
	certificatesv1.UsageAny, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth,
	certificatesv1.UsageCodeSigning,
	certificatesv1.UsageContentCommitment, certificatesv1.UsageCRLSign, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageDecipherOnly,
	certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection, certificatesv1.UsageEncipherOnly,
	certificatesv1.UsageIPsecEndSystem,
	certificatesv1.UsageIPsecTunnel, certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement,
	certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning,
	certificatesv1.UsageSMIME,
	certificatesv1.UsageServerAuth, certificatesv1.UsageSigning, certificatesv1.UsageTimestamping,
}

// validateRequest checks a request; what was wrong in old already may stay.
func validateRequest(r, old *request) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(r)...)
	l.Within("spec", func() {
		s := &r.Spec
		if err := checkRequest(s.Request); err != nil {
			l.Invalid("request", s.Request, err.Error())
		}
		if len(s.Usages) == 0 {
			l.Required("usages", "")
		}
		if old == nil {
			var seen check.Set
			check.Each(l, "usages", s.Usages, func(_ int, u *certificatesv1.KeyUsage) {
				check.Pointer(l, "", u, usages...)
			})
			check.Each(l, "usages", s.Usages, func(_ int, u *certificatesv1.KeyUsage) {
				if !seen.Add(string(*u)) {
					l.Duplicate("", *u)
				}
			})
		}
		if old == nil && s.SignerName == legacySigner {
			l.Invalid("signerName", s.SignerName, "the legacy signerName is not allowed via this API version")
		} else {
			l.SignerName("signerName", s.SignerName)
		}
		if e := s.ExpirationSeconds; e != nil && *e < minExpiry {
			l.Invalid("expirationSeconds", *e, "may not specify a duration less than 600 seconds (10 minutes)")
		}
	})
	l.Within("status", func() {
		validateConditions(l, r.Status.Conditions)
		if err := checkCertificate(r.Status.Certificate); err != nil {
			l.Invalid("certificate", "<certificate data>", err.Error())
		}
	})
	return l.Errors()
}

func checkRequest(b []byte) error {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return csr.CheckSignature()
}

// checkCertificate wants nothing, or certificates in PEM and nothing else.
func checkCertificate(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	n := 0
	for rest := b; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) != 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		n++
	}
	if n == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

func validateConditions(l *check.List, list []certificatesv1.CertificateSigningRequestCondition) {
	var seen check.Set
	check.Each(l, "conditions", list, func(_ int, c *certificatesv1.CertificateSigningRequestCondition) {
		if c.Type == "" {
			l.Required("type", "")
		}
		allowed := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			allowed = allowed[1:2]
		}
		check.OneOf(l, "status", c.Status, allowed...)
		if !seen.Add(string(c.Type)) {
			l.Duplicate("type", c.Type)
		}
	})
	if seen.Has(string(certificatesv1.CertificateApproved)) && seen.Has(string(certificatesv1.CertificateDenied)) {
		const approved, denied = `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`
		l.Declared(field.Invalid(l.Path("conditions"), "{"+approved+", "+denied+"}",
			"must specify at most one of: `"+approved+"`, `"+denied+"`"))
	}
}

// validateRequestUpdate: only the approval may approve or deny, only the status may hold the certificate, and only
// once.
func validateRequestUpdate(r, old *request, approval, certificate bool) field.ErrorList {
	errs := validateRequest(r, old)
	path := field.NewPath("status")
	conditions := path.Child("conditions")
	decided := []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied,
	}
	for _, t := range append(decided, certificatesv1.CertificateFailed) {
		if len(ofType(r, t)) < len(ofType(old, t)) {
			errs = append(errs,
				field.Forbidden(conditions, fmt.Sprintf("updates may not remove a condition of type %q", t)))
		}
	}
	if !approval {
		for _, t := range decided {
			before := ofType(old, t)
			after := ofType(r, t)
			switch {
			case len(after) < len(before): // said above
			case len(after) > len(before):
				errs = append(errs,
					field.Forbidden(conditions, fmt.Sprintf("updates may not add a condition of type %q", t)))
			case !equality.Semantic.DeepEqual(before, after): // the same moment may be in another time zone
				errs = append(errs,
					field.Forbidden(conditions, fmt.Sprintf("updates may not modify a condition of type %q", t)))
			}
		}
	}
	if !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		switch {
		case !certificate:
			errs = append(errs, field.Forbidden(path.Child("certificate"), "updates may not set certificate content"))
		case len(old.Status.Certificate) > 0:
			errs = append(errs,
				field.Forbidden(path.Child("certificate"), "updates may not modify existing certificate content"))
		}
	}
	return errs
}

func ofType(r *request, t certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var out []certificatesv1.CertificateSigningRequestCondition
	for _, c := range r.Status.Conditions {
		if c.Type == t {
			out = append(out, c)
		}
	}
	return out
}
