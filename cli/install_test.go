// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// install runs `keelson install` on an image in root.
func install(t *testing.T, root string, args ...string) (string, int) {
	t.Helper()
	var out strings.Builder
	all := append([]string{"keelson", "install", "--root", root, "--init", "systemd"}, args...)
	code := Run(t.Context(), all, Stdio{Out: &out, Err: &out})
	return out.String(), code
}

// TestInstallFlags: the flags given to install are those that the service reads.
func TestInstallFlags(t *testing.T) {
	root := t.TempDir()
	data := filepath.Join(root, "data")
	if out, code := install(t, root, "up", "--port", "7443", "--data-dir", data, "--verbose", "--controllers=*,-job",
		"--node-labels", "a=b,c=d", "--image-mirror", "docker.io=http://127.0.0.1:5000", "--node-monitor-grace-period=50s",
		"--audit-policy-file=audit.yaml", "--audit-log-path=-"); code != 0 {
		t.Fatal(out)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	up := upCommand(Stdio{Out: io.Discard, Err: io.Discard})
	if err := readConfig(up, filepath.Join(root, "etc/keelson/config.yaml")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"port":                      "7443",
		"data-dir":                  data,
		"verbose":                   "true",
		"controllers":               "[*,-job]",
		"node-labels":               "[a=b,c=d]",
		"image-mirror":              "[docker.io=http://127.0.0.1:5000]",
		"node-monitor-grace-period": "50s",
		"audit-policy-file":         filepath.Join(here, "audit.yaml"),
	} {
		if got := up.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if out, code := install(t, root, "--name", "keelson-two", "up", "--data-dir", data); code == 0 ||
		!strings.Contains(out, "is the data directory of the service keelson") {
		t.Errorf("a second service on the directory: %s", out)
	}
	var out strings.Builder
	if code := Run(t.Context(), []string{"keelson", "uninstall", "--root", root, "--init", "systemd", "--purge"},
		Stdio{Out: &out, Err: &out}); code != 0 {
		t.Error(out.String())
	}
	if left, err := os.ReadDir(filepath.Join(root, "etc/systemd/system/multi-user.target.wants")); err != nil ||
		len(left) > 0 {
		t.Errorf("left at boot: %v, %v", left, err)
	}
}

// TestInstallConfig: names in the file given with --config are those that the service finds where the copy is.
func TestInstallConfig(t *testing.T) {
	given := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(given, []byte("data-dir: data\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if out, code := install(t, root, "--config", given); code != 0 {
		t.Fatal(out)
	}
	unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/keelson.service"))
	want := "data-dir: " + filepath.Join(root, "etc/keelson/data") + "\n"
	if err != nil || !strings.Contains(string(unit), want) {
		t.Errorf("the unit lacks %s:\n%s, %v", want, unit, err)
	}
	root = t.TempDir()
	t.Chdir(root)
	if out, code := install(t, root, "up", "--data-dir", "mine"); code != 0 {
		t.Fatal(out)
	}
	flags, err := os.ReadFile(filepath.Join(root, "etc/keelson/config.yaml.d/50-install.yaml"))
	want = "data-dir: " + filepath.Join(root, "mine") + "\n" // the service runs in /
	if err != nil || !strings.Contains(string(flags), want) {
		t.Errorf("the flags lack %s:\n%s, %v", want, flags, err)
	}
	if err := os.Mkdir(given+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(given+".d", "a.yaml"), []byte("port: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := install(t, t.TempDir(), "--config", given); code == 0 ||
		!strings.Contains(out, "the service would not read "+given+".d/a.yaml") {
		t.Errorf("flags that are not copied: %s", out)
	}
}

// TestInstallNodeAgain: a newer program is installed on a node without its URL and token.
func TestInstallNodeAgain(t *testing.T) {
	root := t.TempDir()
	const server = "https://10.0.0.1:6443"
	join := []string{"join", server, "--token", "abcdef.0123456789abcdef", "--ca-hash", "sha256:" + exampleHash}
	for _, args := range [][]string{join, nil} {
		if out, code := install(t, root, args...); code != 0 {
			t.Fatalf("install %q: %s", args, out)
		}
		unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/keelson.service"))
		if want := "/keelson join " + server + " --config"; err != nil || !strings.Contains(string(unit), want) {
			t.Errorf("install %q: the unit lacks %s:\n%s, %v", args, want, unit, err)
		}
	}
}

// TestInstallRefuses: one sentence, and nothing is written.
func TestInstallRefuses(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(wrong, []byte("port: 7443\nfakeNodes: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const token = "abcdef.0123456789abcdef"
	for want, args := range map[string][]string{
		`c.yaml:2: there is no flag "fakeNodes": did you mean fake-nodes?`: {"--config", wrong},
		"--config: open /nonexistent: no such file or directory":           {"up", "--config", "/nonexistent"},
		"--detach is nothing for a service":                                {"up", "--detach"},
		"image mirror \"x\" is not of the form HOST=URL":                   {"up", "--image-mirror", "x"},
		"--ca-hash is missing":                                             {"join", "https://10.0.0.1:6443", "--token", token},
		"is not of the form https://HOST:PORT":                             {"join", "10.0.0.1:6443", "--token", token},
		"--token is not of the form":                                       {"join", "https://10.0.0.1:6443"},
		"needs one https://SERVER:PORT":                                    {"join"},
		"install takes no arguments, not uo":                               {"uo"},
	} {
		root := t.TempDir()
		out, code := install(t, root, args...)
		if code == 0 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%q:\n got %swant ...%s", args, out, want)
		}
		if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
			t.Errorf("%q left %v, %v", args, left, err)
		}
	}
	var out strings.Builder
	code := Run(t.Context(), []string{"keelson", "uninstall", "--root", t.TempDir(), "--init", "systemd"},
		Stdio{Out: &out, Err: &out})
	if want := "no service keelson is installed: `keelson install` installs it"; code == 0 ||
		!strings.Contains(out.String(), want) {
		t.Errorf("got %s, want ...%s", out.String(), want)
	}
}
