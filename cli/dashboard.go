// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"keelson/dashboard"
)

func dashboardCommand(std Stdio) *cobra.Command {
	var cluster connection
	var noOpen, readOnly bool
	var port uint16
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "The cluster in a browser: what is not well and why, pods and their stories, any object",
		Long: "Serve a page on this machine that shows the cluster with your rights, and open it in the browser, " +
			"signed in.\n" +
			"The link lets one tab in, once. Nothing of the cluster is read while no page is open.",
		Args: none,
		Example: "  keelson dashboard                       # opens the browser\n" +
			"  keelson dashboard --no-open             # prints the link\n" +
			"  keelson dashboard --read-only --kubeconfig other.conf",
	}
	cluster.add(cmd)
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "print the link, open no browser")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "refuse everything that would change the cluster")
	cmd.Flags().Uint16Var(&port, "port", 0, "port of the page on 127.0.0.1; 0 picks a free one")
	cmd.RunE = func(command *cobra.Command, _ []string) error {
		config, err := cluster.rest()
		if err != nil {
			return err
		}
		out := std.screen()
		d, err := dashboard.New(dashboard.Config{
			Rest:      rest.CopyConfig(config),
			Context:   cluster.currentContext(),
			Namespace: cluster.namespace,
			ReadOnly:  readOnly,
			Out:       out,
		})
		if err != nil {
			return err
		}
		ctx := command.Context()
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("serve the page at %s: %w", address, err)
		}
		ctx, cancel := context.WithCancel(ctx)
		var opening sync.WaitGroup
		defer opening.Wait()
		defer cancel()
		link := d.Link(listener)
		printed := fmt.Sprintf("open this link within five minutes, it lets one tab in:\n  %s\n", link)
		if program := opener(); program == "" || noOpen {
			_, err = fmt.Fprint(out, printed)
		} else {
			_, err = fmt.Fprintln(out, "the page opens in your browser")
			opening.Go(func() { // the page must be served by then
				if err := openBrowser(ctx, program, link); err != nil && ctx.Err() == nil {
					_, _ = fmt.Fprintf(out, "no browser was opened (%v): %s", err, printed)
				}
			})
		}
		if err == nil {
			_, err = fmt.Fprintln(out, "it is served until Ctrl-C")
		}
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		return d.Run(ctx, listener)
	}
	return cmd
}

// currentContext is the name of the kubeconfig's context in use, or empty.
func (n *connection) currentContext() string {
	raw, err := n.loaded.RawConfig()
	if err != nil {
		return ""
	}
	if n.context != "" {
		return n.context
	}
	return raw.CurrentContext
}

// opener is the program that opens links in the user's browser; empty: there is none, or no screen.
func opener() string {
	program, err := exec.LookPath("xdg-open")
	if err != nil || os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return ""
	}
	return program
}

// openBrowser opens a link in the user's browser. Other users of the machine see the arguments of programs, so that the
// link stands in a file that is the user's alone, until ctx ends. The program may be the browser itself, and run as
// long as that.
func openBrowser(ctx context.Context, program, link string) error {
	dir, err := os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "keelson-dashboard-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	const ownerOnly = 0o600
	file := filepath.Join(dir, "open.html")
	text := "<!doctype html>\n<meta http-equiv=\"refresh\" content=\"0; url=" + html.EscapeString(link) + "\">\n"
	if err := os.WriteFile(file, []byte(text), ownerOnly); err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, program, file).Run(); err != nil {
		return err
	}
	<-ctx.Done() // a browser may read the file later
	return nil
}
