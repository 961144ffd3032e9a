// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// WriteList answers with a list of kind list (PodList) made of items that are already encoded as single answers, without
// encoding them again. want.Media is JSON or Proto and not pretty.
func WriteList(w http.ResponseWriter, r *http.Request, list schema.GroupVersionKind, meta metav1.ListMeta, items [][]byte, want Want) error {
	head, parts, tail, err := listParts(list, meta, items, want.Media)
	if err != nil {
		return err
	}
	size := len(head) + len(tail)
	for _, p := range parts {
		size += len(p)
	}
	WriteParts(w, r, http.StatusOK, want.Media.String(), size, func(yield func([]byte) bool) {
		if !yield(head) {
			return
		}
		for _, p := range parts {
			if !yield(p) {
				return
			}
		}
		if len(tail) > 0 {
			yield(tail)
		}
	})
	return nil
}

// ListBytes is WriteList's body in one piece.
func ListBytes(list schema.GroupVersionKind, meta metav1.ListMeta, items [][]byte, media Media) ([]byte, error) {
	head, parts, tail, err := listParts(list, meta, items, media)
	if err != nil {
		return nil, err
	}
	return append(append(head, bytes.Join(parts, nil)...), tail...), nil
}

func listParts(list schema.GroupVersionKind, meta metav1.ListMeta, items [][]byte, media Media) (head []byte, parts [][]byte, tail []byte, err error) {
	if media == Proto {
		return protoList(list, meta, items)
	}
	return jsonList(list, meta, items)
}

func jsonList(list schema.GroupVersionKind, meta metav1.ListMeta, items [][]byte) (head []byte, parts [][]byte, tail []byte, err error) {
	m, err := json.Marshal(meta)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encode list metadata: %w", err)
	}
	head = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, list.Kind, list.GroupVersion().String(), m)
	parts = make([][]byte, 0, 3*len(items))
	for i, item := range items {
		if i > 0 {
			parts = append(parts, comma)
		}
		parts = append(parts, brace, withoutKind(item))
	}
	return head, parts, []byte("]}\n"), nil
}

var comma, brace = []byte(","), []byte("{")

// withoutKind cuts `{"kind":"Pod","apiVersion":"v1",` and the final newline off an encoded object: list items do not carry them.
func withoutKind(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte("\n"))
	rest, ok := bytes.CutPrefix(b, []byte(`{"kind":"`))
	if ok {
		_, rest, ok = bytes.Cut(rest, []byte(`","apiVersion":"`))
	}
	if ok {
		_, rest, ok = bytes.Cut(rest, []byte(`"`))
	}
	if !ok {
		return bytes.TrimPrefix(b, brace)
	}
	return bytes.TrimPrefix(rest, comma)
}

func protoList(list schema.GroupVersionKind, meta metav1.ListMeta, items [][]byte) (head []byte, parts [][]byte, tail []byte, err error) {
	parts = make([][]byte, 0, 2*len(items))
	size := 1 + uvarintLen(meta.Size()) + meta.Size()
	heads := make([]byte, 0, 4*len(items)) // the tag and length of every item, cut into pieces below
	for _, item := range items {
		raw, err := protoRaw(item)
		if err != nil {
			return nil, nil, nil, err
		}
		from := len(heads)
		heads = binary.AppendUvarint(append(heads, tagSecond), uint64(len(raw)))
		parts = append(parts, heads[from:], raw)
		size += len(heads) - from + len(raw)
	}
	head = appendEnvelope(make([]byte, 0, 256), list, size)
	head = binary.AppendUvarint(append(head, tagFirst), uint64(meta.Size()))
	m, err := meta.Marshal()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encode list metadata: %w", err)
	}
	return append(head, m...), parts, unknownTail, nil
}
