// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	kjson "sigs.k8s.io/json"

	"keelson/scheduler/plugins"
)

// kind is the kind of a file.
const kind = "KubeSchedulerConfiguration"

// maxFile is the limit for a file, in bytes.
const maxFile = 1 << 20

// Read decodes the content of a file, YAML or JSON. name is the file's name, for errors: one per line, each with its
// line number and field. Read reports all mistakes of a file at once, also if it cannot decode a part of it. custom
// are the names of the plugins that are not in-tree.
func Read(name string, content []byte, custom []string) (*Configuration, error) {
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s: is longer than %d bytes", name, maxFile)
	}
	root, err := parse(content)
	if err != nil {
		if at, ok := errors.AsType[lineError](err); ok {
			return nil, joinErrors(name, []lineError{at})
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	configuration := &Configuration{}
	_, _, errs := toJSON(root)
	errs = append(errs, decode(root, &configuration.KubeSchedulerConfiguration)...)
	wrongType := configuration.checkType(root)
	if configuration.Kind != "" && configuration.Kind != kind { // fields of another kind have another meaning
		return nil, joinErrors(name, wrongType)
	}
	errs = append(errs, wrongType...)
	setDefaults(&configuration.KubeSchedulerConfiguration)
	args, wrong := decodeAllArgs(root, configuration.KubeSchedulerConfiguration.Profiles)
	errs = append(errs, wrong...)
	configuration.resolve(args)
	for _, row := range plugins.Table {
		custom = append(custom, row.Name)
	}
	undecoded := map[int]bool{} // lines whose values are missing in configuration
	for _, e := range errs {
		undecoded[e.line] = true
	}
	for _, err := range configuration.validate(custom) {
		if e := errorAt(root, err.Field, errors.New(err.ErrorBody())); !undecoded[e.line] {
			errs = append(errs, e)
		}
	}
	if len(errs) > 0 {
		return nil, joinErrors(name, errs)
	}
	configuration.ignoreManaged()
	configuration.warn()
	return configuration, nil
}

// checkType checks apiVersion and kind.
func (c *Configuration) checkType(root *yaml.Node) (errs []lineError) {
	if want := configv1.SchemeGroupVersion.String(); c.APIVersion != want {
		errs = append(errs, errorAt(root, "apiVersion", fmt.Errorf("must be %s, not %q", want, c.APIVersion)))
	}
	if c.Kind != kind {
		errs = append(errs, errorAt(root, "kind", fmt.Errorf("must be %s, not %q", kind, c.Kind)))
	}
	return errs
}

// decodeAllArgs decodes the arguments of all plugins, by profile.
func decodeAllArgs(
	root *yaml.Node, profiles []configv1.KubeSchedulerProfile,
) (args []map[string]any, errs []lineError) {
	args = make([]map[string]any, len(profiles))
	for i, p := range profiles {
		args[i] = map[string]any{}
		for j, pc := range p.PluginConfig {
			a, wrong := argsAt(root, fmt.Sprintf("profiles[%d].pluginConfig[%d].args", i, j), pc)
			errs = append(errs, wrong...)
			args[i][pc.Name] = a
		}
	}
	return args, errs
}

// ignoreManaged adds the managedResources with ignoredByScheduler to the IgnoredResources of NodeResourcesFit.
func (c *Configuration) ignoreManaged() {
	for _, e := range c.Extenders {
		for _, r := range e.ManagedResources {
			for i := range c.Profiles {
				if fit, ok := c.Profiles[i].Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs); ok &&
					r.IgnoredByScheduler {
					fit.IgnoredResources = append(fit.IgnoredResources, r.Name)
				}
			}
		}
	}
}

// warn adds warnings about settings without effect, and unsafe ones.
func (c *Configuration) warn() {
	for i := range c.Extenders {
		e := &c.Extenders[i]
		if e.FilterVerb+e.PrioritizeVerb+e.PreemptVerb+e.BindVerb == "" {
			c.Warnings = append(c.Warnings, fmt.Sprintf("extenders[%d] has no verb: it is never called", i))
		}
		if t := e.TLSConfig; e.EnableHTTPS && (t == nil || t.CAFile == "" && len(t.CAData) == 0) {
			c.Warnings = append(c.Warnings,
				fmt.Sprintf("extenders[%d].enableHTTPS without a certificate authority: the server's certificate is "+
					"not verified", i))
		}
	}
	for i := range c.KubeSchedulerConfiguration.Profiles {
		p := &c.KubeSchedulerConfiguration.Profiles[i]
		if p.Plugins == nil {
			continue
		}
		for _, set := range pluginSets(p.Plugins) {
			for _, e := range set.Enabled {
				if w := "this scheduler has no plugin " + e.Name; slices.Contains(notImplemented, e.Name) &&
					!slices.Contains(c.Warnings, w) {
					c.Warnings = append(c.Warnings, w)
				}
			}
		}
	}
	slices.Sort(c.Warnings)
}

