// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSed(t *testing.T) {
	wantScripts(t, [][2]string{
		{`printf 'a b a\nc\n' | sed s/a/X/`, "X b a\nc\n"},
		{`printf 'a b a\n' | sed 's/a/[&]/g'`, "[a] b [a]\n"},
		{`echo aaa | sed s/a/b/2`, "aba\n"},
		{`echo /usr/bin | sed 's|/usr|/opt|; s/bin/sbin/'`, "/opt/sbin\n"},
		{`echo key=value | sed 's/\(.*\)=\(.*\)/\2=\1/'`, "value=key\n"},
		{`echo key=value | sed -E 's/(\w+)=(\w+)/\2 $\1/'`, "value $key\n"},
		{`seq 5 | sed -n 2,3p`, "2\n3\n"},
		{`seq 5 | sed 2,4d`, "1\n5\n"},
		{`seq 5 | sed -n '$p'`, "5\n"},
		{`seq 5 | sed '/3/,$d'`, "1\n2\n"},
		{`seq 3 | sed '2!d'`, "2\n"},
		{`seq 9 | sed 2q`, "1\n2\n"},
		{`seq 2 | sed -e '1i zero' -e '$a end'`, "zero\n1\n2\nend\n"},
		{`seq 3 | sed '2c two'`, "1\ntwo\n3\n"},
		{`echo abc | sed y/abc/xyz/`, "xyz\n"},
		{`echo a > f; echo b > g; sed -i s/./X/ f g; cat f g`, "X\nX\n"},
		{`printf 'no end' | sed s/no/the/`, "the end\n"},
		{`printf '' | sed p`, ""},
		{`echo A | sed -n 's/a/b/Ip'`, "b\n"},
	})
	wantComplaints(t, [][2]string{
		{`sed`, "usage: sed"},
		{`echo a | sed x`, `"x" is not a command`},
		{`echo a | sed s/a`, `a closing "/" is missing`},
		{`echo a | sed 's/(/b/' -E`, "not a regular expression"},
		{`echo a | sed 0p`, "numbered from 1"},
		{`echo a | sed 'p x'`, "does not belong"},
		{`sed p nothing`, "nothing"},
	})
}

func TestSmallTools(t *testing.T) {
	wantScripts(t, [][2]string{
		{`printf hello | base64`, "aGVsbG8=\n"},
		{`echo aGVsbG8= | base64 -d`, "hello"},
		{`head -c 60 /dev/zero | base64 | cut -c1-4`, "AAAA\nAAAA\n"},
		{`head -c 60 /dev/zero | base64 -w 0 | wc -l`, "0\n"},
		{`A=1 B=2 printenv B A; printenv NOTHING || echo none`, "2\n1\nnone\n"},
		{`timeout 0.05 sleep 60; echo $?`, "124\n"},
		{`timeout 60 sh -c 'exit 3'; echo $?`, "3\n"},
		{`timeout -s KILL 0.05 sleep 60; echo $?`, "124\n"},
		{`timeout 1 nosuch 2>/dev/null; echo $?`, "127\n"},
		{`basename /a/b.txt; basename /a/b.txt .txt; dirname /a/b /a/b/ /c d /`, "b.txt\nb\n/a\n/a\n/\n.\n/\n"},
		{`echo x > f; ln -s f l; readlink l; basename $(readlink -f l); basename $(realpath l)`, "f\nf\nf\n"},
		{`printf 'a\na\nb\n' | uniq; printf 'a\na\nb\n' | uniq -d; printf 'a\na\nb\n' | uniq -u`, "a\nb\na\nb\n"},
		{`printf 'a\na\nb\n' | uniq -c`, "      2 a\n      1 b\n"},
		{`yes | head -n 2; yes no | head -n 1`, "y\ny\nno\n"},
		{`[ $(nproc) -gt 0 ] && uptime | grep -c 'load average'`, "1\n"},
		{`[ "$(id -u)" = "$(id | sed 's/uid=\([0-9]*\).*/\1/')" ] && echo same`, "same\n"},
		{`[ -n "$(id -g)" ] && [ -n "$(id -G)" ] && echo groups`, "groups\n"},
		{`[ "$(hostname -s)" = "$(hostname | cut -d. -f1)" ] && hostname -i | wc -l`, "1\n"},
		{`ip -br link show lo | cut -c1-2; ip addr show lo | grep -c 'link/loopback'; ip route >/dev/null`, "lo\n1\n"},
	})
	wantComplaints(t, [][2]string{
		{`base64 -w x`, "usage: base64"},
		{`echo '!!' | base64 -d`, "base64: "},
		{`timeout x true`, `invalid time "x"`},
		{`timeout 1`, "usage: timeout"},
		{`chroot`, "usage: chroot"},
		{`chroot /nothing`, "change root to /nothing"},
		{`hostname new`, "not changed"},
		{`id nobody`, "usage: id"},
		{`ip addr add 1.2.3.4`, "changes nothing"},
		{`ip link show nothing`, `"nothing" does not exist`},
		{`ping`, "usage: ping"},
		{`awk 1`, "awk: not found; `ls /bin` lists what this image has"},
	})
}

