// SPDX-License-Identifier: Apache-2.0

// Package table turns objects into the Table that kubectl prints: a kind's
// columns and one row per object. handlers call it. It changes no object.
package table

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
)

// Form is how a client wants a table.
type Form struct {
	// Version of meta.k8s.io, which the metadata in rows has too.
	Version string
	// Include says how much of each object its row carries.
	Include metav1.IncludeObjectPolicy
}

// Of makes the table of objs. header says whether columns are described (a watch describes them in its first event only).
func Of(k *kind.Kind, objs []kind.Object, meta metav1.ListMeta, form Form, header bool) (*metav1.Table, error) {
	t := &metav1.Table{ListMeta: meta, Rows: make([]metav1.TableRow, 0, len(objs))}
	if header {
		t.ColumnDefinitions = k.Columns
	}
	for _, obj := range objs {
		row := metav1.TableRow{Cells: k.Row(obj)}
		if k.Done != nil {
			row.Conditions = k.Done(obj)
		}
		switch form.Include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			row.Object = runtime.RawExtension{Object: kind.Named(obj, k.GVK())}
		default:
			row.Object = runtime.RawExtension{Object: metadata(obj, form.Version)}
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func metadata(obj kind.Object, version string) *metav1.PartialObjectMetadata {
	partialGVK := schema.GroupVersionKind{Group: metav1.GroupName, Version: version, Kind: "PartialObjectMetadata"}
	p := &metav1.PartialObjectMetadata{}
	if o, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := o.GetObjectMeta().(*metav1.ObjectMeta); ok {
			p.ObjectMeta = *m
			p.SetGroupVersionKind(partialGVK)
			return p
		}
	}
	p = meta.AsPartialObjectMetadata(obj)
	p.SetGroupVersionKind(partialGVK)
	return p
}
