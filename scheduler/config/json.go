// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"

	yaml "go.yaml.in/yaml/v3"
)

// nodeOffset maps an offset in the JSON to the YAML node that begins there.
type nodeOffset struct {
	offset int64
	node   *yaml.Node
}

// nodeEndingAt returns the value that ends at an offset.
func nodeEndingAt(nodes []nodeOffset, at int64) *yaml.Node {
	i := sort.Search(len(nodes), func(i int) bool { return nodes[i].offset >= at })
	return nodes[max(i-1, 0)].node
}

// undecodable is the kind of a value that decodeAll leaves out. The YAML parser does not use it.
const undecodable yaml.Kind = 0

// toJSON converts a node to JSON. Duplicate keys are kept, so that strict reports them. What JSON cannot express
// becomes null and is an error.
func toJSON(n *yaml.Node) ([]byte, []nodeOffset, []lineError) {
	w := &jsonWriter{}
	w.node(n)
	return w.out.Bytes(), w.nodes, w.errs
}

type jsonWriter struct {
	out   bytes.Buffer
	nodes []nodeOffset
	errs  []lineError
}

func (w *jsonWriter) node(n *yaml.Node) {
	w.nodes = append(w.nodes, nodeOffset{int64(w.out.Len()), n})
	switch n.Kind {
	case yaml.MappingNode:
		w.out.WriteByte('{')
		first := true
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind != yaml.ScalarNode || n.Content[i].Tag == "!!merge" {
				w.fail(n.Content[i], "the key must be a plain string")
				continue
			}
			if n.Content[i+1].Kind == undecodable {
				continue
			}
			if !first {
				w.out.WriteByte(',')
			}
			first = false
			w.value(n.Content[i], n.Content[i].Value)
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
	case undecodable: // in a sequence
		w.out.WriteString("null")
	default:
		w.fail(n, "anchors and aliases are not supported")
		w.out.WriteString("null")
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
		}
	}
	w.value(n, v)
}

func (w *jsonWriter) value(n *yaml.Node, v any) {
	b, err := json.Marshal(v)
	if err != nil { // as of .nan
		b = []byte("null")
		w.fail(n, fmt.Sprintf("%v is not supported", v))
	}
	w.out.Write(b)
}

func (w *jsonWriter) fail(n *yaml.Node, why string) {
	w.errs = append(w.errs, lineError{n.Line, why})
}
