// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// wantScripts runs scripts in the shell of this program, each in a directory of its own.
func wantScripts(t *testing.T, cases [][2]string) {
	t.Helper()
	for _, c := range cases {
		out, errOut, code := run(t, "", "sh", "-c", c[0])
		if out != c[1] || code != 0 {
			t.Errorf("%s: got %q and %d (%s), want %q", c[0], out, code, errOut, c[1])
		}
	}
}

// wantComplaints runs scripts that must fail with a text on their standard error.
func wantComplaints(t *testing.T, cases [][2]string) {
	t.Helper()
	for _, c := range cases {
		out, errOut, code := run(t, "", "sh", "-c", c[0])
		if code == 0 || !strings.Contains(errOut, c[1]) {
			t.Errorf("%s: got %q, %q and %d, want %q", c[0], out, errOut, code, c[1])
		}
	}
}

func TestSeq(t *testing.T) {
	wantScripts(t, [][2]string{
		{`seq 3`, "1\n2\n3\n"},
		{`seq 2 3`, "2\n3\n"},
		{`seq 3 -1 1`, "3\n2\n1\n"},
		{`seq -2 0`, "-2\n-1\n0\n"},
		{`seq 0 0.1 0.3`, "0.0\n0.1\n0.2\n0.3\n"},
		{`seq -s , 3; seq -w 9 10`, "1,2,3\n09\n10\n"},
		{`seq 3 1`, ""},
		{`seq 1000000000000 | head -n 1`, "1\n"},
		{`for i in $(seq 1 3); do echo n$i; done`, "n1\nn2\nn3\n"},
	})
	wantComplaints(t, [][2]string{
		{`seq`, "usage: seq"},
		{`seq x`, `"x" is not a number`},
		{`seq 1 0 3`, "zero"},
		{`seq 1e30`, "not a number that seq supports"},
	})
}

func TestSort(t *testing.T) {
	wantScripts(t, [][2]string{
		{`printf 'b\na\nc' | sort`, "a\nb\nc\n"},
		{`printf '10\n9\nx\n-1\n' | sort -n`, "-1\nx\n9\n10\n"},
		{`printf '10\n9\n100\n' | sort -rn`, "100\n10\n9\n"},
		{`printf 'b\na\nb\n' | sort -u`, "a\nb\n"},
		{`printf '1 x\n1 y\n2 z\n' | sort -nu`, "1 x\n2 z\n"},
		{`printf 'a 10\nb 9\nc  1\n' | sort -k2 -n`, "c  1\nb 9\na 10\n"},
		{`printf 'a:2\nb:1\n' | sort -t: -k 2,2nr`, "a:2\nb:1\n"},
		{`echo b > f; echo a > g; sort f g; sort < f; sort /dev/null`, "a\nb\nb\n"},
	})
	wantComplaints(t, [][2]string{
		{`sort nothing`, "nothing"},
		{`sort -k x`, `"x" is not a number`},
		{`sort -x`, "option -x is not known"},
	})
}

func TestCut(t *testing.T) {
	wantScripts(t, [][2]string{
		{`echo a:b:c:d | cut -d: -f2`, "b\n"},
		{`echo a:b:c:d | cut -d : -f 1,3-`, "a:c:d\n"},
		{`echo a:b:c:d | cut -f -2 -d:`, "a:b\n"},
		{`printf 'a\tb\nwhole\n' | cut -f2; printf 'a\tb\nwhole\n' | cut -s -f2`, "b\nwhole\nb\n"},
		{`echo abcdef | cut -c 2-3,6`, "bcf\n"},
		{`printf 'a:b' > f; cut -d: -f1 f f; printf '\n\n' | cut -f1`, "a\na\n\n\n"},
	})
	wantComplaints(t, [][2]string{
		{`cut`, "usage: cut"},
		{`cut -f 0`, `"0" is not a list`},
		{`cut -f 3-2`, `"3-2"`},
		{`cut -f -`, `"-" is not a list`},
		{`cut -f`, "option -f needs a value"},
	})
}

