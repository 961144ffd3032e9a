// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/lib/words"
	"keelson/pki"
)

func certsCommand(std Stdio) *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "The cluster's certificates: when they expire, and who renews them",
		Long: "List the certificates of this machine's cluster or node, those that expire soonest first.\n" +
			"A running cluster renews its own at two thirds of their lives; `keelson certs renew` renews them at once, also " +
			"where nothing runs.",
		Args: none,
		Example: "  keelson certs\n" +
			"  keelson certs -o json --data-dir /tmp/a\n" +
			"  keelson certs renew",
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := credentials.List(c.Context(), datadir.Dir(dir))
			if err != nil {
				return err
			}
			if err := printCerts(std.Out, list, output, time.Now()); err != nil || output == "json" {
				return err
			}
			return printRotations(std.screen(), dir)
		},
	}
	dataDirVar(cmd.PersistentFlags(), &dir)
	cmd.Flags().StringVarP(&output, "output", "o", "", "`json`, or nothing for a table")
	cmd.AddCommand(renewCertsCommand(std, &dir), rotateKeyCommand(std, &dir))
	return cmd
}

// printRotations prints the keys that are being replaced.
func printRotations(out io.Writer, dir string) error {
	found, err := credentials.Rotations(datadir.Dir(dir))
	for _, r := range found {
		_, _ = fmt.Fprintf(out, "%s\n", r.Text)
	}
	return err
}

func rotateKeyCommand(std Stdio, dir *string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rotate [NAME STEP]",
		Short: "Replace the key of an authority, or of service-account tokens, in steps",
		Long: "Replace a key (" + strings.Join(credentials.Names, ", ") + ") in three steps, each on every server:\n" +
			"  trust    a new key is trusted in addition to the old one\n" +
			"  use      the new key signs; `trust` goes back\n" +
			"  finish   the old key is no longer trusted; there is no way back\n" +
			"  cancel   after trust: the new key is no longer trusted\n" +
			"A running cluster takes each step over. A step may be run twice, and completes one that was killed.\n" +
			"Without arguments: which keys are being replaced, and the next commands. See docs/certificates.md.",
		Example: "  keelson certs rotate ca trust\n" +
			"  keelson certs rotate",
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				if err := datadir.Dir(*dir).Started(); err != nil {
					return err
				}
				found, err := credentials.Rotations(datadir.Dir(*dir))
				if err == nil && len(found) == 0 {
					_, err = fmt.Fprintln(std.screen(), "no key is being replaced")
					return err
				}
				return printRotations(std.screen(), *dir)
			case 1:
				return fmt.Errorf("rotate %s: which step? %s", args[0], strings.Join(credentials.Steps, ", "))
			}
			step, err := credentials.Rotation{
				Dir:   datadir.Dir(*dir),
				Name:  args[0],
				Step:  args[1],
				Force: force,
			}.Run(c.Context())
			if err != nil {
				return err
			}
			if step == pki.StepNone {
				_, _ = fmt.Fprintf(std.screen(), "%s has one key\n", args[0])
			}
			return printRotations(std.screen(), *dir)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "do not ask the servers whether everybody is ready")
	return cmd
}

func renewCertsCommand(std Stdio, dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "renew [NAME...]",
		Short: "Issue new certificates with the same names; a running cluster takes them over",
		Example: "  keelson certs renew                      # all that the cluster renews by itself\n" +
			"  keelson certs renew admin apiserver\n" +
			"  keelson certs renew ca                   # the same key for ten years more",
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			done, err := credentials.Renew(datadir.Dir(*dir), args)
			for _, info := range done {
				next := ""
				if info.CA {
					next = "; a running cluster and its nodes take it over"
				}
				_, _ = fmt.Fprintf(std.screen(), "%s renewed, expires %s%s\n", info.Name,
					info.Expires.Local().Format(time.RFC3339), next)
			}
			return err
		},
	}
}

// printCerts prints a list of certificates.
func printCerts(out io.Writer, list []pki.Info, format string, now time.Time) error {
	switch format {
	case "json":
		return printJSON(out, list)
	case "", "table":
	default:
		return fmt.Errorf("-o %s is neither json nor table", format)
	}
	titles := strings.Fields("NAME EXPIRES LEFT RENEWAL SUBJECT NAMES FILE")
	rows := make([][]string, 0, len(list))
	for i := range list {
		info := &list[i]
		row := []string{info.Name, "-", "-", renewalText(info), info.Problem, "", info.File}
		if info.Problem == "" {
			row[1] = info.Expires.Local().Format(time.RFC3339)
			row[2] = leftText(info.Expires.Sub(now))
			row[4] = info.Subject
			row[5] = strings.Join(info.Names, ",")
		}
		rows = append(rows, row)
	}
	return printStyled(screenOf(out), titles, rows, func(row int) string {
		if list[row].Warning(now) != "" {
			return words.Red
		}
		return ""
	})
}

func leftText(left time.Duration) string {
	switch {
	case left <= 0:
		return "expired"
	case left < 48*time.Hour:
		return left.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd", int(left.Hours()/24))
}

func renewalText(info *pki.Info) string {
	switch info.Renewal {
	case pki.BySelf:
		if info.Renews != nil {
			return "by itself, " + info.Renews.Local().Format(time.DateOnly)
		}
		return "ends with its CA"
	case pki.ByRequest:
		return "by its kubelet"
	case pki.ByCommand:
		return "keelson certs renew " + info.Name
	case pki.ByOwner:
	}
	return "by its owner"
}