// TestTrace: "set -x" shows the commands of the script, and none that this program puts into it.
func TestTrace(t *testing.T) {
	_, trace, _ := run(t, "", "sh", "-xc", `x=1; echo hi there; sleep 0 & wait $!; kill -0 $$; cat /dev/null`)
	want := []string{"", "+ cat /dev/null", "+ echo hi there", "+ kill -0 N", "+ sleep 0", "+ wait N", "+ x=1"}
	got := strings.Split(regexp.MustCompile(`((?:wait|kill -0) )\d+\n`).ReplaceAllString(trace, "${1}N\n"), "\n")
	slices.Sort(got) // the job in the background writes when it gets to it
	if !slices.Equal(got, want) {
		t.Errorf("sh -x: got %q, want %q", got, want)
	}
}

// TestFollow: tail -F prints what is appended, and what a new file of the name holds.
func TestFollow(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("one\n")
	read, written := io.Pipe()
	defer func() { _ = read.Close() }()
	go tail([]string{"tail", "-F", name}, stdio{nil, written, io.Discard}) // ends when its output closes
	for _, step := range []func(){
		func() {},
		func() { add("two\n") },
		func() {
			if err := os.Rename(name, name+".1"); err != nil {
				t.Fatal(err)
			}
			add("new\n")
		},
	} {
		step()
		line := make([]byte, 4)
		got := make(chan error, 1)
		go func() { // ends with the line, or with the pipe
			_, err := io.ReadFull(read, line)
			got <- err
		}()
		select {
		case err := <-got:
			if err != nil || !bytes.HasSuffix(line, []byte("\n")) {
				t.Fatalf("got %q, %v", line, err)
			}
		case <-time.After(time.Minute):
			t.Fatal("no line in a minute")
		}
	}
}

func TestKeyboard(t *testing.T) {
	var echo bytes.Buffer
	k := &keyboard{in: oneByte{strings.NewReader("ab\x03c")}, out: &echo}
	got, err := io.ReadAll(k)
	if err != nil || string(got) != "ab"+emptyLine+"c" || echo.String() != "^C" || !k.interrupted {
		t.Errorf("got %q, echo %q, interrupted %v, %v", got, echo.String(), k.interrupted, err)
	}
}

func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"alpha-1", "alpha-2", "beta"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"nsl":               "nslookup ",
		"cat al":            "cat alpha-",
		"cat b":             "cat beta ",
		"cd s":              "cd sub/",
		"cat x":             "cat x",
		"echo a; cu":        "echo a; cu", // a command after another is completed as a file
		"cat " + dir + "/b": "cat " + dir + "/beta ",
	} {
		if got := completed(line, dir); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}
