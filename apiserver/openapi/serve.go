// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
)

// form is a media type of documents.
type form struct {
	accepted string // what clients ask for
	sent     string
	write    func(pieces, io.Writer) error
}

var (
	formsV2 = []form{
		{"application/json", "application/json", pieces.writeJSON},
		{"application/com.github.proto-openapi.spec.v2@v1.0+protobuf", protobufV2, writeProtobufV2},
		{"application/com.github.proto-openapi.spec.v2.v1.0+protobuf", protobufV2, writeProtobufV2},
	}
	formsV3 = []form{
		{"application/json", "application/json", pieces.writeJSON},
		{"application/com.github.proto-openapi.spec.v3.v1.0+protobuf", protobufV3, writeProtobufV3},
		{"application/com.github.proto-openapi.spec.v3@v1.0+protobuf", protobufV3, writeProtobufV3},
	}
)

// The protobuf forms have an older name with an "@", which is no valid media type.
const (
	protobufV2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	protobufV3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

func writeProtobufV2(p pieces, w io.Writer) error { return p.writeProtobuf(w, handler.ToProtoBinary) }

func writeProtobufV3(p pieces, w io.Writer) error {
	return p.writeProtobuf(w, handler3.ToV3ProtoBinary)
}

// chosen is the form that the client prefers; nil: it accepts none.
func chosen(r *http.Request, forms []form) *form {
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for i := range forms {
			kind, sub, _ := strings.Cut(forms[i].accepted, "/")
			if (clause.Type == kind || clause.Type == "*") && (clause.SubType == sub || clause.SubType == "*") {
				return &forms[i]
			}
		}
	}
	return nil
}

// serve writes a document in the form that the client prefers, and makes it before if it is not kept.
func (d *Documents) serve(w http.ResponseWriter, r *http.Request, doc document, since time.Time, forms []form) {
	header := w.Header()
	header.Set("Vary", "Accept, Accept-Encoding")
	how := chosen(r, forms)
	if how == nil {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	header.Set("Content-Type", how.sent)
	header.Set("Etag", `"`+doc.hash+`"`)
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != doc.hash {
			http.Redirect(w, r, doc.url(), http.StatusMovedPermanently)
			return
		}
		header.Set("Cache-Control", "public, immutable")
		header.Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	if r.Header.Get("If-None-Match") == header.Get("Etag") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	packed, err := d.made(doc, how)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		serveBytes(w, r, since, packed)
		return
	}
	plain, err := unpacked(packed)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	serveBytes(w, r, since, plain)
}

// made is the compressed document.
func (d *Documents) made(doc document, how *form) ([]byte, error) {
	d.making.Lock()
	defer d.making.Unlock()
	return d.cache.packed(how.sent+" "+doc.name+" "+doc.hash, func(w io.Writer) error {
		return how.write(doc.pieces, w)
	})
}

func serveBytes(w http.ResponseWriter, r *http.Request, since time.Time, b []byte) {
	http.ServeContent(w, r, "", since, bytes.NewReader(b))
}
