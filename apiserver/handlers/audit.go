// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/audit"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/wire"
)

// The audit log contains objects as JSON, whatever encoding the client uses.

// auditObject encodes obj for an audit event.
func auditObject(obj runtime.Object, gvk schema.GroupVersionKind) []byte {
	b, err := wire.NewEncoder(wire.JSON, gvk).Encode(obj)
	if err != nil {
		return nil
	}
	return b
}

// auditSent adds a client's object to the audit event.
func auditSent(rq *pipeline.Request, obj runtime.Object, gvk schema.GroupVersionKind) {
	if rq.Audits(audit.LevelRequest) {
		rq.AuditRequest(auditObject(obj, gvk))
	}
}

// auditPatch adds a client's patch to the audit event.
func auditPatch(rq *pipeline.Request, body []byte) {
	if !rq.Audits(audit.LevelRequest) {
		return
	}
	doc, err := wire.YAMLToJSON(body)
	if err == nil && json.Valid(doc) {
		rq.AuditRequest(doc)
	}
}

// auditAnswer adds the response object to the audit event.
func auditAnswer(rq *pipeline.Request, obj runtime.Object, gvk schema.GroupVersionKind) {
	if rq != nil && rq.Audits(audit.LevelRequestResponse) {
		rq.AuditResponse(auditObject(obj, gvk))
	}
}

// auditOne adds the response with one object to the audit event: a Table if the client gets a Table.
func (s *negotiated) auditOne(rq *pipeline.Request, e *objects.Entry) {
	if rq == nil || !rq.Audits(audit.LevelRequestResponse) {
		return
	}
	text := *s
	text.want.Media = wire.JSON
	text.encoder = s.encoderOf(wire.JSON)
	if b, err := text.encode(e, true); err == nil {
		rq.AuditResponse(b)
	}
}

func auditList(rq *pipeline.Request, list *wire.List) {
	if rq == nil || !rq.Audits(audit.LevelRequestResponse) {
		return
	}
	if b, err := list.JSON(); err == nil {
		rq.AuditResponse(b)
	}
}

// auditStatus adds a Status that is the response.
func auditStatus(rq *pipeline.Request, status *metav1.Status) {
	if rq != nil && rq.Audits(audit.LevelMetadata) {
		rq.AuditStatus(status)
		auditAnswer(rq, status, statusGVK)
	}
}
