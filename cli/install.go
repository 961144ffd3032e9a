// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	yaml "go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"keelson/cluster"
	"keelson/cluster/datadir"
	"keelson/cluster/service"
)

// noServiceFlags are flags of up and join that mean nothing for a service.
var noServiceFlags = []string{"detach", "write-kubeconfig"}

// serviceFlags are the flags by which install and uninstall find a service and its machine.
type serviceFlags struct{ name, root, init string }

func (f *serviceFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.name, "name", service.DefaultName, "name of the service; a second one is keelson-`NAME`")
	fl.StringVar(&f.root, "root", "", "work on the image of a machine in `DIR`; nothing is started there")
	fl.StringVar(&f.init, "init", "", "`MANAGER` of the services: systemd or openrc (default: the one that runs)")
}

// machine is the machine that the flags name.
func (f *serviceFlags) machine(std Stdio) (service.Machine, error) {
	if os.Getuid() != 0 && f.root == "" {
		return service.Machine{}, errors.New("a service of the machine needs root: run this with sudo")
	}
	root, err := filepath.Abs(f.root)
	if f.root == "" {
		root = ""
	}
	return service.Machine{
		Root:     root,
		Starts:   root == "",
		Init:     f.init,
		Progress: newProgress(std.Out).step,
	}, err
}

// installCommand makes `keelson up` or `keelson join` a service. Its subcommands take the flags of those commands.
func installCommand(std Stdio) *cobra.Command {
	var to serviceFlags
	var noStart bool
	var config string
	cmd := &cobra.Command{
		Use:   "install [up | join https://SERVER:PORT] [flags of it]",
		Short: "Make the cluster, or this machine's node, a service that starts at boot",
		Long: "Make `keelson up` (or `keelson join`) a service of systemd or OpenRC, and start it. Flags after up or " +
			"join become lines of /etc/keelson/config.yaml.d/50-install.yaml; " +
			"your own go to /etc/keelson/config.yaml, or to other files next to the first. A restart of the service " +
			"keeps the containers.\n" +
			"Running this again replaces the program and the service, and changes no file of yours.",
		Args: none,
		Example: "  keelson install                                   # keelson up, now and at boot\n" +
			"  keelson install --config cluster.yaml             # with the flags in this file\n" +
			"  keelson install up --port 7443 --node-labels disk=ssd\n" +
			"  keelson install join https://192.168.1.10:6443 --token abcdef.0123456789abcdef --ca-hash sha256:" +
			exampleHash,
	}
	to.add(cmd.PersistentFlags())
	cmd.PersistentFlags().BoolVar(&noStart, "no-start", false, "do not start the service before the next boot")
	cmd.Flags().StringVar(&config, configFlag, "", "make a copy of `FILE` the configuration of the service")
	install := func(role *cobra.Command, args []string, check func() error) error {
		m, err := to.machine(std)
		if err != nil {
			return err
		}
		r, err := installRequest(role, args, m, to.name)
		if err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
		r.NoStart = noStart
		return m.Install(role.Context(), r)
	}
	up, upFlags := upCommandAndFlags(std)
	up.RunE = func(c *cobra.Command, args []string) error {
		return install(c, args, func() error {
			_, err := upFlags.config()
			return err
		})
	}
	join, request := joinCommandAndRequest(std)
	join.RunE = func(c *cobra.Command, args []string) error {
		return install(c, args, func() error {
			request.Server = args[0]
			return request.Check()
		})
	}
	for _, role := range []*cobra.Command{up, join} {
		role.Short = "As a service: " + strings.ToLower(role.Short[:1]) + role.Short[1:]
		role.Example = strings.ReplaceAll(role.Example, "keelson "+role.Name(), "keelson install "+role.Name())
		for _, name := range noServiceFlags {
			if role.Flags().Lookup(name) != nil {
				_ = role.Flags().MarkHidden(name) // it exists, and readConfig refuses it in a file
			}
		}
		cmd.AddCommand(role)
	}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		role := up
		if was := to.command(std); len(was) > 1 && was[0] == join.Name() { // a node stays one
			role = join
			args = was[1:]
		}
		role.SetContext(c.Context())
		if config != "" {
			if err := role.Flags().Set(configFlag, config); err != nil {
				return err
			}
		}
		return role.RunE(role, args)
	}
	return cmd
}

