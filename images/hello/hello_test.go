// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

// TestMain lets the shell find this program's tools: run again with HELLO_TEST set, the test is the program.
func TestMain(m *testing.M) {
	if os.Getenv("HELLO_TEST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// run executes the program as a container would: only its own tools in $PATH.
func run(t *testing.T, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var buf, e bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args = args
	cmd.Env = []string{"HELLO_TEST=1", "PATH=/nowhere", "HOME=/"}
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout = &buf
	cmd.Stderr = &e
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return buf.String(), e.String(), cmd.ProcessState.ExitCode()
}

func TestShell(t *testing.T) {
	for _, c := range []struct {
		script, out string
		code        int
	}{
		{`echo hi; echo "$HOME x" 'a $b'`, "hi\n/ x a $b\n", 0},
		{`for i in 1 2 3; do echo n$i; done | grep 2`, "n2\n", 0},
		{`if [ -f nothing ]; then echo yes; elif true; then echo elif; else echo no; fi`, "elif\n", 0},
		{`i=0; while [ $i -lt 3 ]; do i=$((i+1)); echo $i; done`, "1\n2\n3\n", 0},
		{`until [ -e f ]; do touch f; done; ls`, "f\n", 0},
		{`x=$(echo a b | wc -w); echo "[$x]"`, "[2]\n", 0},
		{`false || echo or; true && echo and; false && echo never`, "or\nand\n", 1},
		{`ls /nonexistent 2>/dev/null; echo $?`, "1\n", 0},
		{`echo a > q; echo b >> q; cat < q; rm q; [ ! -e q ]`, "a\nb\n", 0},
		{`(cd /; pwd); exit 7`, "/\n", 7},
		{`echo ${FOO:-def} ${HOME:+set} ${#HOME} $# $1`, "def set 1 2 one\n", 0},
		{`nosuch`, "", 127},
		{`sh -c 'exit 3'; echo $?`, "3\n", 0},
		{`exit 300`, "", 44},
		{`sleep 0 & wait; echo done`, "done\n", 0},
		{`for a in "$@"; do echo "<$a>"; done`, "<one>\n<two words>\n", 0},
		{`while true; do break; done; echo ok`, "ok\n", 0},
		{`set -e; false; echo never`, "", 1},
		{`{ echo a; echo b; } > f; cat f | head -n 1`, "a\n", 0},
		{`{ echo a; echo b; echo c; } > f; head -2 f; head -n1 f; head -c 3 f; head -c2 f`, "a\nb\na\na\nba\n", 0},
		{`printf 'one\ntwo' | head; echo; head -c 1 /dev/zero | wc -c`, "one\ntwo\n1\n", 0},
		{`head -n`, "", 1},
		{`head -c x f`, "", 1},
		{`echo one # comment`, "one\n", 0},
		{`! false`, "", 0},
		{`echo x >&2`, "", 0},
		{`A=1 env | grep A=1; echo [$A]`, "A=1\n[]\n", 0},
		{`exec echo replaced; echo never`, "replaced\n", 0},
		{`kill -9 $$`, "", -1},
		{`printf '%s-%s\n' a b c d`, "a-b\nc-d\n", 0},
		{`mkdir -p a/b && touch a/b/c && echo a/b/*`, "a/b/c\n", 0},
		{`false; true`, "", 0},
		{`echo $((2+3*4-1)) $((7/2)) $((7%4))`, "13 3 3\n", 0},
		{`case $1 in t*) echo t;; o*) echo o;; esac`, "o\n", 0},
		{`f() { local x=$1; echo "f $x"; return 3; }; f a; echo $?`, "f a\n3\n", 0},
		{"cat <<EOF\n$1 $((1+1))\nEOF", "one 2\n", 0},
		{`x=a.tar.gz; echo ${x%.gz} ${x##*.}; y=1; sh -c 'echo [$y]'`, "a.tar gz\n[]\n", 0},
		{`sh -c 'exit 5' & p=$!; wait $p; echo $? $([ $p -gt 1 ] && echo pid)`, "5 pid\n", 0},
		{`sleep 60 & kill $!; wait $!; echo $?`, "143\n", 0},
		{`sleep 60 & kill -s KILL "$!"; wait; echo "$?"`, "0\n", 0},
		{`a=1; f() { echo "$a $1 $2"; }; f x y & wait; { f "$@"; } & wait $!`, "1 x y\n1 one two words\n", 0},
		{`wait 99999; echo $?`, "127\n", 0},
		{`trap 'echo caught; exit 4' TERM; kill $$; echo never`, "caught\n", 4},
		{`trap 'echo caught' USR1; kill -USR1 $$; echo more; trap - USR1 TERM; kill $$; sleep 5`, "caught\nmore\n", -1},
		{`trap 'echo caught; exit 4' TERM; kill $$`, "caught\n", 4},
		{`trap 'echo caught; exit 4' TERM; sleep 60 & trap "kill $!" EXIT; (sleep 0.1; kill $$) & wait`, "caught\n", 4},
		{`trap '' TERM; kill $$; echo alive`, "alive\n", 0},
		{`trap 'echo bye' EXIT; echo hi`, "hi\nbye\n", 0},
		{`trap 'echo caught; kill $p; wait $p; exit $?' 15; sleep 60 & p=$!; (sleep 0.1; kill $$) & wait`, "caught\n", 143},
		{`eval 'sleep 0 & wait $!; echo $?'`, "0\n", 0},
		{`(exec echo sub); echo main; if true; then exec sh -c 'echo last'; fi; echo never`, "sub\nmain\nlast\n", 0},
		{`exec > f; echo x; exec cat f >&2`, "", 0},
		{`command -v cat >/dev/null && echo found; command -v nosuch || echo none`, "found\nnone\n", 0},
		{`umask 077; umask; touch f; stat f | wc -l`, "0077\n1\n", 0},
		{`set -u; echo $nothing; echo never`, "", 1},
		{`cd /; pwd; (cd /proc); pwd; sh -c pwd`, "/\n/\n/\n", 0},
		{`echo a b c | { read x y; echo "$y"; }`, "b c\n", 0},
		{`echo "a
b"`, "a\nb\n", 0},
		{`if true; then`, "", 2},
		{`echo 'open`, "", 2},
	} {
		out, errOut, code := run(t, "", "sh", "-c", c.script, "sh", "one", "two words")
		if out != c.out || code != c.code {
			t.Errorf("sh -c %q: got %q and %d (%s), want %q and %d", c.script, out, code, errOut, c.out, c.code)
		}
	}
}

// TestLinesOfJobs: concurrent jobs write whole lines.
func TestLinesOfJobs(t *testing.T) {
	const jobs, lines = 8, 200
	script := fmt.Sprintf("for i in 1 2 3 4 5 6 7 8; do (j=0; while [ $j -lt %d ]; do echo job $i says line; "+
		"j=$((j+1)); done) & done; wait", lines)
	out, errOut, code := run(t, "", "sh", "-c", script)
	whole := regexp.MustCompile(`^job [1-8] says line$`)
	got := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for _, line := range got {
		if !whole.MatchString(line) {
			t.Fatalf("line %q, want %q; exit %d, stderr %q", line, whole, code, errOut)
		}
	}
	if len(got) != jobs*lines || code != 0 {
		t.Errorf("got %d lines and exit %d, want %d and 0: %s", len(got), code, jobs*lines, errOut)
	}
}

// TestHeadStreams: what has no lines is passed on as it comes, not gathered first.
func TestHeadStreams(t *testing.T) {
	in := &counted{left: 64 << 20}
	out := &counted{}
	var most runtime.MemStats
	runtime.ReadMemStats(&most)
	before := most.TotalAlloc
	if code := head([]string{"head", "-n", "3"}, stdio{in: in, out: out, err: io.Discard}); code != 0 {
		t.Errorf("head: %d", code)
	}
	runtime.ReadMemStats(&most)
	if got := most.TotalAlloc - before; out.done != 64<<20 || got > 1<<20 {
		t.Errorf("head passed on %d bytes and allocated %d; want all of 64 MiB and less than 1 MiB", out.done, got)
	}
}

// counted is a file without lines to read from, and one to write to.
type counted struct{ left, done int }

func (c *counted) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := min(len(b), c.left)
	clear(b[:n])
	c.left -= n
	return n, nil
}

func (c *counted) Write(b []byte) (int, error) {
	c.done += len(b)
	return len(b), nil
}

func TestShellReadsItsInput(t *testing.T) {
	out, _, code := run(t, "echo one\nread x\nfoo bar\necho got $x\nif true\nthen echo t\nfi\nexit 4\necho never\n",
		"sh")
	if want := "one\ngot foo bar\nt\n"; out != want || code != 4 {
		t.Errorf("got %q and %d, want %q and 4", out, code, want)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		args []string
		out  string
		code int
	}{
		{[]string{"/hello", "echo", "-n", "a", "b"}, "a b", 0},
		{[]string{"/bin/echo", "x"}, "x\n", 0},
		{[]string{"/hello", "exit", "5"}, "", 5},
		{[]string{"/bin/false"}, "", 1},
		{[]string{"/hello", "/bin/sh", "-c", "echo $0"}, "sh\n", 0},
		{[]string{"/hello", "nothing"}, "", 127},
		{[]string{"env"}, "HELLO_TEST=1\nPATH=/nowhere\nHOME=/\n", 0},
		{[]string{"wc", "-l"}, "0\n", 0},
	} {
		out, errOut, code := run(t, "", c.args...)
		if out != c.out || code != c.code {
			t.Errorf("%q: got %q and %d (%s), want %q and %d", c.args, out, code, errOut, c.out, c.code)
		}
	}
}

// startServer serves on a loopback port within this process.
func startServer(t *testing.T) (addr string, s *server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s = newServer(io.Discard)
	go s.accept(l) // ends when the listener is closed
	return l.Addr().String(), s
}

func TestServe(t *testing.T) {
	t.Setenv("POD_NAME", "my-pod")
	t.Setenv("POD_NAMESPACE", "my-ns")
	addr, server := startServer(t)
	get := func(path string) string {
		var b strings.Builder
		if err := fetch("GET", "http://"+addr+path, 1e10, &b); err != nil {
			return b.String() + "!" + err.Error()
		}
		return b.String()
	}
	body := get("/a?b")
	if !strings.Contains(body, "not found") || !strings.Contains(body, "404") {
		t.Errorf("GET /a: got %q", body)
	}
	body = get("/")
	for _, want := range []string{
		"Hello from my-pod\n", "namespace  my-ns\n", "request    GET / HTTP/1.1\n", "  POD_NAME=my-pod\n",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("GET /: got %q, want %q in it", body, want)
		}
	}
	if got := get("/healthz"); got != "ok\n" {
		t.Errorf("GET /healthz: got %q", got)
	}
	if got := get("/exit?code=9"); got != "exiting with 9\n" {
		t.Errorf("GET /exit: got %q", got)
	}
	if code := <-server.exit; code != 9 {
		t.Errorf("exit code: got %d, want 9", code)
	}
}

