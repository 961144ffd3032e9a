// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"keelson/api/decisions"
	"keelson/timeline/ask"
	"keelson/timeline/cause"
	"keelson/timeline/packet"
	"keelson/timeline/story"
	"keelson/timeline/text"
)

// storyFlags are shared by timeline and why.
type storyFlags struct {
	connection
	output string
	// types are the accepted types in TYPE/NAME.
	types []string
}

func (f *storyFlags) add(c *cobra.Command) {
	f.connection.add(c)
	c.Flags().StringVarP(&f.output, "output", "o", "", "json, or nothing for people")
	_ = c.RegisterFlagCompletionFunc("output", ofFlag(completeFixed([]string{"json"})))
}

// pod parses the argument pod/NAME (or NAME).
func (f *storyFlags) pod(arg string) (string, error) {
	if f.output != "" && f.output != "json" {
		return "", fmt.Errorf("-o %s is not known: json, or leave it out", f.output)
	}
	kind, name, ok := strings.Cut(arg, "/")
	if !ok {
		return arg, nil
	}
	if !slices.Contains(ask.PodWords, kind) || name == "" {
		if k, _ := explainedAs(arg); k != nil {
			return "", fmt.Errorf("a %s has no story of its own: `keelson why %s` says why it is as it is", k.Words[1],
				arg)
		}
		return "", fmt.Errorf("%q is not of the form TYPE/NAME with one of the types %s", arg,
			strings.Join(f.types, ", "))
	}
	return name, nil
}

// get requests a path of the API server and returns the open response body. An error has the server's message.
func (f *storyFlags) get(ctx context.Context, path string) (io.ReadCloser, error) {
	cfg, err := f.rest()
	if err != nil {
		return nil, err
	}
	limitSilence(cfg, responseTimeout)
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	body, err := ask.Get(ctx, hc, cfg.Host, path)
	if silent := (*silentError)(nil); errors.As(err, &silent) {
		return nil, silent
	}
	absent := apierrors.IsNotFound(err) || errors.Is(err, ask.ErrNoPage) || apierrors.IsForbidden(err)
	if absent && strings.HasPrefix(path, ownPaths) && f.foreign(ctx) {
		return nil, ask.ErrForeign
	}
	return body, err
}

// ownPaths is where Keelson's API server has what others have not.
const ownPaths = "/keelson/"

// foreign reports whether the API server is not Keelson's. Every user may discover groups.
func (f *storyFlags) foreign(ctx context.Context) bool {
	body, err := f.get(ctx, "/apis/"+decisions.GroupVersion.Group)
	if err == nil {
		_ = body.Close()
	}
	return apierrors.IsNotFound(err) || errors.Is(err, ask.ErrNoPage)
}

// storyTypes are the types that have stories.
var storyTypes = []string{"pod", "deploy", "rs", "sts", "ds", "job", "rc"}

func timelineCommand(std Stdio) *cobra.Command {
	f := storyFlags{types: storyTypes}
	var follow, steps bool
	cmd := &cobra.Command{
		Use:               "timeline pod/NAME | deploy/NAME | rs/NAME | job/NAME ...",
		Short:             "The story of a pod: who did what, when, and how long it took",
		ValidArgsFunction: completeObjects(storyTypes...),
		Args:              several,
		Example: "  keelson timeline pod/web-0 --follow           # as it happens, until the pod is Ready\n" +
			"  keelson timeline deploy/web -n shop           # its newest pod, or the one that fares worst, and a " +
			"table of all\n" +
			"  keelson timeline pod/web-0 --steps            # thirteen hand-offs, for newcomers\n" +
			"  keelson timeline pod/web-0 -o json",
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&follow, "follow", false, "print steps as they happen, until the pod is Ready or gone")
	cmd.Flags().BoolVar(&steps, "steps", false, "print it as thirteen hand-offs, from the request to the running pod, "+
		"each with a sentence about what happens there")
	cmd.RunE = func(command *cobra.Command, args []string) error {
		objects, err := objectsOf(args)
		if err != nil {
			return err
		}
		if follow && len(objects) > 1 {
			return fmt.Errorf("--follow follows one object, not %d", len(objects))
		}
		render := text.Render
		if steps {
			render = text.RenderSteps
		}
		return each(std, objects, f.output, func(object string) error {
			return f.printStory(command.Context(), object, follow, render, std)
		})
	}
	return cmd
}

// printStory prints the story of one object.
func (f *storyFlags) printStory(
	ctx context.Context, object string, follow bool,
	render func(io.Writer, *story.Story, bool, int), std Stdio,
) error {
	name, owned, err := f.target(ctx, object)
	if err != nil {
		return err
	}
	defer func() { owned.print(std.screen(), f.output, name) }()
	body, err := f.openTimeline(ctx, std.Err, name, follow)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if f.output == "json" {
		return copyJSON(std.Out, body)
	}
	caller := f.caller()
	return printStories(ctx, body, std.screen(), func(out io.Writer, s *story.Story, color bool, width int) {
		s.Waits = caller.Waits(ctx, s)
		caller.Dated(ctx, s)
		render(out, s, color, width)
	})
}

