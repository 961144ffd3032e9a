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
	"keelson/api/invalid"
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
	req, ok := obj.(*request)
	if !ok {
		return
	}
	req.Spec.Username = name
	req.Spec.UID = uid
	req.Spec.Groups = slices.Clone(groups)
	req.Spec.Extra = nil
	for k, v := range extra {
		if req.Spec.Extra == nil {
			req.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		req.Spec.Extra[k] = slices.Clone(v)
	}
}

// condition sums up the status: "Approved,Issued".
func condition(req *request) string {
	var approved, denied, failed bool
	for _, c := range req.Status.Conditions {
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
	if len(req.Status.Certificate) > 0 {
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
func validateRequest(req, old *request) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(req)...)
	errs.Within("spec", func() {
		spec := &req.Spec
		if err := checkRequest(spec.Request); err != nil {
			errs.Invalid("request", spec.Request, err.Error())
		}
		if len(spec.Usages) == 0 {
			errs.Required("usages", "")
		}
		if old == nil {
			var seen check.Set
			check.Each(errs, "usages", spec.Usages, func(_ int, u *certificatesv1.KeyUsage) {
				check.Pointer(errs, "", u, usages...)
			})
			check.Each(errs, "usages", spec.Usages, func(_ int, u *certificatesv1.KeyUsage) {
				if !seen.Add(string(*u)) {
					errs.Duplicate("", *u)
				}
			})
		}
		if old == nil && spec.SignerName == legacySigner {
			errs.Invalid("signerName", spec.SignerName, "the legacy signerName is not allowed via this API version")
		} else {
			errs.SignerName("signerName", spec.SignerName)
		}
		if e := spec.ExpirationSeconds; e != nil && *e < minExpiry {
			errs.Invalid("expirationSeconds", *e, "may not specify a duration less than 600 seconds (10 minutes)")
		}
	})
	errs.Within("status", func() {
		validateConditions(errs, req.Status.Conditions)
		if err := checkCertificate(req.Status.Certificate); err != nil {
			errs.Invalid("certificate", "<certificate data>", err.Error())
		}
	})
	return errs.Errors()
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

func validateConditions(errs *check.List, list []certificatesv1.CertificateSigningRequestCondition) {
	var seen check.Set
	check.Each(errs, "conditions", list, func(_ int, condition *certificatesv1.CertificateSigningRequestCondition) {
		check.Needs(errs, "type", condition.Type)
		allowed := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		switch condition.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			allowed = allowed[1:2]
		}
		check.OneOf(errs, "status", condition.Status, allowed...)
		if !seen.Add(string(condition.Type)) {
			errs.Duplicate("type", condition.Type)
		}
	})
	if seen.Has(string(certificatesv1.CertificateApproved)) && seen.Has(string(certificatesv1.CertificateDenied)) {
		const approved, denied = `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`
		errs.Declared(field.Invalid(errs.Path("conditions"), "{"+approved+", "+denied+"}",
			"must specify at most one of: `"+approved+"`, `"+denied+"`"))
	}
}

// validateRequestUpdate: only the approval may approve or deny, only the status may hold the certificate, and only
// once.
func validateRequestUpdate(req, old *request, approval, certificate bool) field.ErrorList {
	errs := validateRequest(req, old)
	path := field.NewPath("status")
	conditions := path.Child("conditions")
	decided := []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied,
	}
	for _, t := range append(decided, certificatesv1.CertificateFailed) {
		if len(ofType(req, t)) < len(ofType(old, t)) {
			errs = invalid.Append(errs,
				field.Forbidden(conditions, fmt.Sprintf("updates may not remove a condition of type %q", t)))
		}
	}
	if !approval {
		for _, t := range decided {
			before := ofType(old, t)
			after := ofType(req, t)
			switch {
			case len(after) < len(before): // said above
			case len(after) > len(before):
				errs = invalid.Append(errs,
					field.Forbidden(conditions, fmt.Sprintf("updates may not add a condition of type %q", t)))
			case !equality.Semantic.DeepEqual(before, after): // the same moment may be in another time zone
				errs = invalid.Append(errs,
					field.Forbidden(conditions, fmt.Sprintf("updates may not modify a condition of type %q", t)))
			}
		}
	}
	if !bytes.Equal(req.Status.Certificate, old.Status.Certificate) {
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
