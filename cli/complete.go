// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/cluster/datadir"
	"keelson/cluster/membership"
	"keelson/runtime/image"
	"keelson/timeline/ask"
)

// completeTimeout limits how long a shell waits for names. If the cluster does not answer in time, there are none.
const completeTimeout = 2 * time.Second

// completion is cobra's function type for completing a word.
type completion = func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// completeFixed completes one argument, or a flag's value, from names.
func completeFixed(names []string) completion {
	return func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return beginning(names, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// ofFlag completes a flag's value, whatever the arguments are.
func ofFlag(by completion) completion {
	return func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return by(c, nil, word)
	}
}

// completionExamples adds examples to the completion commands that cobra generates.
func completionExamples(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for path, example := range map[string]string{
		"help":            "  keelson help up",
		"completion":      "  source <(keelson completion bash)     # for this shell",
		"completion bash": "  source <(keelson completion bash)     # in ~/.bashrc: for every shell",
		"completion zsh":  "  source <(keelson completion zsh)      # in ~/.zshrc: for every shell",
		"completion fish": "  keelson completion fish | source      # in ~/.config/fish/config.fish: for every " +
			"shell",
		"completion powershell": "  keelson completion powershell | Out-String | Invoke-Expression",
	} {
		if c, _, err := root.Find(strings.Fields(path)); err == nil {
			c.Example = example
		}
	}
}

func beginning(names []string, word string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, word) })
}

// completeNames completes one argument with names of objects in the cluster.
func completeNames(
	list func(ctx context.Context, cl kubernetes.Interface, c *cobra.Command, word string) []string,
) completion {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completeTimeout)
		defer cancel()
		cl, err := completionClient(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := beginning(list(ctx, cl, c, word), word)
		directive := cobra.ShellCompDirectiveNoFileComp
		if len(names) > 0 && strings.HasSuffix(names[0], "/") {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return names, directive
	}
}

// completionClient returns a client of the cluster that the command line names so far.
func completionClient(c *cobra.Command) (kubernetes.Interface, error) {
	loaded, _ := chosenKubeconfig(c.Flags())
	to, err := loaded.ClientConfig()
	if err != nil {
		return nil, err
	}
	to.Timeout = completeTimeout
	return kubernetes.NewForConfig(to)
}

// nodeNames lists all nodes.
func nodeNames(ctx context.Context, cl kubernetes.Interface, _ *cobra.Command, _ string) []string {
	l, err := cl.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	var out []string
	for _, n := range l.Items {
		out = append(out, n.Name)
	}
	return out
}

// tokenNames lists the IDs of bootstrap tokens.
func tokenNames(a *access) func(context.Context, kubernetes.Interface, *cobra.Command, string) []string {
	return func(ctx context.Context, _ kubernetes.Interface, _ *cobra.Command, _ string) []string {
		to, err := a.rest()
		if err != nil {
			return nil
		}
		tokens, err := membership.ListTokens(ctx, to)
		if err != nil {
			return nil
		}
		out := make([]string, len(tokens))
		for i := range tokens {
			out[i] = tokens[i].ID
		}
		return out
	}
}

// completeImages completes one argument with this machine's images. It does not create a missing data directory.
func completeImages(dir *string, open func() (*image.Store, error)) completion {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if _, err := os.Stat(datadir.Dir(*dir).Sub("runtime")); err == nil {
			if s, err := open(); err == nil {
				for _, img := range s.List() {
					names = append(names, img.RepoTags...)
				}
			}
		}
		return completeFixed(names)(c, args, word)
	}
}

// namespaceNames lists all namespaces.
func namespaceNames(ctx context.Context, cl kubernetes.Interface, _ *cobra.Command, _ string) []string {
	l, err := cl.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	var out []string
	for i := range l.Items {
		out = append(out, l.Items[i].Name)
	}
	return out
}

// storyNames lists objects as TYPE/NAME.
func storyNames(types ...string) func(context.Context, kubernetes.Interface, *cobra.Command, string) []string {
	return func(ctx context.Context, cl kubernetes.Interface, cmd *cobra.Command, word string) []string {
		kind, _, named := strings.Cut(word, "/")
		if !named {
			var out []string
			for _, t := range types {
				out = append(out, t+"/")
			}
			return out
		}
		loaded, _ := chosenKubeconfig(cmd.Flags())
		namespace, _, err := loaded.Namespace()
		if err != nil {
			return nil
		}
		if f := cmd.Flag("namespace"); f != nil && f.Value.String() != "" {
			namespace = f.Value.String()
		}
		var out []string
		names := nodeNames
		if kind != "node" {
			names = func(context.Context, kubernetes.Interface, *cobra.Command, string) []string {
				return namesOf(ctx, cl, kind, namespace)
			}
		}
		for _, name := range names(ctx, cl, cmd, word) {
			out = append(out, kind+"/"+name)
		}
		return out
	}
}

// completeObjects completes any number of objects: as TYPE/NAME, or names after a type.
func completeObjects(types ...string) completion {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		kind := ""
		if len(args) > 0 {
			kind, _ = knownType(args[0])
		}
		if kind == "" {
			return completeNames(storyNames(types...))(c, nil, word)
		}
		prefix := kind + "/"
		names, directive := completeNames(storyNames(types...))(c, nil, prefix+word)
		for i := range names {
			names[i] = strings.TrimPrefix(names[i], prefix)
		}
		return names, directive
	}
}

// namesOf lists the objects of a namespace; none if listing fails.
func namesOf(ctx context.Context, cl kubernetes.Interface, kind, namespace string) []string {
	path := "/api/v1"
	resource := ""
	switch kind {
	case "pod", "pods", "po":
		resource = "pods"
	case "svc", "service", "services":
		resource = "services"
	}
	for _, o := range ask.Owners {
		if slices.Contains(o.Words, kind) {
			path = o.Path
			resource = o.Resource
		}
	}
	for _, k := range ask.Kinds {
		if slices.Contains(k.Words, kind) {
			path = k.Path
			resource = k.Resource
			if k.Cluster {
				namespace = ""
			}
		}
	}
	if resource == "" {
		return nil
	}
	parts := []string{path, "namespaces", namespace, resource}
	if namespace == "" {
		parts = []string{path, resource}
	}
	b, err := cl.CoreV1().RESTClient().Get().AbsPath(parts...).Param("resourceVersion", "0").DoRaw(ctx)
	var l metav1.PartialObjectMetadataList
	if err != nil || json.Unmarshal(b, &l) != nil {
		return nil
	}
	var out []string
	for _, o := range l.Items {
		out = append(out, o.Name)
	}
	return out
}

// completeKubectl runs kubectl's own completion.
func completeKubectl(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 && args[0] == "--data-dir" {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	dir, rest := splitDataDir(args)
	var out bytes.Buffer
	if runKubectl(c.Context(), dir, slices.Concat([]string{cobra.ShellCompRequestCmd}, rest, []string{word}),
		Stdio{Out: &out, Err: io.Discard}) != 0 {
		return nil, cobra.ShellCompDirectiveError
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	last := lines[len(lines)-1]
	directive, err := strconv.Atoi(strings.TrimPrefix(last, ":"))
	if err != nil || !strings.HasPrefix(last, ":") {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:len(lines)-1], cobra.ShellCompDirective(directive)
}
