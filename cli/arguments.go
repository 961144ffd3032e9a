// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"keelson/timeline/ask"
)

// several checks that a command has at least one argument.
func several(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s needs an object: TYPE/NAME, such as pod/my-pod, or TYPE NAME", nameOf(c))
	}
	return nil
}

// objectsOf are the objects that arguments name, as TYPE/NAME. They are named as for kubectl: TYPE/NAME or TYPE NAME,
// and a type may have a version and a group (deployment.apps). A NAME alone is a pod's.
func objectsOf(args []string) ([]string, error) {
	if kind, ok := knownType(args[0]); ok && len(args) > 1 {
		out := make([]string, 0, len(args)-1)
		for _, name := range args[1:] {
			if strings.Contains(name, "/") {
				return nil, fmt.Errorf("%s has its type already: write `%s`, or `%s NAME`", name, name, args[0])
			}
			out = append(out, kind+"/"+name)
		}
		return out, nil
	}
	out := make([]string, 0, len(args))
	for _, arg := range args {
		word, name, ok := strings.Cut(arg, "/")
		if kind, known := knownType(word); ok && known {
			arg = kind + "/" + name
		}
		out = append(out, arg)
	}
	return out, nil
}

// knownType is the word that this program uses for a type as kubectl's users write it: Pod, deployments, svc,
// deployment.apps, deployment.v1.apps.
func knownType(text string) (string, bool) {
	word, of, qualified := strings.Cut(strings.ToLower(text), ".")
	is := func(words []string, path string) bool {
		if !slices.Contains(words, word) {
			return false
		}
		_, path, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/") // "v1", or "apps/v1"
		group, version, grouped := strings.Cut(path, "/")
		if !grouped {
			group, version = "", path
		}
		return !qualified || of == group || of == strings.TrimSuffix(version+"."+group, ".")
	}
	if is(ask.PodWords, "/api/v1") {
		return "pod", true
	}
	if is(ask.ServiceWords, "/api/v1") {
		return "svc", true
	}
	for _, o := range ask.Owners {
		if is(o.Words, o.Path) {
			return o.Words[0], true
		}
	}
	for i := range ask.Kinds {
		if is(ask.Kinds[i].Words, ask.Kinds[i].Path) {
			return ask.Kinds[i].Words[0], true
		}
	}
	return "", false
}

// each calls one for every object. With several, an error does not keep it from the others: it is printed, and the
// command fails in the end.
func each(std Stdio, objects []string, form string, one func(object string) error) error {
	if len(objects) == 1 {
		return one(objects[0])
	}
	failed := false
	for i, object := range objects {
		if i > 0 && form == "" {
			_, _ = fmt.Fprintln(std.Out) // an error means that the terminal is gone
		}
		if err := one(object); err != nil {
			failed = true
			_, _ = fmt.Fprintf(screenOf(std.Err), "keelson: %s\n", sentence(err))
		}
	}
	if failed {
		return exitError(1)
	}
	return nil
}
