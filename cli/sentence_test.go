// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

// TestMistyped: who mistypes a command reads the nearest one, on one line.
func TestMistyped(t *testing.T) {
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"keelson", "timline"}, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	if want := "keelson: unknown command \"timline\" for \"keelson\": did you mean timeline?\n"; code != 1 ||
		errs.String() != want {
		t.Errorf("got %d, %q, want 1, %q", code, errs.String(), want)
	}
}

// TestReadOnly: what fails since a file system is read-only says what to do.
func TestReadOnly(t *testing.T) {
	err := fmt.Errorf("open log: %w", &fs.PathError{Op: "open", Path: "/d/keelson.log", Err: syscall.EROFS})
	want := "open log: open /d/keelson.log: read-only file system: the kernel's log (dmesg) may say why; make it " +
		"writable and try again"
	if got := sentence(err); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestKubectlsCommand: who takes this program for kubectl reads where kubectl is; the list holds no command of this
// program's own.
func TestKubectlsCommand(t *testing.T) {
	for _, verb := range kubectlVerbs {
		var out, errs bytes.Buffer
		code := Run(t.Context(), []string{"keelson", verb}, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		if want := "kubectl has it, `keelson kubectl " + verb + "`\n"; code != 1 ||
			!strings.HasSuffix(errs.String(), want) {
			t.Errorf("%s: got %d, %q, want 1, %q", verb, code, errs.String(), want)
		}
	}
}

// TestMistypedFlag: who mistypes a flag reads the nearest one, or where they are listed.
func TestMistypedFlag(t *testing.T) {
	for args, want := range map[string]string{
		"up --prot 1":             "unknown flag: --prot: did you mean --port?",
		"up -port=1":              "unknown shorthand flag: 'p' in -port=1: did you mean --port?",
		"up --fakenodes 3":        "unknown flag: --fakenodes: did you mean --fake-nodes?",
		"status --datadir /tmp/a": "unknown flag: --datadir: did you mean --data-dir?",
		"image ls --data-dri x":   "unknown flag: --data-dri: did you mean --data-dir?",
		"node stop a --leese 3s":  "unknown flag: --leese: did you mean --lease?",
		"scheduler --kubeconfg x": "unknown flag: --kubeconfg: did you mean --kubeconfig?",
		"up --zzz":                "unknown flag: --zzz: `keelson up --help` lists them",
		"down -x":                 "unknown shorthand flag: 'x' in -x: `keelson down --help` lists them",
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"keelson"}, strings.Fields(args)...), Stdio{
			In:  strings.NewReader(""),
			Out: &out,
			Err: &errs,
		})
		if code != 1 || errs.String() != "keelson: "+want+"\n" {
			t.Errorf("%s: got %d, %q, want 1, %q", args, code, errs.String(), want)
		}
	}
}

// TestWrongValue: who mistypes a flag's value reads what the flag takes.
func TestWrongValue(t *testing.T) {
	for args, want := range map[string]string{
		"logs --since 5":                   "--since: 5 has no unit: write 5m for minutes or 5s for seconds",
		"logs --since yesterday":           `--since: "yesterday" is not a duration, such as 5m or 5s`,
		"logs --since 99999999h":           `--since: "99999999h" is not a duration, such as 5m or 5s`,
		"logs --tail few":                  `--tail: "few" is not a number`,
		"logs --tail 99999999999999999999": "--tail: 99999999999999999999 is too large or too small",
		"token create --ttl 1.5": "--ttl: 1.5 has no unit: write 1.5m for minutes or 1.5s for " +
			"seconds",
		"down --purge=maybe": `--purge: "maybe" is not true or false`,
		"scheduler --leader-elect-lease-duration 15": "--leader-elect-lease-duration: 15 has no unit: write 15m for " +
			"minutes or 15s for seconds",
		"kubelet --node-labels a": `--node-labels: "a" is not what it takes: a must be formatted as key=value`,
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"keelson"}, strings.Fields(args)...), Stdio{
			In:  strings.NewReader(""),
			Out: &out,
			Err: &errs,
		})
		if code != 1 || errs.String() != "keelson: "+want+"\n" {
			t.Errorf("%s: got %d, %q, want 1, %q", args, code, errs.String(), want)
		}
	}
}