// command is the command of the service that is installed under the name; nil: there is none.
func (f *serviceFlags) command(std Stdio) []string {
	m, err := f.machine(std)
	if err != nil {
		return nil
	}
	s, err := m.Installed(f.name)
	if err != nil {
		return nil
	}
	return s.Args
}

// installRequest checks the flags of the service as its start will, with those of the files that it will read.
func installRequest(role *cobra.Command, args []string, m service.Machine, name string) (r service.Request, err error) {
	r.Name = name
	r.Args = append([]string{role.Name()}, args...)
	if r.Running, err = os.Executable(); err != nil {
		return r, fmt.Errorf("find this program: %w", err)
	}
	fl := role.Flags()
	for _, flag := range noServiceFlags {
		if fl.Changed(flag) {
			return r, fmt.Errorf("--%s is nothing for a service", flag)
		}
	}
	if err := absoluteFiles(fl); err != nil {
		return r, err
	}
	if r.Flags, err = flagLines(fl); err != nil {
		return r, err
	}
	if given := fl.Lookup(configFlag).Value.String(); given != "" {
		if r.Config, err = givenConfig(role, given, filepath.Join("/", m.Root, service.Directory(name))); err != nil {
			return r, err
		}
	}
	if config := filepath.Join("/", m.Root, service.Config(name)); datadir.Exists(config) {
		var replaced []string
		if r.Flags != nil {
			replaced = []string{filepath.Join("/", m.Root, service.FlagsFile(name))}
		}
		if err := readConfig(role, config, replaced...); err != nil {
			return r, err
		}
	}
	r.DataDir, err = filepath.Abs(fl.Lookup("data-dir").Value.String())
	return r, err
}

// givenConfig reads the file that will be the configuration in the directory home.
func givenConfig(role *cobra.Command, path, home string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", configFlag, err)
	}
	if more, err := configFiles(path); err == nil && len(more) > 1 {
		return nil, fmt.Errorf("--%s: the service would not read %s: write it into %s", configFlag, more[1],
			filepath.Join(home, "config.yaml.d"))
	}
	return content, readConfigAs(role, path, home)
}

// flagLines is a configuration file with the flags that were given; nil: none was.
func flagLines(fl *pflag.FlagSet) ([]byte, error) {
	lines := map[string]any{}
	fl.Visit(func(f *pflag.Flag) {
		if slices.Contains([]string{configFlag, "name", "root", "init", "no-start"}, f.Name) {
			return // they are flags of install
		}
		lines[f.Name] = f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			lines[f.Name] = list.GetSlice()
		}
		switch f.Value.Type() {
		case "stringToString":
			lines[f.Name], _ = fl.GetStringToString(f.Name) // of this type
		case "bool", "int", "int32", "int64":
			lines[f.Name] = &yaml.Node{Kind: yaml.ScalarNode, Value: f.Value.String()}
		}
	})
	if len(lines) == 0 {
		return nil, nil
	}
	text, err := yaml.Marshal(lines)
	return append([]byte("# Written by `keelson install`, which replaces it. Your own files go next to it.\n"), text...), err
}

func uninstallCommand(std Stdio) *cobra.Command {
	var from serviceFlags
	var purge, yes bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the service and its containers, and remove what install has made",
		Args:  none,
		Example: "  keelson uninstall             # objects and /etc/keelson/config.yaml stay\n" +
			"  keelson uninstall --purge     # nothing is left",
	}
	from.add(cmd.Flags())
	cmd.Flags().BoolVar(&purge, "purge", false, "also delete the data directory and the configuration")
	cmd.Flags().BoolVar(&yes, "yes", false, "delete local volumes that hold data without asking")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		m, err := from.machine(std)
		if err != nil {
			return err
		}
		s, err := m.Installed(from.name)
		if err != nil {
			return err
		}
		dir := datadir.Dir(s.DataDir)
		if purge && !yes && m.Starts {
			in, ok := std.In.(*os.File)
			if err := agreePurge(dir, std, ok && term.IsTerminal(int(in.Fd()))); err != nil {
				return err
			}
		}
		return m.Uninstall(c.Context(), s, purge, func() error {
			if dir.Empty() {
				return nil // it never started
			}
			return cluster.Down(c.Context(), dir, purge, m.Progress)
		})
	}
	return cmd
}
