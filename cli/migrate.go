// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"keelson/cluster/datadir"
	"keelson/cluster/flags"
	"keelson/cluster/maintenance"
	"keelson/cluster/storage"
	"keelson/lib/option"
	"keelson/lib/words"
)

// acceptDataLossFlag adds the flag of commands that open the embedded store.
func acceptDataLossFlag(c *cobra.Command, accept *bool) {
	flags.Add(c.Flags(), []option.Row{storage.AcceptDataLossRow(accept)})
}

// etcdArgs are the flags as arguments for a process in another working directory.
func etcdArgs(etcdConfig storage.Config) []string {
	var args []string
	if len(etcdConfig.Servers) > 0 {
		args = append(args, "--etcd-servers", strings.Join(etcdConfig.Servers, ","))
	}
	if etcdConfig.QuotaBytes != 0 {
		args = append(args, "--quota-backend-bytes", strconv.FormatInt(etcdConfig.QuotaBytes, 10))
	}
	for flag, file := range map[string]string{
		"--etcd-cafile":   etcdConfig.CAFile,
		"--etcd-certfile": etcdConfig.CertFile,
		"--etcd-keyfile":  etcdConfig.KeyFile,
	} {
		if file == "" {
			continue
		}
		if abs, err := filepath.Abs(file); err == nil {
			file = abs
		}
		args = append(args, flag, file)
	}
	return args
}

func migrateCommand(std Stdio) *cobra.Command {
	var etcdConfig storage.Config
	var to string
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "migrate --to=etcd|embedded --etcd-servers=URL",
		Short: "Copy all objects between the embedded store and etcd",
		Long: "Copy every object from the embedded store in --data-dir to etcd, or from etcd to a new embedded store " +
			"there. No instance " +
			"may use the data directory meanwhile. Keys and values stay the same. The directory then uses the other " +
			"store; its old one is renamed, etcd stays as it is.",
		Example: "  keelson migrate --to=etcd --etcd-servers=http://127.0.0.1:2379         # then: keelson up " +
			"--etcd-servers=http://127.0.0.1:2379\n" +
			"  keelson migrate --to=embedded --etcd-servers=http://127.0.0.1:2379     # and back, into a directory " +
			"without a store",
		Args: none,
	}
	dir := dataDirFlag(cmd)
	cmd.Flags().StringVar(&to, "to", "", "etcd or embedded")
	flags.Add(cmd.Flags(), etcdConfig.Rows())
	acceptDataLossFlag(cmd, &acceptLoss)
	cmd.RunE = func(command *cobra.Command, _ []string) error {
		if len(etcdConfig.Servers) == 0 {
			return errors.New("--etcd-servers says where etcd is: it is missing")
		}
		run := func(context.Context, datadir.Dir, storage.Config) (int64, error) {
			return 0, fmt.Errorf("--to %q is not known: etcd or embedded", to)
		}
		next := ""
		switch to {
		case "etcd":
			run = func(ctx context.Context, dir datadir.Dir, e storage.Config) (int64, error) {
				return maintenance.MigrateToEtcd(ctx, dir, e, acceptLoss)
			}
			next = "`keelson up --etcd-servers=...` continues with them"
		case "embedded":
			run = maintenance.MigrateFromEtcd
			next = "`keelson up` continues with them"
		}
		n, err := run(command.Context(), datadir.Dir(*dir), etcdConfig)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(std.screen(), "%s copied; %s\n", words.Count(n, "object"), next)
		return err
	}
	return cmd
}