func TestConnectionIsKept(t *testing.T) {
	addr, _ := startServer(t)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for _, body := range []string{
		"", "Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
	} {
		if body == "" {
			body = "\r\n"
		}
		if _, err := fmt.Fprintf(conn, "POST /healthz HTTP/1.1\r\nHost: x\r\n%s", body); err != nil {
			t.Fatal(err)
		}
		status, err := readLine(in)
		if err != nil || status != "HTTP/1.1 200 OK" {
			t.Fatalf("body %q: got %q, %v", body, status, err)
		}
		if err := readFields(in, map[string]string{}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, in, 3); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(conn, "nonsense\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if status, err := readLine(in); err != nil || !strings.HasPrefix(status, "HTTP/1.1 400 ") {
		t.Errorf("nonsense: got %q, %v", status, err)
	}
}

func TestWgetToFile(t *testing.T) {
	addr, _ := startServer(t)
	file := filepath.Join(t.TempDir(), "f")
	if code := wget([]string{"wget", "-qO", file, addr + "/healthz"}, stdio{nil, io.Discard, os.Stderr}); code != 0 {
		t.Fatalf("wget: exit code %d", code)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "ok\n" {
		t.Errorf("file: got %q, %v", b, err)
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("PUT / HTTP/1.0\r\nContent-Length: 99999999999999999999\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		req, err := readRequest(bufio.NewReader(bytes.NewReader(b)))
		if err == nil && (req.method == "" || req.target == "") {
			t.Errorf("%q: accepted as %+v", b, req)
		}
	})
}

// FuzzRewrite: whatever a script says, rewriting it ends, and what comes out is a script again.
func FuzzRewrite(f *testing.F) {
	f.Add("for i in 1 2; do echo $i; done | cat > x && (a; b) & if c; then d; fi")
	f.Add("echo \"$(a `b` ${c:-d} $!)\" 'x' \\\n 2>&1")
	f.Add("case $1 in a|b) exit 1;; *) while :; do sleep 1; done;; esac <<EOF\nx $!\nEOF\n")
	f.Add("g() { exec a & }; { g & } & wait $!")
	f.Fuzz(func(t *testing.T, src string) {
		file, err := syntax.NewParser().Parse(strings.NewReader(src), "")
		if err != nil {
			return
		}
		s := &sh{execs: map[syntax.Pos]bool{}}
		onlyCommand(file)
		if again := s.rewritten(src); !isScript(again) {
			t.Errorf("%q became %q", src, again)
		}
		s.rewrite(file)
	})
}
