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
)

// kind is what a file must hold.
const kind = "KubeSchedulerConfiguration"

// maxFile bounds what is read.
const maxFile = 1 << 20

// Read reads a file's content, YAML or JSON. name is the file's, for errors: one a line, each with its line number and field.
// plugins are the names of the plugins that there are besides Kubernetes'.
func Read(name string, content []byte, plugins []string) (*Configuration, error) {
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s: is longer than %d bytes", name, maxFile)
	}
	root, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := &Configuration{}
	var errs []located
	add := func(at string, err error) { errs = append(errs, locate(root, at, err)) }
	errs = append(errs, decode(root, &c.KubeSchedulerConfiguration)...)
	if len(errs) > 0 {
		return nil, told(name, errs)
	}
	if c.APIVersion != configv1.SchemeGroupVersion.String() {
		add("apiVersion", fmt.Errorf("%q is not %s", c.APIVersion, configv1.SchemeGroupVersion))
	} else if c.Kind != kind {
		add("kind", fmt.Errorf("%q is not %s", c.Kind, kind))
	}
	if len(errs) > 0 {
		return nil, told(name, errs)
	}
	setDefaults(&c.KubeSchedulerConfiguration)
	args := make([]map[string]any, len(c.KubeSchedulerConfiguration.Profiles))
	for i, p := range c.KubeSchedulerConfiguration.Profiles {
		args[i] = map[string]any{}
		for j, pc := range p.PluginConfig {
			at := fmt.Sprintf("profiles[%d].pluginConfig[%d].args", i, j)
			a, wrong := argsAt(root, at, pc)
			errs = append(errs, wrong...)
			args[i][pc.Name] = a
		}
	}
	if len(errs) > 0 {
		return nil, told(name, errs)
	}
	c.resolve(args)
	for _, p := range defaultPlugins {
		plugins = append(plugins, p.Name)
	}
	for _, err := range c.validate(plugins) {
		add(err.Field, errors.New(err.ErrorBody()))
	}
	if len(errs) > 0 {
		return nil, told(name, errs)
	}
	c.ignoreManaged()
	c.warn()
	return c, nil
}

// ignoreManaged has NodeResourcesFit take no notice of the resources that extenders look after alone.
func (c *Configuration) ignoreManaged() {
	for _, e := range c.Extenders {
		for _, r := range e.ManagedResources {
			for i := range c.Profiles {
				if fit, ok := c.Profiles[i].Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs); ok && r.IgnoredByScheduler {
					fit.IgnoredResources = append(fit.IgnoredResources, r.Name)
				}
			}
		}
	}
}

// warn tells what has no effect, or is not safe.
func (c *Configuration) warn() {
	for i := range c.Extenders {
		e := &c.Extenders[i]
		if e.FilterVerb+e.PrioritizeVerb+e.PreemptVerb+e.BindVerb == "" {
			c.Warnings = append(c.Warnings, fmt.Sprintf("extenders[%d] has no verb: it is never asked", i))
		}
		if t := e.TLSConfig; e.EnableHTTPS && (t == nil || t.CAFile == "" && len(t.CAData) == 0) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("extenders[%d].enableHTTPS without a certificate authority: who answers is not checked", i))
		}
	}
	for i := range c.KubeSchedulerConfiguration.Profiles {
		p := &c.KubeSchedulerConfiguration.Profiles[i]
		if p.Plugins == nil {
			continue
		}
		for _, set := range sets(p.Plugins) {
			for _, e := range set.Enabled {
				if w := "this scheduler has no plugin " + e.Name; slices.Contains(absent, e.Name) && !slices.Contains(c.Warnings, w) {
					c.Warnings = append(c.Warnings, w)
				}
			}
		}
	}
	slices.Sort(c.Warnings)
}

// parse reads the one document.
func parse(content []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(content))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("is empty: a " + kind + " is wanted")
	} else if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one document: one " + kind + " is wanted")
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: a %s is wanted", doc.Content[0].Line, kind)
	}
	return doc.Content[0], nil
}

