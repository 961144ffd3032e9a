// SPDX-License-Identifier: Apache-2.0

// Package yamlalias refuses YAML documents that grow too much when their aliases are followed. The YAML library bounds
// how many values the aliases of a document are, but not how long: a text of 64 kB with 2,000 aliases is 128 MB of
// JSON.
package yamlalias

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	yaml "go.yaml.in/yaml/v3"
)

// A document may have maxGrowth times its bytes and a constant more.
const (
	maxGrowth = 2
	maxMore   = 1 << 20
)

// ErrExcessive means that a document is too large when its aliases are followed.
var ErrExcessive = errors.New("document contains excessive aliasing")

// Check returns an error if the first document of doc is too large when its aliases are followed.
func Check(doc []byte) error {
	if bytes.IndexByte(doc, '&') < 0 || bytes.IndexByte(doc, '*') < 0 { // no anchor, or no alias
		return nil
	}
	if json.Valid(doc) { // which has none either
		return nil
	}
	var root yaml.Node // its aliases are not followed
	if err := yaml.Unmarshal(doc, &root); err != nil {
		return fmt.Errorf("look for aliases: %w", err)
	}
	s := sizes{most: maxGrowth*len(doc) + maxMore, of: map[*yaml.Node]int{}}
	if s.size(&root) > s.most {
		return ErrExcessive
	}
	return nil
}

// sizes are those of the nodes with an anchor; a node within itself is too large.
type sizes struct {
	most int
	of   map[*yaml.Node]int
}

// size returns about how many bytes a node has, or some number that is too large.
func (s *sizes) size(node *yaml.Node) int {
	if known, ok := s.of[node]; ok {
		return known
	}
	if node.Anchor != "" && node.Kind != yaml.AliasNode {
		s.of[node] = s.most + 1 // until it is known
	}
	const punctuation = 2
	size := len(node.Value) + punctuation
	if node.Kind == yaml.AliasNode {
		size = s.size(node.Alias)
	}
	for _, child := range node.Content {
		if size > s.most {
			break
		}
		size += s.size(child)
	}
	if node.Anchor != "" && node.Kind != yaml.AliasNode {
		s.of[node] = size
	}
	return size
}
