// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func configOf(t *testing.T, text string, args ...string) (*pflag.FlagSet, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := upCommand(Stdio{Out: io.Discard, Err: io.Discard})
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return cmd.Flags(), path, readConfig(cmd, path)
}

func TestReadConfig(t *testing.T) {
	fl, path, err := configOf(t, `# a cluster
port: 7443
fake-nodes: node01,node02
verbose: true
node-monitor-grace-period: 10s
audit-policy-file: audit.yaml
tls-sni-cert-key: [a.crt,a.key, /b.crt,/b.key]
service-account-issuer: [https://a, https://b]
controllers: ["*", -job-controller]
node-labels: {disk: ssd, zone: a}
image-mirror: [docker.io=http://127.0.0.1:5000]
`, "--port", "9443")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"port":                      "9443",
		"fake-nodes":                "node01,node02",
		"verbose":                   "true",
		"node-monitor-grace-period": "10s",
		"audit-policy-file":         filepath.Join(filepath.Dir(path), "audit.yaml"),
		"service-account-issuer":    "[https://a,https://b]",
		"controllers":               "[*,-job-controller]",
		"image-mirror":              "[docker.io=http://127.0.0.1:5000]",
	} {
		if got := fl.Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := fl.Lookup("node-labels").Value.String(); !strings.Contains(got, "disk=ssd") ||
		!strings.Contains(got, "zone=a") {
		t.Errorf("node-labels is %q", got)
	}
}

// TestReadConfigStrictly: an error names its line.
func TestReadConfigStrictly(t *testing.T) {
	for text, want := range map[string]string{
		"port: 1\nfakeNodes: 3\n":          `c.yaml:2: there is no flag "fakeNodes": did you mean fake-nodes?`,
		"prot: 1\n":                        `c.yaml:1: there is no flag "prot": did you mean port?`,
		"zzz: 3\n":                         "c.yaml:1: there is no flag \"zzz\": `keelson up --help` lists them",
		"notify-fd: 3\n":                   `c.yaml:1: there is no flag "notify-fd"`,
		"config: other.yaml\n":             `c.yaml:1: there is no flag "config"`,
		"port: high\n":                     `c.yaml:1: port: a number is wanted, not "high"`,
		"port: [1]\n":                      "c.yaml:1: port: a number is wanted",
		"port:\n":                          `c.yaml:1: port: a number is wanted, not ""`,
		"detach: \"true\"\n":               `c.yaml:1: detach: true or false is wanted, not "true"`,
		"\n\nport: 1\nport: 2\n":           "c.yaml:4: port is there already, in line 3",
		"node-monitor-grace-period: soon":  `c.yaml:1: node-monitor-grace-period: "soon" is not a duration, such as 5m or 5s`,
		"node-labels: [a]":                 "c.yaml:1: node-labels: a mapping of texts is wanted",
		"controllers: {a: b}":              "c.yaml:1: controllers: a list of texts, or one, is wanted",
		"- port\n":                         "c.yaml:1: a mapping of flags to their values is wanted",
		"port: 1\n---\nport: 2\n":          "c.yaml: there is a second document",
		"port: 1\n  odd: [\n":              "c.yaml: ",
		"a: &x 1\nport: *x\n":              "c.yaml:2: port: anchors and aliases are not read",
		"zzz: 1\nport: high\nverbose: 7\n": "c.yaml:3: verbose: true or false is wanted",
	} {
		_, _, err := configOf(t, text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant ...%s", text, err, want)
		}
	}
	for _, nothing := range []string{"", "# only a comment\n", "---\n"} {
		if _, _, err := configOf(t, nothing); err != nil {
			t.Errorf("%q: %v", nothing, err)
		}
	}
}

// TestConfigDirectory: files of FILE.d are read in order of their names, a later value replaces an earlier one, a
// relative file name is resolved from its file's directory, and other files are left alone.
func TestConfigDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"c.yaml":                 "port: 1\nverbose: true\ncontrollers: [a, b]\naudit-policy-file: audit.yaml\n",
		"c.yaml.d/10-a.yaml":     "port: 2\ncontrollers: [c]\nencryption-provider-config: keys.yaml\n",
		"c.yaml.d/20-b.yaml":     "port: 3\n",
		"c.yaml.d/30-c.yaml.bak": "nonsense: 3\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := upCommand(Stdio{Out: io.Discard, Err: io.Discard})
	if err := readConfig(cmd, filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"port":                       "3",
		"verbose":                    "true",
		"controllers":                "[c]",
		"audit-policy-file":          filepath.Join(dir, "audit.yaml"),
		"encryption-provider-config": filepath.Join(dir, "c.yaml.d", "keys.yaml"),
	} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	bad := filepath.Join(dir, "c.yaml.d", "40-d.yaml")
	if err := os.WriteFile(bad, []byte("\nprot: 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := readConfig(upCommand(Stdio{Out: io.Discard, Err: io.Discard}), filepath.Join(dir, "c.yaml"))
	if err == nil || !strings.Contains(err.Error(), `40-d.yaml:2: there is no flag "prot": did you mean port?`) {
		t.Errorf("a wrong key in the directory: %v", err)
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add("port: 1\nnode-labels: {a: b}\ncontrollers: [a]\n")
	f.Add("a: &x [*x]\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _, _ = configOf(t, text) // it says what is wrong, and does not fall
	})
}

// TestEveryFlagHasAGroup: the help of `keelson up` shows a screen of everyday flags, and all others in groups.
func TestEveryFlagHasAGroup(t *testing.T) {
	var b strings.Builder
	if code := Run(t.Context(), []string{"keelson", "up", "--help"}, Stdio{Out: &b, Err: &b}); code != 0 {
		t.Fatal(b.String())
	}
	_, flags, _ := strings.Cut(b.String(), "\nFlags:\n")
	everyday, groups, _ := strings.Cut(flags, "\n\n")
	if n := strings.Count(everyday, "\n"); n > 24 {
		t.Errorf("%d everyday flags are no screen:\n%s", n, everyday)
	}
	at := 0
	for _, title := range []string{
		"Generic", "Etcd", "Secure serving", "Auditing", "Authentication", "Authorization", "Admission", "Traces",
		"Proxy", "DNS", "Kubelet", "Controllers",
	} {
		i := strings.Index(groups, title+" flags:\n")
		if i < at {
			t.Errorf("the group %s is not in its place", title)
		}
		at = i
	}
}