// located is an error with the line of the file.
type located struct {
	line int
	text string
}

func told(name string, errs []located) error {
	slices.SortStableFunc(errs, func(a, b located) int { return a.line - b.line })
	var out []error
	for _, e := range errs {
		out = append(out, fmt.Errorf("%s:%d: %s", name, e.line, e.text))
	}
	return errors.Join(out...)
}

// locate finds the line of a field, or of what it would be in.
func locate(root *yaml.Node, at string, err error) located {
	n, _ := nodeAt(root, at)
	return located{n.Line, at + ": " + err.Error()}
}

var step = regexp.MustCompile(`[^.\[\]]+|\[\d+\]`)

// nodeAt returns the node of a field like profiles[0].plugins.score, or else the last on the way to it.
func nodeAt(root *yaml.Node, at string) (n *yaml.Node, found bool) {
	n = root
	for _, s := range step.FindAllString(at, -1) {
		next := (*yaml.Node)(nil)
		if strings.HasPrefix(s, "[") {
			i, err := strconv.Atoi(s[1 : len(s)-1])
			if err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
			}
		} else if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == s {
					next = n.Content[i+1]
					if next.Kind == yaml.MappingNode || next.Kind == yaml.SequenceNode {
						c := *next
						c.Line = n.Content[i].Line
						next = &c
					}
				}
			}
		}
		if next == nil {
			return n, false
		}
		n = next
	}
	return n, true
}

func argsAt(root *yaml.Node, at string, pc configv1.PluginConfig) (any, []located) {
	n, ok := nodeAt(root, at)
	if !ok {
		n = &yaml.Node{Kind: yaml.MappingNode, Line: n.Line}
	}
	text, lines, wrong := toJSON(n)
	if wrong != nil {
		return nil, []located{*wrong}
	}
	a, errs := decodeArgs(pc.Name, runtime.RawExtension{Raw: text})
	var out []located
	for _, err := range errs {
		l := place(n, lines, err)
		l.text = at + "." + l.text
		out = append(out, l)
	}
	return a, out
}

func decode(n *yaml.Node, into any) []located {
	text, lines, wrong := toJSON(n)
	if wrong != nil {
		return []located{*wrong}
	}
	var out []located
	for _, err := range strict(text, into) {
		out = append(out, place(n, lines, err))
	}
	return out
}

// fieldError is an error of a field.
type fieldError struct{ field, text string }

func (e fieldError) Error() string { return e.text }

// strict decodes, and tells of each field that there is not, or is there twice.
func strict(text []byte, into any) []error {
	errs, err := kjson.UnmarshalStrict(text, into)
	if err != nil {
		return []error{err}
	}
	return errs
}

// place finds out where in n an error of strict is.
func place(n *yaml.Node, lines []offset, err error) located {
	var (
		kind  *json.UnmarshalTypeError
		known fieldError
		path  kjson.FieldError
	)
	switch {
	case errors.As(err, &known):
		return locate(n, known.field, known)
	case errors.As(err, &path):
		text, _, _ := strings.Cut(err.Error(), ` "`)
		at, _ := nodeAt(n, path.FieldPath())
		return located{keyLine(n, path.FieldPath(), at.Line), path.FieldPath() + ": " + text}
	case errors.As(err, &kind):
		return located{lineAt(lines, kind.Offset), fmt.Sprintf("%s: %s is not what it takes: %s is wanted", kind.Field, kind.Value, kind.Type)}
	}
	// The rest are values that read themselves, as durations: the error quotes them.
	line := n.Line
	walk(n, func(v *yaml.Node) {
		if v.Value != "" && strings.Contains(err.Error(), strconv.Quote(v.Value)) {
			line = v.Line
		}
	})
	return located{line, err.Error()}
}

// keyLine is where the last key of a path stands, the second one if it is there twice.
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

func walk(n *yaml.Node, f func(*yaml.Node)) {
	f(n)
	for _, c := range n.Content {
		walk(c, f)
	}
}