// parse parses the only document of a file.
func parse(content []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(content))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("is empty, it must have a " + kind)
	} else if err != nil {
		return nil, syntaxError(err, 1+bytes.Count(bytes.TrimRight(content, "\n"), []byte("\n")))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one document, it must have one " + kind)
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, lineError{doc.Content[0].Line, "must be a " + kind}
	}
	return doc.Content[0], nil
}

// lineError is an error with its line in the file.
type lineError struct {
	line int
	text string
}

func (e lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.text) }

// yamlError is an error of the YAML library. fromParser are those that count lines from 0; line 0 is left out.
var (
	yamlError  = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	fromParser = regexp.MustCompile(`^did not find expected (node content|key|'-' indicator|',' or '[\]}]'|<.*>)$`)
)

// syntaxError returns an error of the YAML library with its line, in a file of so many lines.
func syntaxError(err error, lines int) error {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	line, _ := strconv.Atoi(m[1]) // 0: none is given
	if fromParser.MatchString(m[2]) {
		line++
	}
	if line == 0 {
		return errors.New(m[2])
	}
	return lineError{min(line, lines), m[2]} // the end of a file counts as a line of its own
}

func joinErrors(name string, errs []lineError) error {
	slices.SortStableFunc(errs, func(a, b lineError) int { return a.line - b.line })
	var out []error
	for _, e := range errs {
		out = append(out, fmt.Errorf("%s:%d: %s", name, e.line, e.text))
	}
	return errors.Join(out...)
}

// errorAt adds to an error the line of a field, or of the closest parent in the file.
func errorAt(root *yaml.Node, at string, err error) lineError {
	n, _ := nodeAt(root, at)
	return lineError{n.Line, at + ": " + err.Error()}
}

var pathElement = regexp.MustCompile(`[^.\[\]]+|\[\d+\]`)

// nodeAt returns the node of a field like profiles[0].plugins.score, or else its closest parent.
func nodeAt(root *yaml.Node, at string) (node *yaml.Node, found bool) {
	node = root
	for _, s := range pathElement.FindAllString(at, -1) {
		next := (*yaml.Node)(nil)
		if strings.HasPrefix(s, "[") {
			i, err := strconv.Atoi(s[1 : len(s)-1])
			if err == nil && node.Kind == yaml.SequenceNode && i < len(node.Content) {
				next = node.Content[i]
			}
		} else if node.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == s {
					next = node.Content[i+1]
					if next.Kind == yaml.MappingNode || next.Kind == yaml.SequenceNode {
						c := *next
						c.Line = node.Content[i].Line
						next = &c
					}
				}
			}
		}
		if next == nil {
			return node, false
		}
		node = next
	}
	return node, true
}

func argsAt(root *yaml.Node, at string, pc configv1.PluginConfig) (args any, errs []lineError) {
	n, ok := nodeAt(root, at)
	if !ok {
		n = &yaml.Node{Kind: yaml.MappingNode, Line: n.Line}
	}
	errs = decodeAll(n, func(text []byte) (wrong []error) {
		args, wrong = decodeArgs(pc.Name, runtime.RawExtension{Raw: text})
		return wrong
	})
	for i := range errs {
		errs[i].text = at + "." + errs[i].text
	}
	return args, errs
}

func decode(n *yaml.Node, into *configv1.KubeSchedulerConfiguration) []lineError {
	return decodeAll(n, func(text []byte) []error {
		*into = configv1.KubeSchedulerConfiguration{}
		return strict(text, into)
	})
}

// maxUndecodable is the number of values that cannot be decoded after which the others of their kind are not reported.
const maxUndecodable = 20

// decodeAll calls decode with n as JSON, and returns all errors of it. The decoder stops at the first value that it
// cannot decode. So decodeAll marks such a value in n, to leave it out, and decodes again.
func decodeAll(n *yaml.Node, decode func(text []byte) []error) (out []lineError) {
	for tries := 1; ; tries++ {
		text, nodes, _ := toJSON(n)
		again := false
		var found []lineError
		for _, err := range decode(text) {
			e, value := locateError(n, nodes, err)
			found = append(found, e)
			if value != nil && value != n && tries < maxUndecodable {
				value.Kind = undecodable
				value.Value = ""
				value.Content = nil
				again = true
			}
		}
		if !again {
			return append(out, found...)
		}
		out = append(out, found[0])
	}
}

