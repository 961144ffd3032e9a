// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"keelson/cluster/datadir"
	"keelson/event/eventlog"
	"keelson/lib/log"
	"keelson/timeline/text"
)

func logsCommand(std Stdio) *cobra.Command {
	query := log.Query{Tail: -1}
	var since time.Duration
	var format string
	cmd := &cobra.Command{
		Use:   "logs [COMPONENT]",
		Short: "What the components did: all of them, or one",
		Long: "Print what the components of the cluster in --data-dir wrote into its log, keelson.log: what they did " +
			"to which object, and what went wrong.\n" +
			"Components: " + strings.Join(eventlog.Components(), ", ") + ".\n" +
			"A component that runs as a process of its own writes to its standard error in place of this log.",
		Example: "  keelson logs                        # all components, from the oldest line that is kept\n" +
			"  keelson logs scheduler -f           # which pods it binds, as it happens\n" +
			"  keelson logs kubelet --since 5m     # pulled, created, started, probe failed, killed\n" +
			"  keelson logs --tail 20 -o json      # one JSON object a line",
		Args:              atMostOne("COMPONENT"),
		ValidArgsFunction: completeFixed(eventlog.Components()),
	}
	dir := dataDirFlag(cmd)
	fl := cmd.Flags()
	fl.BoolVarP(&query.Follow, "follow", "f", false, "go on with what is written from now on, until Ctrl-C")
	fl.IntVar(&query.Tail, "tail", -1, "begin with the last `N` lines; -1: all")
	fl.DurationVar(&since, "since", 0, "leave out what is older, as 5m")
	fl.StringVarP(&format, "output", "o", "text", "`text`, or json: one object a line")
	_ = cmd.RegisterFlagCompletionFunc("output", ofFlag(completeFixed([]string{"text", "json"})))
	cmd.RunE = func(command *cobra.Command, args []string) error {
		if len(args) > 0 {
			want, err := componentOf(args[0])
			if err != nil {
				return err
			}
			query.Want = func(l log.Line) bool { return l.Get(eventlog.Key) == want }
		}
		if format != "text" && format != "json" {
			return fmt.Errorf("--output %q is neither text nor json", format)
		}
		if since > 0 {
			query.Since = time.Now().Add(-since)
		}
		out := std.screen()
		path := datadir.Dir(*dir).Log()
		err := log.Read(command.Context(), path, query, func(l log.Line) error {
			line := l.Raw
			if format == "json" {
				line = string(l.JSON())
				_, err := fmt.Fprintln(std.Out, line)
				return err
			}
			if out.width > 0 {
				line = strings.Join(text.Fold(line, out.width, "    "), "\n")
			}
			_, err := fmt.Fprintln(out, line)
			return err
		})
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("no cluster has run in %s: there is no %s", *dir, path)
		case errors.Is(err, context.Canceled):
			return nil
		}
		return datadir.Unreadable(err)
	}
	return cmd
}

// componentOf returns the component for a name, which may be that of a Kubernetes program.
func componentOf(name string) (string, error) {
	known := strings.TrimPrefix(strings.ToLower(name), "kube-")
	switch known {
	case "controllers", "controller":
		known = eventlog.ControllerManager
	case "network-policy":
		known = eventlog.NetworkPolicy
	case "etcd":
		known = eventlog.Store
	case "coredns":
		known = eventlog.DNS
	}
	if !slices.Contains(eventlog.Components(), known) {
		return "", fmt.Errorf("there is no component %q: %s", name, strings.Join(eventlog.Components(), ", "))
	}
	return known, nil
}
