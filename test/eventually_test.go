// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/get"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// eventually PATTERN COMMAND...: runs COMMAND until its output matches PATTERN, whose ^ and $ are a line's, for at most
// a minute. `keelson kubectl get` and `describe` run in the test's own process: a process of the program costs
// twice the processor time, most of it before its main function.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN COMMAND...")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	end := time.Now().Add(patience)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 400*time.Millisecond) {
		out := try(ts, args[1:], end.Add(5*time.Second))
		if re.Match(out) != neg {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%q never gave %q (negated: %v); the last output:\n%s", args[1:], args[0], neg, out)
		}
		time.Sleep(wait)
	}
}

// try returns all that the command prints until the deadline.
func try(ts *testscript.TestScript, args []string, deadline time.Time) []byte {
	if kubeconfig, rest := question(ts.Getenv, args); kubeconfig != "" {
		return askKubectl(kubeconfig, filepath.Join(ts.Getenv("HOME"), ".kube", "cache"), rest, time.Until(deadline))
	}
	return run(ts, args, deadline)
}

// run runs a process.
func run(ts *testscript.TestScript, args []string, deadline time.Time) []byte {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, lookPath(ts, args[0]), args[1:]...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = environ(ts)
	out, _ := cmd.CombinedOutput()
	return out
}

// question returns the kubeconfig and the arguments of a `keelson kubectl` that only reads objects and depends on
// nothing else: no file, no plugin, no alias, no kubeconfig of its own, and no path (--raw), to which the time limit
// would be added as a parameter. For other commands, and where the cluster has
// no kubeconfig yet, the kubeconfig is "".
func question(getenv func(string) string, args []string) (kubeconfig string, rest []string) {
	if len(args) < 3 || args[0] != "keelson" || args[1] != "kubectl" || args[2] != "get" && args[2] != "describe" {
		return "", nil
	}
	rest = args[2:]
	if slices.ContainsFunc(rest, readsMore) {
		return "", nil
	}
	kubeconfig = getenv("KUBECONFIG")
	if kubeconfig == "" {
		kubeconfig = filepath.Join(getenv("KEELSON_DATA_DIR"), "kubeconfig")
	}
	if !isFile(kubeconfig) {
		return "", nil
	}
	return kubeconfig, rest
}

// readsMore reports whether an argument of kubectl makes it read something else than objects, or never end.
func readsMore(arg string) bool {
	for _, flag := range []string{
		"--kubeconfig", "--filename", "-f", "--kustomize", "-k", "--raw", "--watch", "-w", "--help", "-h",
	} {
		if arg == flag || strings.HasPrefix(arg, flag+"=") {
			return true
		}
	}
	return false
}

// panicOnFatal makes kubectl's packages panic with a fatalError where the command would exit.
var panicOnFatal = sync.OnceFunc(func() {
	cmdutil.BehaviorOnFatal(func(message string, _ int) { panic(fatalError(message)) })
})

type fatalError string

// askKubectl runs kubectl's get or describe and returns all that it prints. Several may run at once:
// they share nothing but the behavior on a fatal error, which is the same for all.
func askKubectl(kubeconfig, cache string, args []string, limit time.Duration) (printed []byte) {
	panicOnFatal()
	var out bytes.Buffer
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatalError:
			_, _ = fmt.Fprintln(&out, strings.TrimSuffix(string(r), "\n"))
		default:
			panic(r)
		}
		printed = out.Bytes()
	}()
	streams := genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &out}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).
		WithDiscoveryQPS(50)
	flags.KubeConfig = &kubeconfig
	flags.CacheDir = &cache
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.Timeout = max(limit, time.Second) // a server that never answers
		c.WarningHandler = rest.NewWarningWriter(&out, rest.WarningWriterOptions{Deduplicate: true})
		return c
	}
	factory := cmdutil.NewFactory(flags)
	kubectl := &cobra.Command{Use: "kubectl", SilenceUsage: true}
	flags.AddFlags(kubectl.PersistentFlags())
	kubectl.AddCommand(get.NewCmdGet("kubectl", factory, streams), describe.NewCmdDescribe("kubectl", factory, streams))
	kubectl.SetOut(&out)
	kubectl.SetErr(&out)
	kubectl.SetArgs(args)
	_ = kubectl.Execute() // it prints its error
	return nil            // the deferred function returns what was printed
}

// alike COMMAND...: checks that a `keelson kubectl get` or `describe` prints in the test's own process what the program
// prints.
func alike(ts *testscript.TestScript, _ bool, args []string) {
	kubeconfig, rest := question(ts.Getenv, args)
	if kubeconfig == "" {
		ts.Fatalf("%q is no command that eventually runs in its own process", args)
	}
	here := askKubectl(kubeconfig, filepath.Join(ts.Getenv("HOME"), ".kube", "cache"), rest, patience)
	there := run(ts, args, time.Now().Add(patience))
	if string(here) != string(there) {
		ts.Fatalf("%q prints\n%sand in the test's process\n%s", args, there, here)
	}
}

func TestQuestion(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"KEELSON_DATA_DIR": dir}
	for _, c := range []struct {
		command string
		want    string
	}{
		{"keelson kubectl get pods -o name", config},
		{"keelson kubectl describe pod web -n other", config},
		{"keelson kubectl get -f web.yaml", ""},
		{"keelson kubectl get pods --kubeconfig=mine", ""},
		{"keelson kubectl get pods -w", ""},
		{"keelson kubectl get --raw /metrics", ""},
		{"keelson kubectl --data-dir=other get pods", ""},
		{"keelson kubectl exec web -- get pods", ""},
		{"keelson kubectl", ""},
		{"keelson why pod/web", ""},
	} {
		if got, _ := question(func(k string) string { return env[k] }, strings.Fields(c.command)); got != c.want {
			t.Errorf("%q: got the kubeconfig %q, want %q", c.command, got, c.want)
		}
	}
	env["KUBECONFIG"] = filepath.Join(dir, "nosuch")
	if got, _ := question(func(k string) string { return env[k] }, []string{"keelson", "kubectl", "get", "pods"}); got != "" {
		t.Errorf("without a kubeconfig: got %q, want a process that says so", got)
	}
}
