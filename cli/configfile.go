// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	yaml "go.yaml.in/yaml/v3"
)

// configFlag names a file with flags.
const configFlag = "config"

// readConfig sets the flags in the YAML file at path, except those given on the command line. Errors name the line;
// after one, the command must not go on, because some flags may be set. Relative file names in it are resolved from its
// directory.
func readConfig(fl *pflag.FlagSet, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", configFlag, err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", configFlag, err)
	}
	given := map[string]bool{}
	fl.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	wrong := func(line int, format string, args ...any) error {
		return fmt.Errorf("%s:%d: %s", path, line, fmt.Sprintf(format, args...))
	}
	pairs, err := entries(path, b)
	if err != nil {
		return err
	}
	var errs []error
	first := map[string]int{}
	for _, entry := range pairs {
		name := entry.key.Value
		flag := fl.Lookup(name)
		if line := first[name]; line > 0 {
			errs = append(errs, wrong(entry.key.Line, "%s is there already, in line %d", name, line))
			continue
		}
		first[name] = entry.key.Line
		if flag == nil || flag.Hidden || name == configFlag || name == "help" {
			hint := "`keelson up --help` lists them"
			if near := nearestFlag(fl, name); near != "" && near != configFlag && near != "help" {
				hint = "did you mean " + near + "?"
			}
			errs = append(errs, wrong(entry.key.Line, "there is no flag %q: %s", name, hint))
			continue
		}
		values, err := valuesFor(flag, entry.value)
		if err != nil {
			errs = append(errs, wrong(entry.value.Line, "%s: %v", name, err))
			continue
		}
		if given[name] {
			continue
		}
		for _, v := range values {
			if err := fl.Set(name, v); err != nil {
				if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
					err = wrongValue(invalid)
				}
				errs = append(errs, wrong(entry.value.Line, "%s: %v", name, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return absoluteFrom(filepath.Dir(abs), fl, func(name string) bool { return first[name] > 0 && !given[name] })
}

// entry is one key of the file with its value.
type entry struct{ key, value *yaml.Node }

// entries are the keys of the file, which holds one mapping.
func entries(path string, b []byte) ([]entry, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is a second document; one mapping of flags is wanted", path)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil // only comments
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: a mapping of flags to their values is wanted, as `port: 6443`", path, root.Line)
	}
	var out []entry
	for i := 0; i+1 < len(root.Content); i += 2 {
		out = append(out, entry{root.Content[i], root.Content[i+1]})
	}
	return out, nil
}

// valuesFor returns the values to set for a flag.
func valuesFor(f *pflag.Flag, node *yaml.Node) ([]string, error) {
	_, list := f.Value.(pflag.SliceValue)
	kind := f.Value.Type()
	switch {
	case node.Kind == yaml.AliasNode:
		return nil, errors.New("anchors and aliases are not read")
	case node.Kind == yaml.MappingNode && kind == "stringToString":
		values := map[string]string{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i+1].Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("the value of %s is no text", node.Content[i].Value)
			}
			values[node.Content[i].Value] = node.Content[i+1].Value
		}
		var out []string
		for _, k := range slices.Sorted(maps.Keys(values)) {
			out = append(out, k+"="+values[k])
		}
		return out, nil
	case node.Kind == yaml.SequenceNode && (list || kind == "strings"):
		var out []string
		for _, c := range node.Content {
			if c.Kind != yaml.ScalarNode || c.Tag == "!!null" {
				return nil, errors.New("each of the list must be a text")
			}
			out = append(out, c.Value)
		}
		if kind == "strings" && !list {
			out = []string{strings.Join(out, ",")}
		}
		return out, nil
	case node.Kind != yaml.ScalarNode:
		return nil, fmt.Errorf("%s is wanted", wanted(kind))
	}
	tags := map[string]string{
		"bool":  "!!bool",
		"int":   "!!int",
		"int32": "!!int",
		"int64": "!!int",
	}
	if tag := tags[kind]; node.Tag == "!!null" || tag != "" && node.Tag != tag {
		return nil, fmt.Errorf("%s is wanted, not %q", wanted(kind), node.Value)
	}
	return []string{node.Value}, nil
}

// wanted describes the values that a flag accepts.
func wanted(kind string) string {
	switch kind {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "uint16", "uint32", "float64":
		return "a number"
	case "duration":
		return "a duration, as 30s,"
	case "stringSlice", "stringArray", "strings":
		return "a list of texts, or one,"
	case "int32Slice":
		return "a list of numbers, or one,"
	case "stringToString":
		return "a mapping of texts"
	}
	return "a text"
}
