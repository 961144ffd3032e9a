// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestCopy(t *testing.T) {
	wantScripts(t, [][2]string{
		{`echo a > f; cp f g; cat g`, "a\n"},
		{`echo a > f; mkdir d; cp f d; cp f d/h; cat d/f d/h`, "a\na\n"},
		{`echo a > f; echo b > g; mkdir d; cp f g d/; cat d/*`, "a\nb\n"},
		{
			`mkdir -p d/e; echo x > d/e/f; ln -s e d/l; cp -r d new; cat new/l/f; cp -r d new; cat new/d/e/f; ls -l new | grep -q 'l -> e' && echo link`,
			"x\nx\nlink\n",
		},
		{`echo a > f; chmod 750 f; cp f g; cp -p f h; stat g h | cut -d' ' -f3`, "mode=0750\nmode=0750\n"},
		{`echo a > f; ln -s f l; cp l g; cp -r l m; [ -f g ]; ls -l | cut -d' ' -f1 | cut -c1 | tr -d '\n'`, "--LL"},
		{`echo a > f; mv f g; cat g; [ ! -e f ]; mkdir d; mv g d; cat d/g; mv d e; cat e/g`, "a\na\na\n"},
		{`echo a > f; echo b > g; mv -n f g; cat f g`, "a\nb\n"},
		{
			`echo a > f; ln -s f l; cat l; ln f h; echo b > h; cat f; ln -sf h l; ls -l l | grep -q 'l -> h' && echo replaced`,
			"a\nb\nreplaced\n",
		},
		{`mkdir d e; echo x > e/f; ln -s d cur; ln -sfn e cur; cat cur/f; ls d`, "x\n"},
	})
	wantComplaints(t, [][2]string{
		{`cp`, "usage: cp"},
		{`cp nothing f`, "nothing"},
		{`mkdir d; cp d e`, "needs -r"},
		{`mkdir d; cp -r d d/e`, "into itself"},
		{`mkdir d; cp -r d d`, "into itself"},
		{`echo a > f; cp f f`, "same file"},
		{`echo a > f; cp f f g`, "g is not a directory"},
		{`touch f; cp -x f g`, "option -x is not known"},
		{`mv nothing f`, "nothing"},
		{`touch f g; ln -s f g`, "file exists"},
		{`ln -s`, "usage: ln"},
	})
}

func TestMode(t *testing.T) {
	modes := `stat f | cut -d' ' -f3`
	wantScripts(t, [][2]string{
		{`touch f; chmod 640 f; ` + modes, "mode=0640\n"},
		{`touch f; chmod 640 f; chmod +x f; ` + modes, "mode=0751\n"},
		{`touch f; chmod 777 f; chmod u=rw,go= f; ` + modes, "mode=0600\n"},
		{`touch f; chmod 777 f; chmod -w f; chmod o-rx f; ` + modes, "mode=0550\n"},
		{`touch f; chmod 600 f; chmod a+rX f; ` + modes, "mode=0644\n"},
		{`mkdir f; chmod 1777 f; ` + modes + `; chmod -t,g+s f; ` + modes, "mode=1777\nmode=2777\n"},
		{
			`mkdir f; touch f/g; chmod 700 f; chmod 600 f/g; chmod -R go+rX f; stat f f/g | cut -d' ' -f3`,
			"mode=0755\nmode=0644\n",
		},
		{
			`touch f; chown $(id | cut -d' ' -f1 | cut -d= -f2) f; chown :$(id | cut -d' ' -f2 | cut -d= -f2) f; echo $?`,
			"0\n",
		},
	})
	wantComplaints(t, [][2]string{
		{`chmod`, "usage: chmod"},
		{`touch f; chmod 888 f`, `"888" is not a mode`},
		{`touch f; chmod q+x f`, `"q+x" is not a mode`},
		{`chmod 600 nothing`, "nothing"},
		{`chown`, "usage: chown"},
		{`touch f; chown someone f`, `"someone" is not UID`},
	})
}

func TestFind(t *testing.T) {
	tree := `mkdir -p a/b; touch a/x.txt a/b/y.txt a/b/z; ln -s x.txt a/l; `
	wantScripts(t, [][2]string{
		{tree + `find a`, "a\na/b\na/b/y.txt\na/b/z\na/l\na/x.txt\n"},
		{tree + `find . -name '*.txt'`, "./a/b/y.txt\n./a/x.txt\n"},
		{tree + `find a -type d; find a/ -type l -print`, "a\na/b\na/l\n"},
		{tree + `find a -maxdepth 1 -type f`, "a/x.txt\n"},
		{tree + `cd a; find -name z`, "./b/z\n"},
		{tree + `find a/b a/x.txt -type f -name '[xy]*' | xargs rm; find a -type f`, "a/b/z\n"},
	})
	wantComplaints(t, [][2]string{
		{`find nothing`, "nothing"},
		{`find . -size 3`, "-size is not known"},
		{`find . -type q`, `"q" is not known`},
		{`find . -name '['`, "pattern"},
		{`find . -name`, "needs a value"},
	})
}

