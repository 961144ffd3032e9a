// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	tablevalidation "k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/inprocess"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/table"
	"keelson/apiserver/wire"
)

// Conversions that a client can request.
const (
	asTable       = "Table"
	asPartial     = "PartialObjectMetadata"
	asPartialList = "PartialObjectMetadataList"
)

// negotiated is the negotiated encoding and conversion of a response.
type negotiated struct {
	res     *resources.Resource
	want    wire.MediaTypeOptions
	include metav1.IncludeObjectPolicy
	encoder objects.Encoder
}

// negotiator chooses an encoding that the client accepts.
type negotiator = func(*http.Request, func(wire.MediaTypeOptions) bool) (wire.MediaTypeOptions, error)

// negotiateObject negotiates the response with one object from the Accept header and ?includeObject=.
func negotiateObject(r *http.Request, res *resources.Resource) (*negotiated, error) {
	want, err := negotiatorOf(res)(r, supportsConversion)
	if err != nil {
		return nil, err
	}
	if want.As == asPartialList {
		return nil, wire.NotAcceptableAs(fmt.Sprintf("you requested %s, but the requested object is not a list (%s)",
			want.As, goName(res, "")))
	}
	return newNegotiated(r, res, want)
}

// negotiateList is negotiateObject for a response with a list.
func negotiateList(r *http.Request, res *resources.Resource) (*negotiated, error) {
	want, err := negotiatorOf(res)(r, supportsConversion)
	if err != nil {
		return nil, err
	}
	if want.As == asPartial {
		return nil, wire.NotAcceptableAs(fmt.Sprintf("you requested %s, but the requested object is a list (%s)",
			want.As, goName(res, "List")))
	}
	return newNegotiated(r, res, want)
}

// negotiateWatch is negotiateObject for a watch.
func negotiateWatch(r *http.Request, res *resources.Resource) (*negotiated, error) {
	want, err := wire.NegotiateStream(r, supportsConversion, negotiatorOf(res))
	if err != nil {
		return nil, err
	}
	return newNegotiated(r, res, want)
}

func negotiatorOf(res *resources.Resource) negotiator {
	if res.Read != nil {
		return wire.NegotiateText
	}
	return wire.Negotiate
}

// goName is the name of a kind's Go type in Kubernetes, which some error messages contain.
func goName(res *resources.Resource, suffix string) string {
	if res.Read != nil {
		return "*unstructured.Unstructured" + suffix
	}
	group, _, _ := strings.Cut(res.Group, ".")
	return "*" + cmp.Or(group, "core") + "." + res.GVK().Kind + suffix
}

// newNegotiated builds the result of the negotiation.
func newNegotiated(r *http.Request, res *resources.Resource, want wire.MediaTypeOptions) (*negotiated, error) {
	s := &negotiated{res: res, want: want}
	switch want.As {
	case asTable:
		opts, err := fromQuery(r, metav1.Convert_url_Values_To_v1_TableOptions)
		if err != nil {
			return nil, err
		}
		if errs := tablevalidation.ValidateTableOptions(opts); len(errs) > 0 {
			return nil,
				apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", invalid.Error(errs)))
		}
		s.include = opts.IncludeObject
	case asPartial, asPartialList:
		s.want.As = asPartial
	}
	s.encoder = s.encoderOf(want.Media)
	return s, nil
}

// encoderOf is the encoder of whole objects or of their metadata, as the client wants them.
func (s *negotiated) encoderOf(media wire.Media) objects.Encoder {
	if s.want.As != asPartial {
		return s.res.Encoder(media)
	}
	return partialEncoder{
		media, schema.GroupVersionKind{Group: metav1.GroupName, Version: s.want.Version, Kind: asPartial},
	}
}

// supportsConversion reports whether the server supports the requested conversion. Tables have no protobuf form.
func supportsConversion(w wire.MediaTypeOptions) bool {
	if w.Group != metav1.GroupName || w.Version != "v1" && w.Version != "v1beta1" {
		return false
	}
	switch w.As {
	case asTable:
		return w.Media != wire.Proto
	case asPartial, asPartialList:
		return true
	}
	return false
}

