// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keelson/cluster"
	"keelson/pki"
)

func certsCommand(std Stdio) *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "The cluster's certificates: when they expire, and who renews them",
		Long: "List the certificates of this machine's cluster or node, those that expire first at first.\n" +
			"A running cluster renews its own at two thirds of their lives; `keelson certs renew` does at once, also " +
			"where nothing runs.",
		Args: none,
		Example: "  keelson certs\n" +
			"  keelson certs -o json --data-dir /tmp/a\n" +
			"  keelson certs renew",
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := cluster.Certificates(c.Context(), cluster.DataDir(dir))
			if err != nil {
				return err
			}
			return printCerts(std.Out, list, output, time.Now())
		},
	}
	dataDirVar(cmd.PersistentFlags(), &dir)
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FORMAT`: json, or a table")
	cmd.AddCommand(renewCertsCommand(std, &dir))
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
			done, err := cluster.RenewCertificates(cluster.DataDir(*dir), args)
			for _, info := range done {
				next := ""
				if info.CA {
					next = "; the next start of the cluster uses it, joined nodes follow"
				}
				_, _ = fmt.Fprintf(std.Out, "%s renewed, expires %s%s\n", info.Name,
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
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(list)
	case "", "table":
	default:
		return fmt.Errorf("-o %s is neither json nor table", format)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tEXPIRES\tLEFT\tRENEWAL\tSUBJECT\tNAMES\tFILE") // Flush returns the error
	for i := range list {
		info := &list[i]
		if info.Problem != "" {
			_, _ = fmt.Fprintf(table, "%s\t-\t-\t%s\t%s\t\t%s\n", info.Name, renewalText(info), info.Problem, info.File)
			continue
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", info.Name,
			info.Expires.Local().Format(time.RFC3339), leftText(info.Expires.Sub(now)), renewalText(info), info.Subject,
			strings.Join(info.Names, ","), info.File)
	}
	return table.Flush()
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