func TestSpace(t *testing.T) {
	wantScripts(t, [][2]string{
		{
			`mkdir d; dd if=/dev/zero of=d/f bs=64K count=1 2>/dev/null; ln d/f d/g; a=$(du -s d | cut -f1); [ $a -ge 64 ] && [ $a -lt 100 ] && du -s d | cut -f2`,
			"d\n",
		},
		{`mkdir -p d/e; du d | cut -f2; touch f; du -h f`, "d/e\nd\n0\tf\n"},
		{`df / | wc -l; df -h | head -n 1 | tr -s ' ' | cut -d' ' -f1-2`, "2\nFilesystem Size\n"},
		{`df -h . | tail -n 1 | grep -q %  && echo row`, "row\n"},
		{`free | cut -c1-5; free -m | wc -l`, "     \nMem: \nSwap:\n3\n"},
	})
	wantComplaints(t, [][2]string{{`du nothing`, "nothing"}, {`df nothing`, "nothing"}, {`free -q`, "option -q"}})
}

func TestMountOf(t *testing.T) {
	all := parseMounts("overlay / overlay rw 0 0\n/dev/sda1 /data\\040one ext4 rw 0 0\ntmpfs /data\\040one/tmp tmpfs " +
		"rw 0 0\n/dev/sdb /data\\040one ext4 rw 0 0\n")
	for path, want := range map[string]string{
		"/":             "overlay",
		"/data":         "overlay",
		"/data one":     "/dev/sdb",
		"/data one/x":   "/dev/sdb",
		"/data one/tmp": "tmpfs",
		"/data onex":    "overlay",
	} {
		if got := mountOf(all, path); got.device != want {
			t.Errorf("%s: got %+v, want %s", path, got, want)
		}
	}
}

func TestScaled(t *testing.T) {
	h := options{'h': {""}}
	for bytes, want := range map[uint64]string{
		0:         "0",
		1023:      "1023",
		1024:      "1.0K",
		1536:      "1.5K",
		200 << 20: "200M",
		1 << 63:   "8192P",
	} {
		if got := scaled(h, bytes); got != want {
			t.Errorf("%d: got %s, want %s", bytes, got, want)
		}
	}
	if got := scaled(options{}, 1025); got != "2" {
		t.Errorf("1025 in KiB: got %s, want 2", got)
	}
	if got := freeText(options{},
		parseMeminfo("MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 50 kB\nCached: 150 kB\nMemAvailable: 450 "+
			"kB\nbroken\n")); !strings.Contains(
		got, "Mem:           1000          500          300            0          200          450") {
		t.Errorf("free: got\n%s", got)
	}
}

func TestDD(t *testing.T) {
	wantScripts(t, [][2]string{
		{`dd if=/dev/zero of=f bs=1K count=3 2>&1 | head -n 2; wc -c < f`, "3+0 records in\n3+0 records out\n3072\n"},
		{`dd if=/dev/zero bs=3M count=1 status=none | wc -c`, "3145728\n"},
		{`printf abcdefg | dd bs=3 2>&1 >g | head -n 1; cat g`, "2+1 records in\nabcdefg"},
		{`printf abcdef > f; dd if=f bs=2 skip=1 count=1 status=none`, "cd"},
		{`printf abcdef > f; printf XY | dd of=f bs=1 seek=2 conv=notrunc,fsync status=none; cat f`, "abXYef"},
		{`printf abcdef > f; printf XY | dd of=f bs=2 seek=1 status=none; cat f`, "abXY"},
		{`printf abcdef | dd bs=1 skip=4 status=none`, "ef"},
		{`dd if=/dev/zero of=f bs=512 count=1 2>&1 | tail -n 1 | cut -d' ' -f1-4`, "512 bytes (512B) copied,\n"},
	})
	wantComplaints(t, [][2]string{
		{`dd bs=0`, "must not be 0"},
		{`dd bs=1Q`, `"1Q" is not a number`},
		{`dd count=-1`, `"-1"`},
		{`dd if=nothing`, "nothing"},
		{`dd x`, `"x" is not known`},
		{`dd conv=lcase`, "conv=lcase is not known"},
		{`dd bs=9999999999999M`, "not a number"},
		{`dd if=/dev/zero of=f skip=99G bs=1G count=0 seek=1M`, "too large"},
	})
}

func TestDigests(t *testing.T) {
	const md5, sha = "acbd18db4cc2f85cedef654fccc4a4d8",
		"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	wantScripts(t, [][2]string{
		{`printf foo | md5sum; printf foo > f; sha256sum f`, md5 + "  -\n" + sha + "  f\n"},
		{`printf foo > f; sha256sum f > list; sha256sum -c list`, "f: OK\n"},
		{
			`printf foo > f; md5sum f > list; printf bar > f; md5sum -c list 2>/dev/null || echo wrong`,
			"f: FAILED\nwrong\n",
		},
	})
	wantComplaints(t, [][2]string{{`md5sum nothing`, "nothing"}, {`echo nonsense | md5sum -c`, "not a digest"}})
}