func TestTr(t *testing.T) {
	wantScripts(t, [][2]string{
		{`echo hello | tr a-z A-Z`, "HELLO\n"},
		{`echo 'Hello 12' | tr '[:lower:]' '[:upper:]'`, "HELLO 12\n"},
		{`printf 'a\nb\n' | tr -d '\n'`, "ab"},
		{`printf 'a  b   c' | tr -s ' '`, "a b c"},
		{`printf 'a,b;c' | tr ',;' '\n'`, "a\nb\nc"},
		{`echo a1b2 | tr -cd '[:digit:]\n'`, "12\n"},
		{`printf 'blue\001\002green' | tr -cs '[:print:]' '\n'`, "blue\ngreen"},
		{`echo a-b | tr - _`, "a_b\n"},
		{`echo aabb | tr -s ab xy`, "xy\n"},
		{`echo abc | tr a-c x`, "xxx\n"},
	})
	wantComplaints(t, [][2]string{
		{`tr`, "usage: tr"},
		{`tr a`, "usage: tr"},
		{`tr -d a b`, "usage: tr"},
		{`tr c-a x`, "reversed"},
		{`tr '[:nope:]' x`, "not a class"},
		{`tr a ''`, "empty"},
	})
}

func TestXargs(t *testing.T) {
	wantScripts(t, [][2]string{
		{`printf 'a b\nc\n' | xargs echo -`, "- a b c\n"},
		{`echo a b c | xargs -n 2 echo`, "a b\nc\n"},
		{`printf 'a b\n\nc\n' | xargs -I {} echo '<{}>'`, "<a b>\n<c>\n"},
		{`printf 'a b\0c' | xargs -0 -n1 echo`, "a b\nc\n"},
		{`echo "'a b' \"c d\" e\\ f" | xargs -n1 echo`, "a b\nc d\ne f\n"},
		{`true | xargs echo x; true | xargs -r echo y`, "x\n"},
		{`touch p q; ls | xargs rm; ls`, ""},
		{`seq 3 | xargs`, "1 2 3\n"},
		{`echo x | xargs -n1 sh -c 'echo "$1" in' sh`, "x in\n"},
	})
	wantComplaints(t, [][2]string{
		{`echo x | xargs nosuch`, "nosuch: not found"},
		{`echo "'x" | xargs`, "not closed"},
		{`xargs -n 0 echo`, `"0" is not a positive`},
	})
	if _, _, code := run(t, "x y", "xargs", "false"); code != 123 {
		t.Errorf("xargs false: got %d, want 123", code)
	}
}

func TestGrep(t *testing.T) {
	wantScripts(t, [][2]string{
		{`printf 'one\ntwo\nthree' | grep o`, "one\ntwo\n"},
		{
			`printf 'one\ntwo\nthree' | grep -c o; printf 'a\nb\n' | grep -n b; printf 'a\nb\n' | grep -vn b`,
			"2\n2:b\n1:a\n",
		},
		{
			`printf 'a1\nb2\n' | grep -E '^(a|c)[0-9]+$'; printf 'a1\nb+\n' | grep 'b+'; printf 'ab\nc\n' | grep 'ab\|c'`,
			"a1\nb+\nab\nc\n",
		},
		{
			`printf 'a.b\naxb\n' | grep -F a.b; printf 'a.b\naxb\n' | grep 'a\.b'; printf 'AB\n' | grep -i ab`,
			"a.b\na.b\nAB\n",
		},
		{
			`printf 'x=1 y=22\n' | grep -o '[a-z]=[0-9]*'; printf 'foobar\nfoo\n' | grep -w foo; printf 'ab\na\n' | grep -x a`,
			"x=1\ny=22\nfoo\na\n",
		},
		{`echo a > f; echo b > g; grep a f g; grep -h a f g; grep -l b f g; grep -c a f g`, "f:a\na\ng\nf:1\ng:0\n"},
		{`printf 'a]\nb\n' | grep '[]x]'; echo a | grep -e b -e a; echo a | grep -q a && echo found`, "a]\na\nfound\n"},
	})
	wantComplaints(t, [][2]string{
		{`grep`, "usage: grep"},
		{`grep '[' /dev/null`, "not a regular expression"},
		{`grep a nothing`, "nothing"},
		{`grep -Z a`, "option -Z is not known"},
	})
	for args, want := range map[string]int{"x": 1, "a": 0, "[": 2} {
		if _, _, code := run(t, "a\n", "grep", args); code != want {
			t.Errorf("grep %s: got %d, want %d", args, code, want)
		}
	}
}

func TestDateAndWhich(t *testing.T) {
	wantScripts(t, [][2]string{
		{
			`a=$(date +%s); b=$(date +%s); [ $a -le $b ] && date +%Y-%m-%dT%H:%M:%SZ%%%n | tr 0-9 9`,
			"9999-99-99T99:99:99Z%\n\n",
		},
		{`date | tr -s ' ' | cut -d' ' -f5; date -u +%F | tr 0-9 9`, "UTC\n9999-99-99\n"},
		{`which cat | wc -l`, "1\n"},
	})
	wantComplaints(t, [][2]string{{`date -s now`, "-s is not known"}, {`which nosuch`, "nosuch: not found"}})
}
