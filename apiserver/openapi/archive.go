// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	_ "embed" // the archive
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
)

// archiveFile has the documents of all built-in resources, because making one takes a tenth of a second and many times
// its size. It is used where the server serves just those resources; gates change that. Only its index is read before a
// client asks for a document.
//
//go:generate go test keelson/apiserver -run TestArchive -update
//go:embed archive.bin
var archiveFile []byte

var embeddedArchive = sync.OnceValue(func() *archive { return openArchive(archiveFile) })

// archive has a line of JSON, the index, and then the compressed documents in that order.
type archive struct {
	entries []archived
	content []byte
}

// archived is a document in one form.
type archived struct {
	Name string `json:"name"` // as in document
	Form string `json:"form"` // jsonForm or a protobuf form
	Sum  string `json:"sum"`  // of the resources that the document describes
	Size int    `json:"size"` // compressed
	// Base is the index of the document that this one was compressed with, -1: none. Documents repeat each other.
	Base int `json:"base"`
}

const (
	jsonForm = "application/json"
	// anyVersion stands in the archive for the server's version.
	anyVersion = "v0.0.0"
	// baseName is the document with most of the types that others repeat.
	baseName = "api/v1"
	// dictionary is the number that zstd wants for the base.
	dictionary = 1
)

// openArchive reads the index. The file is part of the program: one that cannot be read has no documents.
func openArchive(file []byte) *archive {
	index, content, _ := bytes.Cut(file, []byte{'\n'})
	opened := &archive{content: content}
	if json.Unmarshal(index, &opened.entries) != nil {
		opened.entries = nil
	}
	return opened
}

// read returns a document for the server's version, nil if the archive does not have it for these resources.
func (a *archive) read(name, form, sum, version string) ([]byte, error) {
	at := slices.IndexFunc(a.entries, func(e archived) bool { return e.Name == name && e.Form == form && e.Sum == sum })
	if at < 0 {
		return nil, nil
	}
	doc, err := a.unpacked(at)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document %s of the program: %w", name, err)
	}
	return withVersion(doc, form, version), nil
}

func (a *archive) unpacked(at int) ([]byte, error) {
	entry := a.entries[at]
	offset := 0
	for _, before := range a.entries[:at] {
		offset += before.Size
	}
	if offset+entry.Size > len(a.content) {
		return nil, fmt.Errorf("the archive ends before byte %d", offset+entry.Size)
	}
	options := []zstd.DOption{zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true)}
	if entry.Base >= 0 {
		base, err := a.unpacked(entry.Base)
		if err != nil {
			return nil, err
		}
		options = append(options, zstd.WithDecoderDictRaw(dictionary, base))
	}
	unzip, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, err
	}
	defer unzip.Close()
	return unzip.DecodeAll(a.content[offset:offset+entry.Size], nil)
}

// withVersion puts the server's version in place of anyVersion. A protobuf message is continued: of a field that comes
// twice, readers take the last.
func withVersion(doc []byte, form, version string) []byte {
	if form == jsonForm {
		return bytes.Replace(doc, []byte(`"version":"`+anyVersion+`"`), []byte(`"version":"`+version+`"`), 1)
	}
	const info = 2 // the number of Document.info in both versions; Info.version is 2 in v2 and 6 in v3
	number := protowire.Number(2)
	if form == protobufV3 {
		number = 6
	}
	field := protowire.AppendTag(nil, number, protowire.BytesType)
	field = protowire.AppendString(field, version)
	doc = protowire.AppendTag(doc, info, protowire.BytesType)
	return protowire.AppendBytes(doc, field)
}

// Archive makes the content of archiveFile for these built-in resources.
func Archive(fixed []Resource) ([]byte, error) {
	documents := &Documents{version: anyVersion, builtIn: fixed, cache: newCache(cacheBytes), archive: &archive{}}
	documents.Set(nil, nil)
	now := documents.state.Load()
	names := slices.Sorted(maps.Keys(now.v3))
	names = slices.DeleteFunc(names, func(name string) bool { return name == baseName })
	out := &archiver{bases: map[string]int{}, plain: map[string][]byte{}}
	if base, ok := now.v3[baseName]; ok { // first, so that others can be compressed with it
		out.add(base, formsV3)
	}
	for _, name := range names {
		out.add(now.v3[name], formsV3)
	}
	out.add(now.v2, formsV2)
	if out.err != nil {
		return nil, out.err
	}
	index, err := json.Marshal(out.entries)
	return slices.Concat(index, []byte{'\n'}, out.content.Bytes()), err
}

// archiver collects documents until the first error.
type archiver struct {
	entries []archived
	content bytes.Buffer
	bases   map[string]int    // the index of the base, by "json" or "protobuf"
	plain   map[string][]byte // its content
	err     error
}

// add adds a document in JSON and in the protobuf form.
func (a *archiver) add(doc document, forms []form) {
	for _, how := range forms[:2] { // the third is the second by another name
		var plain bytes.Buffer
		if a.err == nil {
			a.err = how.write(doc.pieces, &plain)
		}
		kind := "protobuf"
		if how.sent == jsonForm {
			kind = "json"
		}
		base, ok := a.bases[kind]
		if !ok {
			base = -1
			a.bases[kind] = len(a.entries)
			a.plain[kind] = plain.Bytes()
		}
		packed := a.packed(plain.Bytes(), kind, ok)
		a.content.Write(packed)
		a.entries = append(a.entries, archived{doc.name, how.sent, doc.described(), len(packed), base})
	}
}

func (a *archiver) packed(plain []byte, kind string, based bool) []byte {
	options := []zstd.EOption{
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithWindowSize(8 << 20),
	}
	if based {
		options = append(options, zstd.WithEncoderDictRaw(dictionary, a.plain[kind]))
	}
	zip, err := zstd.NewWriter(nil, options...)
	if err != nil {
		if a.err == nil {
			a.err = err
		}
		return nil
	}
	defer func() { _ = zip.Close() }() // EncodeAll has written everything
	return zip.EncodeAll(plain, nil)
}
