// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	yaml "go.yaml.in/yaml/v3"
)

// configFlag names a file with flags.
const configFlag = "config"

// configFlagOf adds --config to a command that calls readConfig.
func configFlagOf(fl *pflag.FlagSet, path *string) {
	fl.StringVar(path, configFlag, "",
		"read flags from the YAML `FILE` and from FILE.d/*.yaml: their names as keys; what is given here goes before")
}

// readConfig sets the flags in the YAML file at path and in the files of the directory path.d, in the order of their
// names, except those given on the command line. A later file replaces the value of an earlier one. Errors name the
// line; after one, the command must not go on, because some flags may be set. Relative file names are resolved from the
// directory of the file that has them. The files named in except are not read.
func readConfig(cmd *cobra.Command, path string, except ...string) error {
	return readConfigAs(cmd, path, "", except...)
}

// readConfigAs is readConfig of files that will be in the directory home; empty: they stay where they are.
func readConfigAs(cmd *cobra.Command, path, home string, except ...string) error {
	paths, err := configFiles(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", configFlag, err)
	}
	paths = slices.DeleteFunc(paths, func(file string) bool { return slices.Contains(except, file) })
	config := configReader{flags: cmd.Flags(), command: cmd.Name(), given: map[string]bool{}, last: map[string]entry{}}
	config.flags.Visit(func(f *pflag.Flag) { config.given[f.Name] = true })
	for _, path := range paths {
		config.read(path)
	}
	for _, name := range slices.Sorted(maps.Keys(config.last)) {
		config.set(config.last[name])
	}
	if err := errors.Join(config.errs...); err != nil {
		return err
	}
	for _, path := range paths {
		dir, err := filepath.Abs(cmp.Or(home, filepath.Dir(path)))
		if err != nil {
			return err
		}
		of := func(name string) bool { return config.last[name].path == path }
		if err := absoluteFrom(dir, config.flags, of); err != nil {
			return err
		}
	}
	return nil
}

// configFiles are the file and those in its directory.
func configFiles(path string) ([]string, error) {
	more, err := os.ReadDir(path + ".d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	paths := []string{path}
	for _, file := range more { // sorted
		if filepath.Ext(file.Name()) == ".yaml" {
			paths = append(paths, filepath.Join(path+".d", file.Name()))
		}
	}
	return paths, nil
}

// configReader gathers the flags of several files.
type configReader struct {
	flags   *pflag.FlagSet
	command string           // whose flags they are
	given   map[string]bool  // flags of the command line
	last    map[string]entry // by the flag: what the last file says
	errs    []error
}

// read adds the entries of one file.
func (c *configReader) read(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("--%s: %w", configFlag, err))
		return
	}
	pairs, err := entries(path, b)
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	first := map[string]int{}
	for _, entry := range pairs {
		name := entry.key.Value
		flag := c.flags.Lookup(name)
		switch line := first[name]; {
		case line > 0:
			c.errs = append(c.errs, entry.wrong(entry.key, "%s is there already, in line %d", name, line))
			continue
		case flag == nil || flag.Hidden || name == configFlag || name == "help":
			hint := "`keelson " + c.command + " --help` lists them"
			if near := nearestFlag(c.flags, name); near != "" && near != configFlag && near != "help" {
				hint = "did you mean " + near + "?"
			}
			c.errs = append(c.errs, entry.wrong(entry.key, "there is no flag %q: %s", name, hint))
		default:
			if _, err := valuesFor(flag, entry.value); err != nil {
				c.errs = append(c.errs, entry.wrong(entry.value, "%s: %v", name, err))
			} else if !c.given[name] {
				c.last[name] = entry
			}
		}
		first[name] = entry.key.Line
	}
}

// set sets the flag of an entry that was read.
func (c *configReader) set(e entry) {
	name := e.key.Value
	values, err := valuesFor(c.flags.Lookup(name), e.value)
	if err != nil {
		c.errs = append(c.errs, e.wrong(e.value, "%s: %v", name, err))
	}
	for _, v := range values {
		if err := c.flags.Set(name, v); err != nil {
			if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
				err = wrongValue(invalid)
			}
			c.errs = append(c.errs, e.wrong(e.value, "%s: %v", name, err))
		}
	}
}

// entry is one key of a file with its value.
type entry struct {
	path       string
	key, value *yaml.Node
}

// wrong is an error at the line of a node.
func (e entry) wrong(at *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", e.path, at.Line, fmt.Sprintf(format, args...))
}

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
		out = append(out, entry{path, root.Content[i], root.Content[i+1]})
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