// openTimeline requests a pod's story. With follow the stream goes on until the pod is Ready; the pod may not exist
// yet.
func (f *storyFlags) openTimeline(
	ctx context.Context, stderr io.Writer, name string, follow bool,
) (io.ReadCloser, error) {
	caller := f.caller()
	path := "/keelson/v1/timeline/" + url.PathEscape(f.namespace) + "/" + url.PathEscape(name)
	body, err := f.get(ctx, path)
	if err != nil {
		err = caller.Unknown(ctx, name, err)
	}
	switch {
	case follow && errors.Is(err, ask.ErrNoObject):
		_, _ = fmt.Fprintf(stderr, "waiting for pod %s/%s\n", f.namespace, name)
	case err != nil || !follow:
		return body, err
	default:
		var first story.Story
		err := json.NewDecoder(body).Decode(&first)
		_ = body.Close() // the first request only checks
		if err != nil {
			return nil, fmt.Errorf("read timeline: %w", err)
		}
		caller.Dated(ctx, &first)
		if first.Partial && !first.JustMade() { // its Ready is already past
			return f.get(ctx, path)
		}
	}
	return f.get(ctx, path+"?follow=true")
}

// printStories renders each story of the stream. With --follow on a terminal, a later one replaces the earlier.
func printStories(ctx context.Context, body io.Reader, out *screen, render func(
	io.Writer, *story.Story, bool, int,
),
) error {
	dec := json.NewDecoder(body)
	lines := 0
	for {
		var s story.Story
		err := dec.Decode(&s)
		if errors.Is(err, io.EOF) || err != nil && ctx.Err() != nil { // the end, or Ctrl-C, which needs no message
			return nil //nolint:nilerr // the error is Ctrl-C's
		}
		if err != nil {
			return fmt.Errorf("read timeline: %w", err)
		}
		var b bytes.Buffer
		render(&b, &s, out.color, out.width)
		if out.color && lines > 0 {
			_, _ = fmt.Fprintf(out, "\x1b[%dA\x1b[J", lines)
		}
		lines = rowsOf(out.shown(b.String()), out.width)
		if _, err := out.Write(b.Bytes()); err != nil {
			return err
		}
	}
}

func whyCommand(std Stdio) *cobra.Command {
	f := storyFlags{types: append(slices.Clone(storyTypes), "svc")}
	for _, k := range ask.Kinds {
		f.types = append(f.types, k.Words[0])
	}
	cmd := &cobra.Command{
		Use:               "why pod/NAME | deploy/NAME ... | svc/NAME | pvc/NAME | node/NAME | ns/NAME ...",
		ValidArgsFunction: completeObjects(f.types...),
		Short: "Why a pod is on its node, or on none, or not Ready; where packets to a service go; why a " +
			"claim, a namespace or a node is as it is",
		Args: several,
		Example: "  keelson why pod/web-0                # what each node scored, or what it is short of\n" +
			"  keelson why deploy/web -n shop       # of its newest pod, or the one that fares worst\n" +
			"  keelson why svc/web                  # what each node has in the kernel for it, and what is wrong on " +
			"the way\n" +
			"  keelson why pvc/data                 # why it has no volume, and what would give it one; also hpa, " +
			"ing, pdb\n" +
			"  keelson why pod a b                  # of several, as kubectl takes them\n" +
			"  keelson why cronjob/backup           # when it ran, when it will, and what keeps it from that\n" +
			"  keelson why ns/old                   # which objects and finalizers hold it; also node, crd",
	}
	f.add(cmd)
	cmd.RunE = func(command *cobra.Command, args []string) error {
		objects, err := objectsOf(args)
		if err != nil {
			return err
		}
		return each(std, objects, f.output, func(object string) error {
			return f.explain(command.Context(), object, std)
		})
	}
	return cmd
}

// explain prints why one object is as it is.
func (f *storyFlags) explain(ctx context.Context, object string, std Stdio) error {
	caller := f.caller()
	out := std.screen()
	if kind, name, ok := strings.Cut(object, "/"); ok && slices.Contains(ask.ServiceWords, kind) && name != "" {
		if _, err := f.pod("pod/" + name); err != nil { // checks the output format
			return err
		}
		s, err := caller.Service(ctx, name)
		return f.print(std, s, err, func() { packet.Render(out, s, out.color) })
	}
	if k, name := explainedAs(object); k != nil {
		if _, err := f.pod("pod/" + name); err != nil { // checks the output format
			return err
		}
		answer, err := caller.Object(ctx, k, name)
		return f.print(std, answer, err, func() { cause.Render(out, answer, out.color, out.width) })
	}
	name, owned, err := f.target(ctx, object)
	if err != nil {
		return err
	}
	defer func() { owned.print(out, f.output, name) }()
	w, _, err := caller.Pod(ctx, name)
	return f.print(std, w, err, func() { text.RenderWhy(out, w, out.color, out.width) })
}

// print prints an answer in the form that the user asked for.
func (f *storyFlags) print(std Stdio, answer any, err error, words func()) error {
	switch {
	case err != nil:
		return err
	case f.output == "json":
		return printJSON(std.Out, answer)
	}
	words()
	return nil
}

// caller asks the API server that the flags choose.
func (f *storyFlags) caller() *ask.Caller { return &ask.Caller{Namespace: f.namespace, Get: f.get} }

// explainedAs is the kind of an argument TYPE/NAME; nil: another command path handles it, or none.
func explainedAs(arg string) (*ask.Kind, string) {
	word, name, ok := strings.Cut(arg, "/")
	i := slices.IndexFunc(ask.Kinds, func(k ask.Kind) bool { return slices.Contains(k.Words, word) })
	if !ok || name == "" || i < 0 {
		return nil, ""
	}
	return &ask.Kinds[i], name
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// rowsOf counts the terminal rows of a text. Lines longer than width take several rows.
func rowsOf(text string, width int) int {
	rows := 0
	for line := range strings.Lines(escapes.ReplaceAllString(text, "")) {
		rows++
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
			rows += (n - 1) / width
		}
	}
	return rows
}
