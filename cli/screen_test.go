// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster/maintenance"
	"keelson/cluster/simulation"
	"keelson/runtime/image"
	"keelson/timeline/ask"
)

// narrow is the screen of a terminal of 80 columns in the locale C.
func narrow(out *bytes.Buffer) *screen { return &screen{out: out, width: 80, ascii: true} }

// fits reports a line that is wider than 80 columns, unless it is one word, and a character beyond ASCII.
func fits(t *testing.T, of, shown string) {
	t.Helper()
	for line := range strings.Lines(escapes.ReplaceAllString(shown, "")) {
		line = strings.TrimRight(line, "\n")
		if n := utf8.RuneCountInString(line); n > 80 && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%s: a line of %d columns: %s", of, n, line)
		}
		if i := strings.IndexFunc(line, func(r rune) bool { return r > unicode.MaxASCII }); i >= 0 {
			t.Errorf("%s: not ASCII: %s", of, line)
		}
	}
}

// TestEveryHelpFits walks all commands: their help fits into 80 columns, with its examples, and is ASCII.
func TestEveryHelpFits(t *testing.T) {
	seen := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		seen++
		var out bytes.Buffer
		cmd.SetOut(narrow(&out))
		if err := cmd.Help(); err != nil {
			t.Errorf("%s: %v", cmd.CommandPath(), err)
		}
		fits(t, cmd.CommandPath()+" --help", out.String())
		for _, sub := range cmd.Commands() {
			if !sub.DisableFlagParsing {
				walk(sub)
			}
		}
	}
	walk(rootCommand(Stdio{}))
	if seen < 30 {
		t.Errorf("%d commands, want all", seen)
	}
}

// TestHelpFlows: a description has a new line where a sentence or a list begins, and nowhere else, so that it fills a
// terminal of any width.
func TestHelpFlows(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		lines := strings.Split(cmd.Long, "\n")
		for i, line := range lines[:len(lines)-1] {
			if line != "" && !strings.HasPrefix(lines[i+1], "  ") && !strings.HasPrefix(line, "  ") &&
				!strings.ContainsAny(line[len(line)-1:], ".:") {
				t.Errorf("%s: a line ends within a sentence: %s", cmd.CommandPath(), line)
			}
		}
		for _, sub := range cmd.Commands() {
			if !sub.DisableFlagParsing && sub.Name() != "completion" { // cobra's own words
				walk(sub)
			}
		}
	}
	walk(rootCommand(Stdio{}))
}

// TestGoldensFit: what timeline and why print fits into 80 columns, and each of its characters has an ASCII form.
func TestGoldensFit(t *testing.T) {
	files, err := filepath.Glob("../timeline/*/testdata/*.golden")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := narrow(&out).Write(text); err != nil {
			t.Fatal(err)
		}
		fits(t, file, out.String())
		if marks := strings.Count(out.String(), "?"); marks != strings.Count(string(text), "?") {
			t.Errorf("%s: %d characters have no ASCII form", file, marks-strings.Count(string(text), "?"))
		}
	}
}

// TestScreen: a line is folded below its indent, colors take no width, and without a terminal lines stay as they are.
func TestScreen(t *testing.T) {
	const line = "   \x1b[36mnine\x1b[0m µs and more words → here\n   short\n"
	for _, tc := range []struct {
		screen screen
		want   string
	}{
		{screen{}, line},
		{screen{ascii: true}, "   \x1b[36mnine\x1b[0m us and more words -> here\n   short\n"},
		{screen{width: 20}, "   \x1b[36mnine\x1b[0m µs and more\n     words → here\n   short\n"},
		{screen{width: 33}, line},
		{screen{width: 13}, "   \x1b[36mnine\x1b[0m µs\n     and more\n     words →\n     here\n   short\n"},
	} {
		var out bytes.Buffer
		tc.screen.out = &out
		if _, err := tc.screen.Write([]byte(line)); err != nil || out.String() != tc.want {
			t.Errorf("%d columns: got\n%q, %v; want\n%q", tc.screen.width, out.String(), err, tc.want)
		}
	}
}

