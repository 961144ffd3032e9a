// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
)

// piece is a whole document, which describes some of the resources.
type piece struct {
	json func() ([]byte, error)
	// protobuf returns the same as a message that was made before, nil if there is none. The field may be nil too.
	protobuf func() ([]byte, error)
}

// pieces together are one document. What is not named in it, such as its version, is that of the first piece. Several
// pieces describe the types that they share, such as ObjectMeta: the first counts.
type pieces []piece

// section is a part of a document that describes things by name.
type section func(*sections) map[string]json.RawMessage

type sections struct {
	Paths       map[string]json.RawMessage `json:"paths"`
	Definitions map[string]json.RawMessage `json:"definitions"` // v2
	Parameters  map[string]json.RawMessage `json:"parameters"`  // v2
	Components  struct {
		Schemas map[string]json.RawMessage `json:"schemas"`
	} `json:"components"` // v3
}

func paths(s *sections) map[string]json.RawMessage         { return s.Paths }
func definitionsOf(s *sections) map[string]json.RawMessage { return s.Definitions }
func parameters(s *sections) map[string]json.RawMessage    { return s.Parameters }
func components(s *sections) map[string]json.RawMessage    { return s.Components.Schemas }

// writeJSON writes the document. It reads the pieces once for each section, so that there is one piece at a time in
// memory.
func (p pieces) writeJSON(w io.Writer) error {
	first, err := p[0].json()
	if err != nil {
		return err
	}
	if len(p) == 1 {
		_, err = w.Write(first)
		return err
	}
	head := map[string]json.RawMessage{}
	if err := json.Unmarshal(first, &head); err != nil {
		return fmt.Errorf("read the first piece: %w", err)
	}
	out := &printer{w: w}
	out.object(maps.Keys(head), func(key string) {
		switch key {
		case "paths":
			p.writeSection(out, paths)
		case "definitions":
			p.writeSection(out, definitionsOf)
		case "parameters":
			p.writeSection(out, parameters)
		case "components":
			p.writeComponents(out, head[key])
		default:
			out.bytes(head[key])
		}
	})
	return out.err
}

func (p pieces) writeComponents(out *printer, first json.RawMessage) {
	inner := map[string]json.RawMessage{}
	if out.err = json.Unmarshal(first, &inner); out.err != nil {
		return
	}
	inner["schemas"] = nil // also where the first piece has none
	out.object(maps.Keys(inner), func(key string) {
		if key == "schemas" {
			p.writeSection(out, components)
		} else {
			out.bytes(inner[key])
		}
	})
}

// writeSection writes a section of all pieces as one object.
func (p pieces) writeSection(out *printer, of section) {
	seen := map[string]bool{}
	out.bytes([]byte{'{'})
	for _, one := range p {
		doc, err := one.json()
		if err != nil {
			out.fail(err)
			return
		}
		all := &sections{}
		if err := json.Unmarshal(doc, all); err != nil {
			out.fail(err)
			return
		}
		named := of(all)
		for _, name := range slices.Sorted(maps.Keys(named)) {
			if seen[name] {
				continue
			}
			if len(seen) > 0 {
				out.bytes([]byte{','})
			}
			seen[name] = true
			out.key(name)
			out.bytes(named[name])
		}
	}
	out.bytes([]byte{'}'})
}

// writeProtobuf writes the document as a protobuf message, made of one piece at a time: messages that are written one
// after the other are united when they are read.
func (p pieces) writeProtobuf(w io.Writer, convert func([]byte) ([]byte, error)) error {
	if len(p) == 1 && p[0].protobuf != nil {
		ready, err := p[0].protobuf()
		if err != nil {
			return err
		}
		if ready != nil {
			_, err = w.Write(ready)
			return err
		}
	}
	seen := map[string]bool{}
	for i := range p {
		doc, err := p[i].json()
		if err != nil {
			return err
		}
		if doc, err = withoutSeen(doc, seen); err != nil {
			return err
		}
		message, err := convert(doc)
		if err != nil {
			return fmt.Errorf("convert an OpenAPI document to protobuf: %w", err)
		}
		if _, err := w.Write(message); err != nil {
			return err
		}
	}
	return nil
}

// withoutSeen leaves out what earlier pieces have described, and what a later piece would repeat otherwise.
func withoutSeen(doc []byte, seen map[string]bool) ([]byte, error) {
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(doc, &all); err != nil {
		return nil, err
	}
	later := len(seen) > 0
	prune := func(section string, from map[string]json.RawMessage) error {
		named := map[string]json.RawMessage{}
		if len(from[section]) == 0 {
			return nil
		}
		if err := json.Unmarshal(from[section], &named); err != nil {
			return err
		}
		for name := range named {
			if key := section + "/" + name; seen[key] {
				delete(named, name)
			} else {
				seen[key] = true
			}
		}
		var err error
		from[section], err = json.Marshal(named)
		return err
	}
	for _, section := range []string{"paths", "definitions", "parameters"} {
		if err := prune(section, all); err != nil {
			return nil, err
		}
	}
	if inner := map[string]json.RawMessage{}; len(all["components"]) > 0 {
		if err := json.Unmarshal(all["components"], &inner); err != nil {
			return nil, err
		}
		for _, section := range slices.Sorted(maps.Keys(inner)) {
			if err := prune(section, inner); err != nil {
				return nil, err
			}
		}
		var err error
		if all["components"], err = json.Marshal(inner); err != nil {
			return nil, err
		}
	}
	if later {
		delete(all, "security")
		delete(all, "securityDefinitions")
	}
	return json.Marshal(all)
}

// printer writes JSON until the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *printer) bytes(b []byte) {
	if p.err == nil {
		_, p.err = p.w.Write(b)
	}
}

// key writes a key with its colon.
func (p *printer) key(name string) {
	b, _ := json.Marshal(name) // a string can be encoded
	p.bytes(append(b, ':'))
}

// object writes an object with the keys in order.
func (p *printer) object(keys iter.Seq[string], value func(key string)) {
	p.bytes([]byte{'{'})
	for i, key := range slices.Sorted(keys) {
		if i > 0 {
			p.bytes([]byte{','})
		}
		p.key(key)
		value(key)
	}
	p.bytes([]byte{'}'})
}
