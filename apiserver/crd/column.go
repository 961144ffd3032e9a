// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"keelson/api/kind"
)

// fieldPath finds a value in objects. The library's JSONPath has state during a search, so each search takes one from a
// pool.
type fieldPath struct {
	name string // as in selectors, without the leading dot
	pool *sync.Pool
}

func newFieldPath(path string) (fieldPath, error) {
	parse := func() (*jsonpath.JSONPath, error) {
		p := jsonpath.New(path).AllowMissingKeys(true)
		return p, p.Parse("{" + path + "}")
	}
	if _, err := parse(); err != nil {
		return fieldPath{}, fmt.Errorf("unrecognized path %q: %w", path, err)
	}
	return fieldPath{
		name: strings.TrimPrefix(path, "."),
		pool: &sync.Pool{New: func() any {
			p, _ := parse() // it was parsed successfully before
			return p
		}},
	}, nil
}

// find returns the first value at the path; ok is false if there is none.
func (p fieldPath) find(obj map[string]any) (value any, ok bool) {
	j, _ := p.pool.Get().(*jsonpath.JSONPath)
	defer p.pool.Put(j)
	results, err := j.FindResults(obj)
	if err != nil || len(results) == 0 || len(results[0]) == 0 || !results[0][0].IsValid() {
		return nil, false
	}
	return results[0][0].Interface(), true
}

// selectorValue is the value as selectors compare it.
func (p fieldPath) selectorValue(obj map[string]any) string {
	v, ok := p.find(obj)
	if !ok || v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// print formats a value as the library does: JSON unless it is a scalar.
func (p fieldPath) print(value any) (string, bool) {
	j, _ := p.pool.Get().(*jsonpath.JSONPath)
	defer p.pool.Put(j)
	var buf bytes.Buffer
	if err := j.PrintResults(&buf, []reflect.Value{reflect.ValueOf(value)}); err != nil {
		return "", false
	}
	return buf.String(), true
}

// column is a column after the name.
type column struct {
	header metav1.TableColumnDefinition
	path   fieldPath
}

var metaDocs = metav1.ObjectMeta{}.SwaggerDoc()

// nameHeader is the first column of every table.
var nameHeader = metav1.TableColumnDefinition{
	Name:        "Name",
	Type:        "string",
	Format:      "name",
	Description: metaDocs["name"],
}

// newColumns converts a version's printer columns; the default is the age. At an invalid path the columns end, as in
// Kubernetes, which accepts such a definition.
func newColumns(defs []v1.CustomResourceColumnDefinition) []column {
	if len(defs) == 0 {
		defs = []v1.CustomResourceColumnDefinition{
			{
				Name:        "Age",
				Type:        "date",
				Description: metaDocs["creationTimestamp"],
				JSONPath:    ".metadata.creationTimestamp",
			},
		}
	}
	out := make([]column, 0, len(defs))
	for _, definition := range defs {
		fieldPath, err := newFieldPath(definition.JSONPath)
		if err != nil {
			return out
		}
		text := definition.Description
		if text == "" {
			text = "Custom resource definition column (in JSONPath format): " + definition.JSONPath
		}
		out = append(out, column{metav1.TableColumnDefinition{
			Name:        definition.Name,
			Type:        definition.Type,
			Format:      definition.Format,
			Description: text,
			Priority:    definition.Priority,
		}, fieldPath})
	}
	return out
}

func (c column) cell(obj map[string]any) any {
	value, ok := c.path.find(obj)
	if !ok {
		return nil
	}
	if c.header.Type == "string" {
		if text, ok := c.path.print(value); ok { //nolint:forbidigo // a method of fieldPath
			return text
		}
		return nil
	}
	return cell(c.header.Type, value)
}

// cell converts value for a column of that type; nil if the type differs.
func cell(typ string, value any) any {
	switch v := value.(type) {
	case int64:
		switch typ {
		case "integer":
			return v
		case "number":
			return float64(v)
		}
	case float64:
		switch typ {
		case "integer":
			return int64(v)
		case "number":
			return v
		}
	case json.Number:
		if f, err := v.Float64(); err == nil {
			return cell(typ, f)
		}
	case bool:
		if typ == "boolean" {
			return v
		}
	case string:
		if typ == "date" {
			var t metav1.Time
			if t.UnmarshalQueryParameter(v) != nil {
				return "<invalid>"
			}
			return kind.Age(t)
		}
	}
	return nil
}