// TestLabels: what comes after a label is wrapped next to it.
func TestLabels(t *testing.T) {
	for line, want := range map[string]string{
		"   wide   one two three four":  "   wide   one two\n          three four",
		"firewall  one two three four":  "firewall  one two\n          three four",
		"pods one two three four five":  "pods one two three\n  four five",
		"   a/very-long-label   x yy z": "   a/very-long-label\n     x yy z",
	} {
		out := screen{width: 20}
		if got := out.shown(line + "\n"); got != want+"\n" {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// TestTablesFit: what is too wide for the terminal is wrapped in each table, though a table is written in pieces.
func TestTablesFit(t *testing.T) {
	name := "web-" + strings.Repeat("6d4d75df87", 3) + "-5s6r5"
	reason := "0/4 nodes are available: 1 node(s) were unschedulable, 3 node(s) had untolerated taint(s)"
	for of, print := range map[string]func(*screen) error{
		"whatif": func(out *screen) error {
			return printWhatIf(out, &simulation.Answer{
				Outcomes: []simulation.Outcome{{Namespace: "default", Name: name, Why: "leaves vm", NoFit: reason}},
			})
		},
		"images": func(out *screen) error {
			tags := []string{"registry.example.com/" + strings.Repeat("team/", 10) + "web:v1"}
			return listImages([]image.Image{{ID: "sha256:0139b68d8415", RepoTags: tags}}, out)
		},
		"pods": func(out *screen) error {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
			pod.Spec.NodeName = "worker-1.example.com"
			pods{"deploy/web", &ask.Pods{List: []corev1.Pod{pod}}}.print(out, "", name)
			return nil
		},
	} {
		var out bytes.Buffer
		if err := print(narrow(&out)); err != nil {
			t.Errorf("%s: %v", of, err)
		}
		fits(t, of, out.String())
	}
}

// TestNoImages: a list of nothing says what makes one, and has no titles.
func TestNoImages(t *testing.T) {
	var out bytes.Buffer
	if err := listImages(nil, narrow(&out)); err != nil || !strings.Contains(out.String(), "`keelson image import FILE`") ||
		strings.Contains(out.String(), "TAG") {
		t.Errorf("got %v, %s", err, out.String())
	}
}

// TestColors: what fails is red, what is well green, where the terminal has colors, and tables stay aligned.
func TestColors(t *testing.T) {
	const red, green, reset = "\x1b[31m", "\x1b[32m", "\x1b[0m"
	printed := func(color bool) string {
		var out bytes.Buffer
		s := &screen{out: &out, color: color}
		status := &maintenance.Status{
			Pid:        7,
			Nodes:      2,
			NodesReady: 1,
			Components: []string{"scheduler: no leader"},
		}
		answer := &simulation.Answer{Outcomes: []simulation.Outcome{{Name: "a", NoFit: "full"}, {Name: "b", Node: "n"}}}
		if err := errors.Join(printStatus(s, status, "/d"), printWhatIf(s, answer)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	plain := printed(false)
	colored := printed(true)
	if strings.Contains(plain, "\x1b") || escapes.ReplaceAllString(colored, "") != plain {
		t.Errorf("got\n%s\nwant the text of\n%s", colored, plain)
	}
	for _, want := range []string{
		green + "running" + reset,
		red + "nodes     1 of 2 Ready" + reset,
		red + "unhealthy scheduler: no leader" + reset,
		red + "/a          <none>   full" + reset,
		"\n/b          n        \n",
	} {
		if !strings.Contains(colored, want) {
			t.Errorf("no %q in %q", want, colored)
		}
	}
}

// TestNoPodWaits: a question about more nodes has an answer where no pod waits for one.
func TestNoPodWaits(t *testing.T) {
	var out bytes.Buffer
	const want = "no pod waits for a node; -f FILE places those of a manifest\n" +
		"0 placed, 0 pending, 0 preempted, 0 lost; 1 node\n"
	if err := printWhatIf(narrow(&out), &simulation.Answer{Nodes: 1}); err != nil || out.String() != want {
		t.Errorf("got %v,\n%s\nwant\n%s", err, out.String(), want)
	}
}

// TestLocale: the first variable that is set decides, and none is no choice.
func TestLocale(t *testing.T) {
	for _, tc := range []struct {
		all, ctype, lang string
		want             bool
	}{
		{"", "", "", false},
		{"", "", "C", true},
		{"C", "en_US.UTF-8", "en_US.UTF-8", true},
		{"", "POSIX", "en_US.UTF-8", true},
		{"C.UTF-8", "C", "C", false},
	} {
		t.Setenv("LC_ALL", tc.all)
		t.Setenv("LC_CTYPE", tc.ctype)
		t.Setenv("LANG", tc.lang)
		if got := asciiLocale(); got != tc.want {
			t.Errorf("%+v: ASCII %t", tc, got)
		}
	}
}

// TestLongExamples: a command that is too wide has its comment above it, and goes on after a backslash.
func TestLongExamples(t *testing.T) {
	const line = "  keelson trace --from pod/a --to svc/web:80      # from a pod to a service"
	const want = "  # from a pod to a\n  # service\n  keelson trace \\\n      --from pod/a \\\n      --to svc/web:80\n"
	if got := example(line, 23); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := example(line, 100); got != line+"\n" {
		t.Errorf("got\n%s\nwant it unchanged", got)
	}
}

// TestStatusJSON: where nothing runs, the answer is an object for programs, too, and the exit code is 3.
func TestStatusJSON(t *testing.T) {
	var out strings.Builder
	args := []string{"keelson", "status", "--data-dir", t.TempDir(), "-o", "json"}
	code := Run(t.Context(), args, Stdio{Out: &out, Err: &out})
	var got map[string]any
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || code != 3 || got["pid"] != 0.0 {
		t.Errorf("exit code %d, %v:\n%s", code, err, out.String())
	}
	out.Reset()
	args[len(args)-1] = "xml"
	if code := Run(t.Context(), args, Stdio{Out: &out, Err: &out}); code != 1 ||
		!strings.Contains(out.String(), `--output "xml": json is the only format`) {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}
