// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	_ "embed" // the facts
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// factsFile has the facts that are only in the markers and comments of the Go sources of Kubernetes' types (+optional,
// +default, +enum, +listType...): one line per type with its name and the facts as JSON. `go test -update` generates it
// from the sources in go.mod, and a test compares.
//
//go:embed facts.txt
var factsFile string

// fact holds what is known about a type in addition to reflection.
type fact struct {
	Text       *string              `json:"text,omitempty"` // replaces the SwaggerDoc
	Enum       map[string]string    `json:"enum,omitempty"` // the values with their descriptions
	Default    any                  `json:"default,omitempty"`
	Extensions map[string]any       `json:"x,omitempty"`
	Fields     map[string]fieldFact `json:"fields,omitempty"` // by JSON name
}

type fieldFact struct {
	Text       *string        `json:"text,omitempty"`
	Required   *bool          `json:"required,omitempty"` // where omitempty is not decisive
	Default    any            `json:"default,omitempty"`
	Extensions map[string]any `json:"x,omitempty"`
}

// factLines maps type names to lines; built on first use.
var factLines = sync.OnceValue(func() map[string]string { return parseLines(factsFile) })

func parseLines(file string) map[string]string {
	lines := make(map[string]string, 700)
	for line := range strings.Lines(file) {
		if name, f, ok := strings.Cut(line, " "); ok {
			lines[name] = f
		}
	}
	return lines
}

func factName(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

// factOf returns the facts about t, empty if there are none.
func factOf(t reflect.Type) (fact, error) {
	var f fact
	line, ok := factLines()[factName(t)]
	if !ok {
		return f, nil
	}
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		return f, fmt.Errorf("facts of %s: %w", factName(t), err)
	}
	return f, nil
}
