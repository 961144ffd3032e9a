// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/table"
	"keelson/apiserver/wire"
)

// writeList streams page item by item, so that a list needs only the memory of its largest item.
func (s *negotiated) writeList(w http.ResponseWriter, r *http.Request, page *objects.List) error {
	list := &wire.List{
		Field: "items",
		Kind:  s.res.ListGVK(),
		Meta:  listMeta(page),
		Len:   len(page.Items),
	}
	var err error
	switch s.want.As {
	case asTable:
		err = s.tableList(list, page)
	case asPartial:
		err = s.partialList(list, page)
	default:
		err = s.plainList(list, page)
	}
	if err != nil {
		return err
	}
	auditList(pipeline.From(r.Context()), list)
	return wire.WriteList(r.Context(), w, r, list, s.want)
}

// plainList writes whole objects. YAML is converted from JSON, whose items are often encoded already.
func (s *negotiated) plainList(list *wire.List, page *objects.List) (err error) {
	list.Envelope, err = wire.Envelope(list.Kind, list.Meta)
	text := s.res.Encoder(wire.JSON)
	list.AppendJSON = func(b []byte, i int) ([]byte, error) {
		object, err := page.Items[i].Encoded(text)
		if err != nil {
			return nil, err
		}
		return wire.AppendItem(b, object), nil
	}
	list.Size = func(i int) (int, error) {
		if b := page.Items[i].Memoized(s.encoder); b != nil {
			raw, err := wire.ProtoRaw(b)
			return len(raw), err
		}
		return wire.ProtoSize(page.Items[i].Object)
	}
	list.Proto = func(i int) ([]byte, error) {
		object, err := page.Items[i].Encoded(s.encoder)
		if err != nil {
			return nil, err
		}
		return wire.ProtoRaw(object)
	}
	return err
}

// partialList writes the objects' metadata.
func (s *negotiated) partialList(list *wire.List, page *objects.List) error {
	gvk := schema.GroupVersionKind{Group: metav1.GroupName, Version: s.want.Version, Kind: asPartial}
	list.Kind = gvk.GroupVersion().WithKind(asPartialList)
	empty := &metav1.PartialObjectMetadataList{ListMeta: list.Meta, Items: []metav1.PartialObjectMetadata{}}
	empty.SetGroupVersionKind(list.Kind)
	var err error
	if list.Envelope, err = json.Marshal(empty); err != nil {
		return fmt.Errorf("encode list: %w", err)
	}
	list.AppendJSON = func(b []byte, i int) ([]byte, error) {
		p, err := partial(page.Items[i].Object, gvk)
		if err != nil {
			return nil, err
		}
		return appendJSON(b, p)
	}
	list.Size = func(i int) (int, error) {
		p, err := partial(page.Items[i].Object, gvk)
		if err != nil {
			return 0, err
		}
		return p.Size(), nil
	}
	list.Proto = func(i int) ([]byte, error) {
		p, err := partial(page.Items[i].Object, gvk)
		if err != nil {
			return nil, err
		}
		return p.Marshal()
	}
	return nil
}

// tableList writes table rows.
func (s *negotiated) tableList(list *wire.List, page *objects.List) error {
	form := table.Form{Version: s.want.Version, Include: s.include}
	empty, err := table.Of(s.res.Kind, nil, list.Meta, form, true)
	if err != nil {
		return err
	}
	empty.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: s.want.Version, Kind: asTable})
	if list.Envelope, err = json.Marshal(empty); err != nil {
		return fmt.Errorf("encode table: %w", err)
	}
	list.Field = "rows"
	list.AppendJSON = func(b []byte, i int) ([]byte, error) {
		t, err := table.Of(s.res.Kind, []kind.Object{page.Items[i].Object}, metav1.ListMeta{}, form, false)
		if err != nil {
			return nil, err
		}
		return appendJSON(b, &t.Rows[0])
	}
	return nil
}

func appendJSON(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode item of list: %w", err)
	}
	return append(b, text...), nil
}