// partialEncoder encodes an object's metadata only.
type partialEncoder struct {
	media wire.Media
	gvk   schema.GroupVersionKind
}

func (p partialEncoder) Key() string { return p.media.String() + ";" + asPartial + ";" + p.gvk.Version }

func (p partialEncoder) Encode(obj runtime.Object) ([]byte, error) {
	o, err := partial(obj, p.gvk)
	if err != nil {
		return nil, err
	}
	return wire.NewEncoder(p.media, p.gvk).Encode(o)
}

// partial returns the metadata of obj, sharing memory with it if possible.
func partial(obj runtime.Object, gvk schema.GroupVersionKind) (*metav1.PartialObjectMetadata, error) {
	metadata := &metav1.PartialObjectMetadata{}
	if o, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := o.GetObjectMeta().(*metav1.ObjectMeta); ok {
			metadata.ObjectMeta = *m
			metadata.SetGroupVersionKind(gvk)
			return metadata, nil
		}
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", obj, err)
	}
	metadata = meta.AsPartialObjectMetadata(m)
	metadata.SetGroupVersionKind(gvk)
	return metadata, nil
}

// encode returns e as a response or a watch event. header: a Table contains its column definitions.
func (s *negotiated) encode(e *objects.Entry, header bool) ([]byte, error) {
	if s.want.As != asTable {
		return e.Encoded(s.encoder)
	}
	t, err := table.Of(s.res.Kind, []kind.Object{e.Object},
		metav1.ListMeta{
			ResourceVersion: e.Object.GetResourceVersion(),
		}, table.Form{Version: s.want.Version, Include: s.include}, header)
	if err != nil {
		return nil, err
	}
	return s.encodeTable(t)
}

func (s *negotiated) encodeTable(t *metav1.Table) ([]byte, error) {
	return wire.NewEncoder(s.want.Media, schema.GroupVersionKind{
		Group:   metav1.GroupName,
		Version: s.want.Version,
		Kind:    asTable,
	}).Encode(t)
}

func (s *negotiated) writeOne(w http.ResponseWriter, r *http.Request, code int, e *objects.Entry) error {
	if passObject(w, r, code, e.Object, s.res.GVK(), s.want) {
		return nil
	}
	b, err := s.encode(e, true)
	if err != nil {
		return err
	}
	s.auditOne(pipeline.From(r.Context()), e)
	wire.WriteBytes(w, r, code, b, s.want)
	return nil
}

// writeObject responds with an object that is no Entry and has no other forms (reviews, tokens). A client that accepts
// only a Table gets 406.
func writeObject(
	w http.ResponseWriter, r *http.Request, code int, obj runtime.Object, gvk schema.GroupVersionKind,
) error {
	want, err := wire.Negotiate(r, nil)
	if err != nil {
		return err
	}
	auditAnswer(pipeline.From(r.Context()), obj, gvk)
	wire.Write(w, r, code, obj, gvk, want)
	return nil
}

// writeStatus responds with a Status, whatever conversion the client requested.
func writeStatus(w http.ResponseWriter, r *http.Request, code int, s *metav1.Status) error {
	want, err := wire.Negotiate(r, supportsConversion)
	if err != nil {
		return err
	}
	want.As = ""
	auditStatus(pipeline.From(r.Context()), s)
	if code < http.StatusMultipleChoices && passObject(w, r, code, s, statusGVK, want) {
		return nil
	}
	wire.Write(w, r, code, s, statusGVK, want)
	return nil
}

var statusGVK = schema.GroupVersionKind{Version: "v1", Kind: "Status"}

// passObject passes the object itself, not encoded, to an in-process client that requested it, if the response is not
// converted and has no warnings. It reports whether it did.
func passObject(
	w http.ResponseWriter, r *http.Request, code int, obj runtime.Object, gvk schema.GroupVersionKind,
	want wire.MediaTypeOptions,
) bool {
	a := inprocess.Wanted(r.Context())
	if a == nil || want.Media != wire.Proto || want.As != "" {
		return false
	}
	rq := pipeline.From(r.Context())
	if rq.Warned() {
		return false
	}
	auditAnswer(rq, obj, gvk)
	a.Object = obj
	w.WriteHeader(code)
	return true
}