// fieldError is an error of a field.
type fieldError struct{ field, text string }

func (e fieldError) Error() string { return e.text }

// strict decodes, with an error for each unknown or duplicate field.
func strict(text []byte, into any) []error {
	errs, err := kjson.UnmarshalStrict(text, into)
	if err != nil {
		return []error{err}
	}
	return errs
}

// locateError finds the line in node of an error of strict. value is the one that the decoder could not decode; nil: it
// is another error, or the value was not found.
func locateError(node *yaml.Node, nodes []nodeOffset, err error) (e lineError, value *yaml.Node) {
	var (
		kind  *json.UnmarshalTypeError
		known fieldError
		path  kjson.FieldError
	)
	switch {
	case errors.As(err, &known):
		return errorAt(node, known.field, known), nil
	case errors.As(err, &path):
		text, _, _ := strings.Cut(err.Error(), ` "`)
		at, _ := nodeAt(node, path.FieldPath())
		return lineError{keyLine(node, path.FieldPath(), at.Line), path.FieldPath() + ": " + text}, nil
	case errors.As(err, &kind):
		at := nodeEndingAt(nodes, kind.Offset)
		field := kind.Field
		if all := nodesAt(node, kind.Field); !slices.ContainsFunc(all, func(f fieldNode) bool { return f.node == at }) {
			// A value with an UnmarshalJSON method counts the offset from its own beginning.
			for _, f := range all {
				if jsonType(f.node) == kind.Value {
					at = f.node
					field = f.field
					break
				}
			}
		}
		return lineError{at.Line, fmt.Sprintf("%s: must be %s, not %s", field, kind.Type, kind.Value)}, at
	}
	// Other errors come from values with an UnmarshalJSON method, such as durations. They quote the value.
	line := node.Line
	visit(node, func(v *yaml.Node) {
		if v.Value != "" && strings.Contains(err.Error(), strconv.Quote(v.Value)) {
			line = v.Line
			value = v
		}
	})
	return lineError{line, err.Error()}, value
}

// fieldNode is a value with its field: profiles[0].plugins.
type fieldNode struct {
	field string
	node  *yaml.Node
}

// nodesAt returns the values of a field whose path has no indices: those of all elements of lists.
func nodesAt(n *yaml.Node, path string) []fieldNode {
	found := []fieldNode{{"", n}}
	for key := range strings.SplitSeq(path, ".") {
		var next []fieldNode
		for _, f := range found {
			next = append(next, f.children(key)...)
		}
		found = next
	}
	return found
}

// children returns the values of a key, of a mapping or of the mappings in a list.
func (f fieldNode) children(key string) (out []fieldNode) {
	switch f.node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(f.node.Content); i += 2 {
			if f.node.Content[i].Value == key {
				out = append(out, fieldNode{strings.TrimPrefix(f.field+"."+key, "."), f.node.Content[i+1]})
			}
		}
	case yaml.SequenceNode:
		for i, e := range f.node.Content {
			out = append(out, fieldNode{fmt.Sprintf("%s[%d]", f.field, i), e}.children(key)...)
		}
	default:
	}
	return out
}

// jsonType is how json.UnmarshalTypeError names the type of a value.
func jsonType(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "object"
	case n.Kind == yaml.SequenceNode:
		return "array"
	case n.Tag == "!!int" || n.Tag == "!!float":
		return "number"
	case n.Tag == "!!bool":
		return "bool"
	}
	return "string"
}

// keyLine returns the line of the last key of a path; the second one of a duplicate key.
func keyLine(n *yaml.Node, path string, line int) int {
	i := strings.LastIndexByte(path, '.')
	parent, ok := nodeAt(n, path[:max(i, 0)])
	if !ok || parent.Kind != yaml.MappingNode {
		return line
	}
	for j := 0; j+1 < len(parent.Content); j += 2 {
		if parent.Content[j].Value == path[i+1:] {
			line = parent.Content[j].Line
		}
	}
	return line
}

func visit(n *yaml.Node, f func(*yaml.Node)) {
	f(n)
	for _, c := range n.Content {
		visit(c, f)
	}
}
