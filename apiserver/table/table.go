// SPDX-License-Identifier: Apache-2.0

// Package table converts objects to the Table that kubectl prints: a kind's columns and one row per object. handlers
// calls it. It never modifies an object.
package table

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
)

// Form is the requested form of a table.
type Form struct {
	// Version of meta.k8s.io, also for the metadata in rows.
	Version string
	// Include selects how much of each object its row contains.
	Include metav1.IncludeObjectPolicy
}

// Of returns the table of objs. header says whether it has column definitions (in a watch only the first event has).
func Of(spec *kind.Kind, objs []kind.Object, meta metav1.ListMeta, form Form, header bool) (*metav1.Table, error) {
	table := &metav1.Table{ListMeta: meta, Rows: make([]metav1.TableRow, 0, len(objs))}
	if header {
		table.ColumnDefinitions = spec.Columns
	}
	for _, obj := range objs {
		row := metav1.TableRow{Cells: spec.Row(obj)}
		if spec.Done != nil {
			row.Conditions = spec.Done(obj)
		}
		switch form.Include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			row.Object = runtime.RawExtension{Object: kind.Named(obj, spec.GVK())}
		default:
			row.Object = runtime.RawExtension{Object: metadata(obj, form.Version)}
		}
		table.Rows = append(table.Rows, row)
	}
	return table, nil
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
