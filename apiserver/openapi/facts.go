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

// factsFile holds what Kubernetes' types say of themselves in the markers and comments of their Go sources alone (+optional, +default,
// +enum, +listType...), as far as the types do not tell it: a line for each type, its name and a fact as JSON. `go test -update`
// writes it anew from the sources that go.mod names, and a test compares.
//
//go:embed facts.txt
var factsFile string

// fact is what is known of a type beyond what Go knows at run time.
type fact struct {
	Text       *string              `json:"text,omitempty"` // in place of SwaggerDoc's
	Enum       map[string]string    `json:"enum,omitempty"` // the values there are, each with what it means
	Default    any                  `json:"default,omitempty"`
	Extensions map[string]any       `json:"x,omitempty"`
	Fields     map[string]fieldFact `json:"fields,omitempty"` // by their names in JSON
}

type fieldFact struct {
	Text       *string        `json:"text,omitempty"`
	Required   *bool          `json:"required,omitempty"` // where omitempty does not tell
	Default    any            `json:"default,omitempty"`
	Extensions map[string]any `json:"x,omitempty"`
}

// factLines finds a type's line by name; built on first use.
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

// factOf returns what the file knows of t, nothing for types that it does not name.
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
