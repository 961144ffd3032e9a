// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"

	yaml "go.yaml.in/yaml/v3"
)

// lineOffset maps an offset in the JSON to a line of the YAML.
type lineOffset struct {
	offset int64
	line   int
}

// lineAt returns the line of the value that ends at an offset.
func lineAt(lines []lineOffset, at int64) int {
	i := sort.Search(len(lines), func(i int) bool { return lines[i].offset >= at })
	if i == 0 {
		return 1
	}
	return lines[i-1].line
}

// toJSON converts a node to JSON. Duplicate keys are kept, so that strict reports them.
func toJSON(n *yaml.Node) ([]byte, []lineOffset, *lineError) {
	w := &jsonWriter{}
	w.node(n)
	if w.wrong != nil {
		return nil, nil, w.wrong
	}
	return w.out.Bytes(), w.lines, nil
}

type jsonWriter struct {
	out   bytes.Buffer
	lines []lineOffset
	wrong *lineError
}

func (w *jsonWriter) node(n *yaml.Node) {
	w.lines = append(w.lines, lineOffset{int64(w.out.Len()), n.Line})
	switch n.Kind {
	case yaml.MappingNode:
		w.out.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				w.out.WriteByte(',')
			}
			if n.Content[i].Kind != yaml.ScalarNode || n.Content[i].Tag == "!!merge" {
				w.fail(n.Content[i], "a plain key is wanted")
				return
			}
			w.value(n.Content[i].Value)
			w.out.WriteByte(':')
			w.node(n.Content[i+1])
		}
		w.out.WriteByte('}')
	case yaml.SequenceNode:
		w.out.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				w.out.WriteByte(',')
			}
			w.node(c)
		}
		w.out.WriteByte(']')
	case yaml.ScalarNode:
		w.scalar(n)
	default:
		w.fail(n, "anchors and aliases are not read")
	}
}

func (w *jsonWriter) scalar(n *yaml.Node) {
	var v any
	switch n.Tag {
	case "!!str", "!!binary", "!!timestamp":
		v = n.Value
	default:
		if err := n.Decode(&v); err != nil {
			w.fail(n, err.Error())
			return
		}
	}
	w.value(v)
}

func (w *jsonWriter) value(v any) {
	b, err := json.Marshal(v)
	if err != nil { // as of .nan
		b = []byte("null")
		if w.wrong == nil {
			w.wrong = &lineError{w.lines[len(w.lines)-1].line, fmt.Sprintf("%v is not read", v)}
		}
	}
	w.out.Write(b)
}

func (w *jsonWriter) fail(n *yaml.Node, why string) {
	if w.wrong == nil {
		w.wrong = &lineError{n.Line, why}
	}
}
