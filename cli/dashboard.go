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
		link := d.Link(listener)
		removeOpener := func() {}
		if !noOpen {
			removeOpener, err = openBrowser(ctx, link)
		}
		defer removeOpener()
		if noOpen || err != nil {
			_, err = fmt.Fprintf(out, "open this link within five minutes, it lets one tab in:\n  %s\n", link)
		} else {
			_, err = fmt.Fprintln(out, "the page is open in your browser")
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

// errNoBrowser means that there is no screen or no program that would open a browser on it.
var errNoBrowser = errors.New("no browser")

// openBrowser opens a link in the user's browser. Other users of the machine see the arguments of programs, so that the
// link stands in a file that is the user's alone; remove removes it.
func openBrowser(ctx context.Context, link string) (remove func(), err error) {
	remove = func() {}
	program, err := exec.LookPath("xdg-open")
	if err != nil || os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return remove, errNoBrowser
	}
	dir, err := os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "keelson-dashboard-")
	if err != nil {
		return remove, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	const ownerOnly = 0o600
	file := filepath.Join(dir, "open.html")
	text := "<!doctype html>\n<meta http-equiv=\"refresh\" content=\"0; url=" + html.EscapeString(link) + "\">\n"
	if err := os.WriteFile(file, []byte(text), ownerOnly); err != nil {
		return remove, err
	}
	cmd := exec.CommandContext(ctx, program, file)
	if err := cmd.Run(); err != nil { // it returns when the browser has the address
		return remove, fmt.Errorf("%w: %w", errNoBrowser, err)
	}
	return remove, nil
}
