// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"keelson/api/apply"
	"keelson/api/kind"
	"keelson/api/scheme"
	"keelson/apiserver/admission"
	"keelson/apiserver/audit"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/event"
)

// Admitter runs the plugins for the requests of all verbs.
type Admitter struct {
	chain *admission.Chain
	own   admission.Creator
}

// AdmissionRequest is what plugins get of a request.
func AdmissionRequest(
	rq *pipeline.Request, res *resources.Resource, op admission.Operation, obj, old kind.Object, opts runtime.Object,
	dry bool,
) *admission.Request {
	ar := &admission.Request{
		Operation:   op,
		Resource:    res.GVR(),
		Kind:        res.GVK(),
		Subresource: rq.Subresource,
		Namespace:   rq.Namespace,
		Name:        rq.Name,
		Options:     opts,
		User:        rq.User,
		DryRun:      dry,
		Warn:        rq.Warn,
		Annotate:    rq.Annotator(),
		AuditBodies: rq.Audits(audit.LevelRequest),
		Spec:        res.Kind,
	}
	if obj != nil { // a nil kind.Object would become a non-nil interface
		ar.Object = obj
		if ar.Name == "" {
			ar.Name = obj.GetName()
		}
	}
	if old != nil {
		ar.OldObject = old
	}
	if res.IsNamespace && ar.Namespace == "" {
		ar.Namespace = ar.Name
	}
	return ar
}

// Mutate runs the mutating plugins, then defaults what they added.
func (a Admitter) Mutate(
	ctx context.Context, rq *pipeline.Request, ar *admission.Request, res *resources.Resource, obj kind.Object,
) error {
	if len(a.chain.Plugins()) == 0 {
		return nil
	}
	ar.Own = a.own
	begin := time.Now()
	rq.Mark.AdmissionAccepted = 0
	rq.Mark.AdmissionChanged = nil
	owned, _ := ar.Object.(metav1.Object)
	var fields []metav1.ManagedFieldsEntry
	if owned != nil {
		fields = owned.GetManagedFields()
	}
	err := a.chain.Mutate(ctx, ar, func(name string) {
		if !slices.ContainsFunc(ar.Changes(), func(c event.Change) bool { return c.By == name }) {
			rq.Mark.AdmissionAccepted++
		}
	})
	rq.Mark.AdmissionChanged = ar.Changes()
	rq.Mark.Admission = time.Since(begin)
	rq.Mark.AdmissionSlow = ar.Slowest()
	if err != nil {
		return err
	}
	if owned != nil {
		restoreManagedFields(owned, fields, rq.Warn)
	}
	if obj != nil {
		begin = time.Now()
		res.Default(obj)
		rq.Mark.Default += time.Since(begin)
	}
	return nil
}

// restoreManagedFields restores managedFields from before admission if a plugin made them invalid.
func restoreManagedFields(obj metav1.Object, before []metav1.ManagedFieldsEntry, warn func(string)) {
	after := obj.GetManagedFields()
	if len(after) == 0 || len(after) == len(before) && &after[0] == &before[0] || apply.SameExceptTimes(after, before) {
		return
	}
	if err := managedfields.ValidateManagedFields(after); err != nil {
		obj.SetManagedFields(before)
		warn(fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by "+
			"an outdated mutating admission controller; please fix your requests: %v", err))
	}
}

// Do runs the validating plugins and, unless one rejects the request, write; see admission.Chain.Do.
func (a Admitter) Do(ctx context.Context, rq *pipeline.Request, ar *admission.Request, write func() error) error {
	if len(a.chain.Plugins()) == 0 {
		return write()
	}
	begin := time.Now()
	checked := sync.OnceFunc(func() {
		rq.Mark.Admission += time.Since(begin)
		rq.Mark.AdmissionSlow = ar.Slowest()
	})
	defer checked() // after a rejection
	return a.chain.Do(ctx, ar, func() error {
		checked()
		return write()
	})
}

// Connection runs all plugins for a request that opens a connection.
func (a Admitter) Connection(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, opts runtime.Object,
) error {
	ar := AdmissionRequest(rq, res, admission.Connect, nil, nil, opts, false)
	ar.Object = opts
	ar.Spec = nil
	if gvks, _, err := scheme.Scheme.ObjectKinds(opts); err == nil {
		ar.Kind = gvks[0]
	}
	if err := a.Mutate(ctx, rq, ar, res, nil); err != nil {
		return err
	}
	return a.Do(ctx, rq, ar, NothingStored)
}

// NothingStored is the write of a request that stores nothing, or later: a connection, a token, a deletion.
func NothingStored() error { return nil }

// afterMutation is the end of the warning about owner references after mutating admission or a patch.
const afterMutation = " after mutating admission happens"

// dedupOwners removes duplicate owner references and warns the client. when is the end of the warning's text.
func dedupOwners(obj metav1.Object, when string, warn func(string)) {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return
	}
	seen := map[string]bool{}
	kept := make([]metav1.OwnerReference, 0, len(refs))
	for _, ref := range refs {
		if id := string(ref.UID); seen[id] && hasEqual(kept, ref) {
			warn(fmt.Sprintf(".metadata.ownerReferences contains duplicate entries%s; API server dedups owner "+
				"references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; "+
				"duplicate UID(s) observed: %v", when, id))
			continue
		}
		seen[string(ref.UID)] = true
		kept = append(kept, ref)
	}
	if len(kept) != len(refs) {
		obj.SetOwnerReferences(kept)
	}
}

func hasEqual(refs []metav1.OwnerReference, ref metav1.OwnerReference) bool {
	for i := range refs {
		if apiequality.Semantic.DeepEqual(refs[i], ref) {
			return true
		}
	}
	return false
}

// RecordSubject records the object in the request's event.
func RecordSubject(rq *pipeline.Request, res *resources.Resource, obj kind.Object) {
	rq.Subject = event.Subject{
		Resource:  res.Resource,
		Namespace: obj.GetNamespace(),
		Name:      obj.GetName(),
		UID:       string(obj.GetUID()),
	}
	if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
		rq.Mark.OwnerUID = string(owner.UID)
	}
	if res.MirrorAnnotation != "" {
		rq.Mark.MirrorOf = obj.GetAnnotations()[res.MirrorAnnotation]
	}
}

// RecordReceipt records the write in the request's event.
func RecordReceipt(rq *pipeline.Request, r objects.Receipt) {
	rq.Mark.Key = r.Key
	rq.Mark.Revision = r.Revision
	rq.Mark.Store = r.Took
	rq.Mark.Sync = r.Sync
}
