// SPDX-License-Identifier: Apache-2.0

package assets

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"keelson/cluster"
	"keelson/cluster/flags"
	"keelson/cluster/version"
)

// settings are what the flags of kube-apiserver set.
type settings struct {
	role    cluster.RoleConfig
	certDir string
	port    int
	level   string // of --v
	// printed reports that help or version was asked for.
	printed bool
}

// externalIPs is the admission plugin that Kubernetes does not have: suites expect Services with externalIPs to pass.
const externalIPs = "ServiceExternalIPs"

// bind is the address that the API listens on.
func (s *settings) bind() string {
	if s.role.Options.Listen.Bind == "" {
		return "127.0.0.1"
	}
	return s.role.Options.Listen.Bind
}

// verbose reports whether --v asks for details.
func (s *settings) verbose() bool {
	level, err := strconv.Atoi(s.level)
	return err == nil && level >= 4
}

// parse reads the flags. What has no effect here is said on errs and is no error: suites are written for other versions
// too.
func (s *settings) parse(args []string, out, errs io.Writer) error {
	fl := pflag.NewFlagSet(APIServer, pflag.ContinueOnError)
	fl.SetOutput(out)
	for _, role := range cluster.Roles() {
		if role.Name == "apiserver" {
			flags.Add(fl, role.Rows(&s.role))
			s.role.API.Flags = flags.Values(fl)
		}
	}
	fl.IntVar(&s.port, "secure-port", 6443, "serve the API over HTTPS on this port")
	fl.StringVar(&s.certDir, "cert-dir", "",
		"`DIRECTORY` of apiserver.crt and apiserver.key, unless --tls-cert-file is given")
	fl.StringVarP(&s.level, "v", "v", "0", "`LEVEL` of the log: from 4 on with details")
	fl.String("allow-privileged", "true", "without effect: privileged containers are allowed")
	showVersion := fl.Bool("version", false, "print the version and exit")
	for _, name := range []string{"port", "quota-backend-bytes", "accept-data-loss", "decision-memory"} {
		fl.Lookup(name).Hidden = true // flags of a cluster, not of Kubernetes
	}
	for _, name := range []string{"feature-gates", "runtime-config"} {
		f := fl.Lookup(name)
		f.Value = lenient{f.Value, name, errs}
	}
	fl.ParseErrorsAllowlist.UnknownFlags = true
	for _, name := range unknown(fl, args) {
		_, _ = fmt.Fprintf(errs, "%s: --%s has no effect in Keelson\n", APIServer, name)
	}
	switch err := fl.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		s.printed = true
		return nil
	case err != nil:
		return err
	}
	if s.printed = *showVersion; s.printed {
		_, err := fmt.Fprintln(out, "Kubernetes", version.Kubernetes)
		return err
	}
	if len(s.role.Etcd.Servers) == 0 {
		return errors.New("--etcd-servers is required: the URL of the etcd that holds the objects")
	}
	if admission := &s.role.API.Admission; !slices.Contains(admission.Enable, externalIPs) {
		admission.Disable = append(admission.Disable, externalIPs)
	}
	s.certificate()
	return s.role.Etcd.Validate()
}

// unknown lists the flags of args that fl does not have.
func unknown(fl *pflag.FlagSet, args []string) []string {
	var out []string
	for _, arg := range args {
		name, long := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if long && name != "" && name != "help" && fl.Lookup(name) == nil {
			out = append(out, name)
		}
	}
	return out
}

// lenient is a flag whose value is a list NAME=VALUE,...: an item that the flag refuses is reported and left out.
type lenient struct {
	pflag.Value
	name string
	errs io.Writer
}

// Set parses the flag's value.
func (l lenient) Set(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		if err := l.Value.Set(item); err != nil {
			_, _ = fmt.Fprintf(l.errs, "%s: --%s=%s has no effect: %v\n", APIServer, l.name, item, err)
		}
	}
	return nil
}
