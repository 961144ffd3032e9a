// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"keelson/apiserver/audit"
	"keelson/auth"
)

// auditRecord is what the audit log gets about a request. It is nil if the policy records nothing.
type auditRecord struct {
	auditor *audit.Auditor
	config  audit.RequestAuditConfig
	event   *audit.Event

	mu          sync.Mutex
	request     []byte
	response    []byte
	status      *metav1.Status
	annotations map[string]string
	started     bool
}

// Audits reports whether the audit log needs this level of detail.
func (r *Request) Audits(l audit.Level) bool { return r.audit != nil && r.audit.config.AtLeast(l) }

// AuditRequest adds the request's object as JSON. It may be called if Audits is true.
func (r *Request) AuditRequest(object []byte) {
	r.audit.mu.Lock()
	defer r.audit.mu.Unlock()
	r.audit.request = object
}

// AuditResponse adds the response's object as JSON. It may be called if Audits is true.
func (r *Request) AuditResponse(object []byte) {
	r.audit.mu.Lock()
	defer r.audit.mu.Unlock()
	r.audit.response = object
}

// AuditStatus adds the reason of a failed request.
func (r *Request) AuditStatus(s *metav1.Status) {
	if r.audit == nil {
		return
	}
	r.audit.mu.Lock()
	defer r.audit.mu.Unlock()
	r.audit.status = s
}

// Annotate adds an annotation to the request's audit events; the first value of a key is kept.
func (r *Request) Annotate(key, value string) {
	if r.audit == nil {
		return
	}
	r.audit.mu.Lock()
	defer r.audit.mu.Unlock()
	if r.audit.annotations == nil {
		r.audit.annotations = map[string]string{}
	}
	if _, there := r.audit.annotations[key]; !there {
		r.audit.annotations[key] = value
	}
}

// Annotator is Annotate if the request is recorded, else nil, so that callers can skip the work.
func (r *Request) Annotator() func(key, value string) {
	if r.audit == nil {
		return nil
	}
	return r.Annotate
}

// auditRequests records requests according to the policy, from here to their end.
func auditRequests(c *Config, next http.Handler) http.Handler {
	if c.Audit == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		rec := newRecord(c.Audit, rq, r)
		if rec == nil {
			next.ServeHTTP(w, r)
			return
		}
		rq.audit = rec
		rec.emit(rq, audit.StageRequestReceived, 0)
		defer func() {
			if p := recover(); p != nil {
				rec.status = &metav1.Status{
					Status:  metav1.StatusFailure,
					Reason:  metav1.StatusReasonInternalError,
					Code:    http.StatusInternalServerError,
					Message: fmt.Sprintf("APIServer panic'd: %v", p),
				}
				rec.emit(rq, audit.StagePanic, http.StatusInternalServerError)
				panic(p)
			}
			code := http.StatusOK
			if a, ok := w.(*responseRecorder); ok && a.code != 0 {
				code = a.code
			}
			rec.emit(rq, audit.StageResponseComplete, code)
		}()
		next.ServeHTTP(w, r)
	})
}

// newRecord starts a request's record; nil: the policy records nothing.
func newRecord(auditor *audit.Auditor, rq *Request, r *http.Request) *auditRecord {
	user := rq.User
	if user == nil {
		user = &auth.User{}
	}
	config := auditor.Evaluate(&audit.Request{
		User:        user.Name,
		Groups:      user.Groups,
		Verb:        rq.Verb,
		IsResource:  rq.IsResource,
		Group:       rq.Group,
		Resource:    rq.Resource,
		Subresource: rq.Subresource,
		Namespace:   rq.Namespace,
		Name:        rq.Name,
		Path:        rq.Path,
	})
	if config.Level == audit.LevelNone {
		return nil
	}
	event := audit.NewEvent()
	event.Level = config.Level
	event.AuditID = rq.AuditID
	event.RequestURI = r.URL.RequestURI()
	event.Verb = rq.Verb
	event.UserAgent = r.UserAgent()
	event.User = UserInfo(user)
	event.RequestReceivedTimestamp = metav1.NewMicroTime(rq.Begin)
	for _, ip := range utilnet.SourceIPs(r) {
		event.SourceIPs = append(event.SourceIPs, ip.String())
	}
	if rq.IsResource {
		event.ObjectRef = &audit.ObjectReference{
			Resource:    rq.Resource,
			Namespace:   rq.Namespace,
			Name:        rq.Name,
			APIGroup:    rq.Group,
			APIVersion:  rq.Version,
			Subresource: rq.Subresource,
		}
	}
	return &auditRecord{
		auditor:     auditor,
		config:      config,
		event:       event,
		annotations: maps.Clone(user.Annotations),
	}
}

// UserInfo converts a user to the API type.
func UserInfo(u *auth.User) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for k, v := range u.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}

// emit records a stage if the policy wants it; code is the response's, 0 if there is none yet.
func (c *auditRecord) emit(rq *Request, stage audit.Stage, code int) {
	if !c.config.Wants(stage) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	event := *c.event
	event.Stage = stage
	event.StageTimestamp = metav1.NewMicroTime(time.Now())
	if rq.impersonator != nil {
		as := UserInfo(rq.User)
		event.ImpersonatedUser = &as
		if rq.constraint != "" {
			event.AuthenticationMetadata = &audit.AuthenticationMetadata{ImpersonationConstraint: rq.constraint}
		}
	}
	if len(c.annotations) > 0 {
		event.Annotations = make(map[string]string, len(c.annotations))
		maps.Copy(event.Annotations, c.annotations)
	}
	if code != 0 {
		c.setResponse(&event, rq, code)
	}
	c.auditor.Record(&event)
}

// setResponse adds what is known when there is a response. c.mu is held.
func (c *auditRecord) setResponse(event *audit.Event, rq *Request, code int) {
	event.ResponseStatus = &metav1.Status{Code: int32(code)} // an HTTP code
	if c.status != nil {
		event.ResponseStatus.Status = c.status.Status
		event.ResponseStatus.Message = c.status.Message
		event.ResponseStatus.Reason = c.status.Reason
		event.ResponseStatus.Details = c.status.Details
	}
	if event.ObjectRef != nil && (event.ObjectRef.Name == "" || rq.Subject.UID != "") && rq.Subject.Name != "" {
		ref := *event.ObjectRef
		ref.Name = rq.Subject.Name
		ref.UID = rq.Subject.UID
		event.ObjectRef = &ref
	}
	event.RequestObject = c.request
	event.ResponseObject = c.response
	if c.config.OmitManagedFields {
		if event.RequestObject != nil {
			event.RequestObject = audit.WithoutManagedFields(event.RequestObject)
		}
		if event.ResponseObject != nil {
			event.ResponseObject = audit.WithoutManagedFields(event.ResponseObject)
		}
	}
}

// responseStarted is called when the response begins, which is an audit stage of long-running requests.
func (r *Request) responseStarted(code int) {
	if r.audit == nil || r.audit.started || !r.LongRunning() {
		return
	}
	r.audit.started = true
	r.audit.emit(r, audit.StageResponseStarted, code)
}

// auditUnauthenticated records a request that failed authentication.
func auditUnauthenticated(c *Config, rq *Request, r *http.Request) {
	if c.Audit == nil {
		return
	}
	if rec := newRecord(c.Audit, rq, r); rec != nil {
		rec.status = &metav1.Status{
			Status:  metav1.StatusFailure,
			Message: "Authentication failed",
			Reason:  metav1.StatusReasonUnauthorized,
		}
		rec.emit(rq, audit.StageResponseStarted, http.StatusUnauthorized)
	}
}
