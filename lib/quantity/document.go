// SPDX-License-Identifier: Apache-2.0

package quantity

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Type is the type of quantities.
var Type = reflect.TypeFor[resource.Quantity]()

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// plan says where in the JSON of a Go type the quantities are; nil: nowhere.
type plan struct {
	quantity bool
	fields   map[string]*plan // of an object with known fields
	elem     *plan            // of each member of a list or a map
}

// member is the plan of a member of an object. encoding/json takes a member whose name differs in case.
func (p *plan) member(name string) *plan {
	if p.fields == nil {
		return p.elem
	}
	if exact, ok := p.fields[name]; ok {
		return exact
	}
	for field, of := range p.fields {
		if strings.EqualFold(field, name) {
			return of
		}
	}
	return nil
}

// plans are the plans of types.
type plans struct {
	mu     sync.Mutex
	byType map[reflect.Type]*plan
}

var known = plans{byType: map[reflect.Type]*plan{}}

func (s *plans) of(t reflect.Type) *plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofLocked(t)
}

func (s *plans) ofLocked(t reflect.Type) *plan {
	if made, ok := s.byType[t]; ok {
		return made
	}
	switch {
	case t == Type:
		return &plan{quantity: true}
	case t.Kind() == reflect.Pointer:
		return s.ofLocked(t.Elem())
	case reflect.PointerTo(t).Implements(unmarshaler):
		return nil // a form of its own, without quantities: times, raw documents
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Map:
		if elem := s.ofLocked(t.Elem()); elem != nil {
			return &plan{elem: elem}
		}
		return nil
	case t.Kind() != reflect.Struct:
		return nil
	}
	made := &plan{fields: map[string]*plan{}}
	s.byType[t] = made // before its fields, which may be of the same type
	s.addFieldsLocked(made, t)
	if len(made.fields) == 0 {
		s.byType[t] = nil
	}
	return s.byType[t]
}

// addFieldsLocked adds the fields of a struct, and those of structs that are inline in it.
func (s *plans) addFieldsLocked(to *plan, t reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			inline := f.Type
			if inline.Kind() == reflect.Pointer {
				inline = inline.Elem()
			}
			if inline.Kind() == reflect.Struct {
				s.addFieldsLocked(to, inline)
			}
		default:
			if name == "" {
				name = f.Name
			}
			if of := s.ofLocked(f.Type); of != nil {
				to.fields[name] = of
			}
		}
	}
}

// CheckJSON refuses a JSON document of type t with a quantity that Check refuses. Errors in the document are the
// decoder's.
func CheckJSON(doc []byte, t reflect.Type) error {
	if !JSONMayExceed(doc) {
		return nil
	}
	p := known.of(t)
	if p == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	return (&reader{d}).value(p)
}

// reader reads a document once, in order: of members with the same name, decoders decode each.
type reader struct{ tokens *json.Decoder }

// value reads one value with the plan p.
func (r *reader) value(p *plan) error {
	token, err := r.tokens.Token()
	if err != nil {
		return nil //nolint:nilerr // the decoder reports it
	}
	switch token := token.(type) {
	case string:
		return p.check(token)
	case json.Number:
		return p.check(token.String())
	case json.Delim:
		return r.members(p, token)
	}
	return nil
}

func (p *plan) check(text string) error {
	if p.quantity {
		return Check(text)
	}
	return nil
}

// members reads the rest of an object or a list.
func (r *reader) members(p *plan, open json.Delim) error {
	for r.tokens.More() {
		of := p.elem
		if open == '{' {
			name, err := r.tokens.Token()
			text, ok := name.(string)
			if err != nil || !ok {
				return nil //nolint:nilerr // the decoder reports it
			}
			of = p.member(text)
		}
		if of == nil {
			var skipped json.RawMessage
			if r.tokens.Decode(&skipped) != nil {
				return nil //nolint:nilerr // the decoder reports it
			}
			continue
		}
		if err := r.value(of); err != nil {
			return err
		}
	}
	_, _ = r.tokens.Token() // the end; the decoder reports what is missing
	return nil
}

// CheckValue is CheckJSON for a decoded document.
func CheckValue(value any, t reflect.Type) error {
	if p := known.of(t); p != nil {
		return p.checkValue(value)
	}
	return nil
}

func (p *plan) checkValue(value any) error {
	switch value := value.(type) {
	case string:
		return p.check(value)
	case map[string]any:
		for name, member := range value {
			if of := p.member(name); of != nil {
				if err := of.checkValue(member); err != nil {
					return err
				}
			}
		}
	case []any:
		for _, member := range value {
			if p.elem == nil {
				return nil
			}
			if err := p.elem.checkValue(member); err != nil {
				return err
			}
		}
	}
	return nil
}
