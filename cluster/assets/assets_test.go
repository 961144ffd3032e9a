// SPDX-License-Identifier: Apache-2.0

package assets

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// harness are the flags with which envtest of controller-runtime starts kube-apiserver.
func harness(dir string) []string {
	return []string{
		"--allow-privileged=true",
		"--authorization-mode=RBAC",
		"--bind-address=127.0.0.1",
		"--cert-dir=" + dir,
		"--client-ca-file=" + filepath.Join(dir, "client-cert-auth-ca.crt"),
		"--disable-admission-plugins=ServiceAccount",
		"--etcd-servers=http://127.0.0.1:2379",
		"--secure-port=33221",
		"--service-account-issuer=https://127.0.0.1:33221/",
		"--service-account-key-file=" + filepath.Join(dir, "sa-signer.crt"),
		"--service-account-signing-key-file=" + filepath.Join(dir, "sa-signer.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
	}
}

// TestFlags: the flags of a harness have their effect, without a word on standard error.
func TestFlags(t *testing.T) {
	dir := t.TempDir()
	cert := filepath.Join(dir, "apiserver.crt")
	if err := os.WriteFile(cert, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var set settings
	var errs bytes.Buffer
	if err := set.parse(harness(dir), io.Discard, &errs); err != nil {
		t.Fatal(err)
	}
	if errs.Len() > 0 || set.printed {
		t.Errorf("says %q, printed %v", errs.String(), set.printed)
	}
	api := set.role.API
	if set.bind() != "127.0.0.1" || set.port != 33221 || api.Serving.CertFile != cert || set.verbose() ||
		!slices.Equal(set.role.Etcd.Servers, []string{"http://127.0.0.1:2379"}) {
		t.Errorf("got %+v", set)
	}
	if got := api.Admission.Disable; !slices.Equal(got, []string{"ServiceAccount", "ServiceExternalIPs"}) {
		t.Errorf("disabled plugins %q", got)
	}
}

// TestAdmissionOfKeelson: the plugin that Kubernetes does not have is off, whatever else a suite enables, unless the
// suite names it.
func TestAdmissionOfKeelson(t *testing.T) {
	for enable, want := range map[string]bool{"AlwaysPullImages": true, "ServiceExternalIPs": false} {
		var set settings
		if err := set.parse(append(harness(t.TempDir()), "--enable-admission-plugins="+enable), io.Discard,
			io.Discard); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(set.role.API.Admission.Disable, externalIPs); got != want {
			t.Errorf("with %s: disabled %v, want %v", enable, got, want)
		}
	}
}

// TestFlagsOfOtherVersions: what this version does not have is said and left out; what is wrong is an error.
func TestFlagsOfOtherVersions(t *testing.T) {
	for name, c := range map[string]struct {
		add  []string
		says string // on standard error
		fail string
	}{
		"unknown flag":       {[]string{"--cloud-provider=x", "--profiling"}, "--cloud-provider has no effect", ""},
		"unknown with space": {[]string{"--cloud-provider", "x", "--secure-port", "1"}, "--cloud-provider has", ""},
		"gate":               {[]string{"--feature-gates=Nonsense=true"}, "--feature-gates=Nonsense=true has no effect", ""},
		"version":            {[]string{"--runtime-config=old.example.com/v1=true"}, "has no effect", ""},
		"verbosity":          {[]string{"-v=6"}, "", ""},
		"verbosity by name":  {[]string{"--v=2"}, "", ""},
		"bad port":           {[]string{"--secure-port=x"}, "", "invalid argument"},
		"bad etcd":           {[]string{"--etcd-servers=nonsense"}, "", "not of the form"},
	} {
		t.Run(name, func(t *testing.T) {
			var set settings
			var errs bytes.Buffer
			err := set.parse(append(harness(t.TempDir()), c.add...), io.Discard, &errs)
			if c.fail == "" && err != nil || c.fail != "" && (err == nil || !strings.Contains(err.Error(), c.fail)) {
				t.Errorf("error %v, want %q", err, c.fail)
			}
			if c.says == "" && errs.Len() > 0 || !strings.Contains(errs.String(), c.says) {
				t.Errorf("says %q, want %q", errs.String(), c.says)
			}
		})
	}
	var set settings
	if err := set.parse([]string{"--secure-port=1"}, io.Discard, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "--etcd-servers is required") {
		t.Errorf("without etcd: %v", err)
	}
}

// TestHelp: envtest takes what kube-apiserver can do from its help, by the pattern below.
func TestHelp(t *testing.T) {
	var set settings
	var out bytes.Buffer
	if err := set.parse([]string{"--help"}, &out, io.Discard); err != nil || !set.printed {
		t.Fatalf("%v, printed %v", err, set.printed)
	}
	for _, arg := range harness("") {
		name, _, _ := strings.Cut(arg[2:], "=")
		if !regexp.MustCompile(`(?m)^\s*--` + name + `\b`).Match(out.Bytes()) {
			t.Errorf("the help has no line of --%s", name)
		}
	}
	if strings.Contains(out.String(), "insecure-port") {
		t.Error("the help has --insecure-port, by which envtest takes it for an old one")
	}
	set = settings{}
	out.Reset()
	if err := set.parse([]string{"--version"}, &out, io.Discard); err != nil || !set.printed ||
		!strings.HasPrefix(out.String(), "Kubernetes v1.") {
		t.Errorf("--version: %v, %q", err, out.String())
	}
}

// TestExtras: the variable adds controllers by name.
func TestExtras(t *testing.T) {
	for value, want := range map[string]int{"": 0, "gc": 1, "gc,namespaces": 2, "serviceaccounts": 3, "all": 5} {
		if got, err := controllersOf(value); err != nil || len(got) != want {
			t.Errorf("%q: %q, %v; want %d controllers", value, got, err, want)
		}
	}
	if _, err := controllersOf("gc,nonsense"); err == nil || !strings.Contains(err.Error(), `there is no "nonsense"`) {
		t.Errorf("unknown extra: %v", err)
	}
}

// TestLink: a link is made, kept, and replaced when it leads to another program.
func TestLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubectl")
	for _, program := range []string{"/a", "/a", "/b"} {
		if err := link(program, path); err != nil {
			t.Fatal(err)
		}
		if at, err := os.Readlink(path); err != nil || at != program {
			t.Errorf("leads to %q, %v; want %s", at, err, program)
		}
	}
}
