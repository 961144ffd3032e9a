// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"encoding/json"

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

func (s *negotiated) auditList(rq *pipeline.Request, page *objects.List) {
	if rq == nil || !rq.Audits(audit.LevelRequestResponse) {
		return
	}
	encoder := s.res.Encoder(wire.JSON)
	items := make([][]byte, 0, len(page.Items))
	for _, e := range page.Items {
		b, err := encoder.Encode(e.Object)
		if err != nil {
			return
		}
		items = append(items, b)
	}
	if b, err := wire.ListBytes(s.res.ListGVK(), listMeta(page), items); err == nil {
		rq.AuditResponse(b)
	}
}

func auditFailure(rq *pipeline.Request, err error) {
	status := wire.Status(err)
	rq.AuditStatus(status)
	auditAnswer(rq, status, schema.GroupVersionKind{Version: "v1", Kind: "Status"})
}
