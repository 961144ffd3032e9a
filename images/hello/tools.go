// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
)

// tools are the applets by name, besides serve and sh. The image has a link in /bin for each.
func tools() map[string]tool {
	return map[string]tool{
		"base64":    base64Tool,
		"basename":  basename,
		"cat":       cat,
		"chmod":     chmod,
		"chown":     chown,
		"chroot":    chroot,
		"clear":     clearScreen,
		"cp":        cp,
		"curl":      curl,
		"cut":       cut,
		"date":      date,
		"dd":        dd,
		"df":        df,
		"dirname":   dirname,
		"du":        du,
		"echo":      echo,
		"env":       env,
		"exit":      exit,
		"false":     func([]string, stdio) int { return 1 },
		"find":      find,
		"free":      free,
		"get":       wget,
		"grep":      grep,
		"head":      head,
		"hostname":  printHostname,
		"id":        id,
		"ip":        ip,
		"kill":      kill,
		"ln":        ln,
		"ls":        ls,
		"md5sum":    md5sum,
		"mkdir":     mkdir,
		"mv":        mv,
		"nc":        nc,
		"nproc":     nproc,
		"nslookup":  nslookup,
		"ping":      ping,
		"printenv":  printenv,
		"printf":    printf,
		"ps":        ps,
		"pwd":       pwd,
		"readlink":  readlink,
		"realpath":  realpath,
		"rm":        rm,
		"sed":       sed,
		"seq":       seq,
		"sha256sum": sha256sum,
		"sleep":     sleep,
		"sort":      sortLines,
		"stat":      stat,
		"stty":      stty,
		"tail":      tail,
		"tar":       tarTool,
		"tee":       tee,
		"test":      test,
		"[":         test,
		"timeout":   timeout,
		"touch":     touch,
		"tr":        tr,
		"true":      func([]string, stdio) int { return 0 },
		"uname":     uname,
		"uniq":      uniq,
		"uptime":    uptime,
		"wc":        wc,
		"wget":      wget,
		"which":     which,
		"whoami":    whoami,
		"xargs":     xargs,
		"yes":       yes,
	}
}

func toolNames() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(tools())) {
		b.WriteString(" " + n)
	}
	return b.String()
}

// flags splits leading single-letter options off args[1:].
func flags(args []string) (set string, rest []string) {
	rest = args[1:]
	for len(rest) > 0 && len(rest[0]) > 1 && rest[0][0] == '-' {
		if rest[0] == "--" {
			return set, rest[1:]
		}
		set += rest[0][1:]
		rest = rest[1:]
	}
	return set, rest
}

func exit(args []string, _ stdio) int {
	if len(args) < 2 {
		return 0
	}
	return atoi(args[1], 2) & 0xff
}

func echo(args []string, io stdio) int {
	args = args[1:]
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		end = ""
		args = args[1:]
	}
	return write(io, "echo", strings.Join(args, " ")+end)
}

func write(io stdio, who, text string) int {
	if _, err := fmt.Fprint(io.out, text); err != nil {
		return complain(io, who, err)
	}
	return 0
}

// printf supports %s %d %% and the usual escapes.
func printf(args []string, io stdio) int {
	if len(args) < 2 {
		return complain(io, "printf",
			errors.New("usage: printf FORMAT [ARG]...")) //nolint:revive,staticcheck // the dots are of the usage
	}
	format := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`, `\033`, "\033", `\e`, "\033").Replace(args[1])
	rest := args[2:]
	var out strings.Builder
	for {
		used := len(rest)
		for i := 0; i < len(format); i++ {
			if format[i] != '%' || i+1 == len(format) {
				out.WriteByte(format[i])
				continue
			}
			i++
			switch {
			case format[i] == '%':
				out.WriteByte('%')
			case len(rest) > 0:
				out.WriteString(rest[0])
				rest = rest[1:]
			}
		}
		if len(rest) == 0 || len(rest) == used {
			return write(io, "printf", out.String())
		}
	}
}

func env(args []string, io stdio) int {
	rest := args[1:]
	for len(rest) > 0 && strings.Contains(rest[0], "=") {
		k, v, _ := strings.Cut(rest[0], "=")
		if err := os.Setenv(k, v); err != nil {
			return complain(io, "env", err)
		}
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return write(io, "env", strings.Join(append(os.Environ(), ""), "\n"))
	}
	path, argv0, err := lookup(".", expand.ListEnviron(os.Environ()...), rest[0])
	if err != nil {
		fmt.Fprintf(io.err, "env: %v\n", err)
		return 127
	}
	return complain(io, "env", syscall.Exec(path, append([]string{argv0}, rest[1:]...), os.Environ()))
}

// lookup finds a command in $PATH, or else among the tools of this program.
func lookup(dir string, env expand.Environ, name string) (path, argv0 string, err error) {
	if path, err = interp.LookPathDir(dir, env, name); err == nil {
		return path, name, nil
	}
	if _, ok := tools()[name]; ok || name == "sh" || name == "serve" {
		if self, err := os.Executable(); err == nil {
			return self, name, nil
		}
	}
	if strings.Contains(name, "/") {
		return "", "", err
	}
	return "", "", fmt.Errorf("%s: not found; `ls /bin` lists what this image has", name)
}

func cat(args []string, std stdio) int {
	_, files := flags(args)
	if len(files) == 0 {
		files = []string{"-"}
	}
	return each("cat", files, std, func(r io.Reader) error {
		_, err := io.Copy(std.out, r)
		return err
	})
}

// each opens one file after the other; "-" is standard input.
func each(who string, files []string, std stdio, do func(io.Reader) error) int {
	code := 0
	for _, name := range files {
		var err error
		if name == "-" {
			err = do(std.in)
		} else {
			var f *os.File
			if f, err = os.Open(name); err == nil {
				err = errors.Join(do(f), f.Close())
			}
		}
		if err != nil {
			code = complain(std, who, err)
		}
	}
	return code
}

func wc(args []string, std stdio) int {
	set, files := flags(args)
	if len(files) == 0 {
		files = []string{"-"}
	}
	return each("wc", files, std, func(r io.Reader) error {
		var lines, words, size int
		br := bufio.NewReader(r)
		for {
			line, err := br.ReadString('\n')
			size += len(line)
			words += len(strings.Fields(line))
			if err != nil {
				_, perr := fmt.Fprintln(std.out, counts(set, lines, words, size))
				return errors.Join(notEOF(err), perr)
			}
			lines++
		}
	})
}

func counts(set string, lines, words, size int) string {
	switch set {
	case "l":
		return strconv.Itoa(lines)
	case "w":
		return strconv.Itoa(words)
	case "c":
		return strconv.Itoa(size)
	}
	return fmt.Sprintf("%d %d %d", lines, words, size)
}

func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func tee(args []string, std stdio) int {
	set, names := flags(args)
	mode := os.O_TRUNC
	if strings.Contains(set, "a") {
		mode = os.O_APPEND
	}
	outs := []io.Writer{std.out}
	for _, n := range names {
		f, err := os.OpenFile(n, os.O_WRONLY|os.O_CREATE|mode, 0o644)
		if err != nil {
			return complain(std, "tee", err)
		}
		outs = append(outs, f) // closed with the process, after the last write
	}
	if _, err := io.Copy(io.MultiWriter(outs...), std.in); err != nil {
		return complain(std, "tee", err)
	}
	return 0
}

// sleep accepts seconds (also fractions), a number with s, m, h or d, or "infinity".
func sleep(args []string, io stdio) int {
	if len(args) != 2 {
		return complain(io, "sleep", errors.New("usage: sleep SECONDS"))
	}
	if args[1] == "infinity" || args[1] == "inf" {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
		return 128 + int((<-c).(syscall.Signal))
	}
	d, err := duration(args[1])
	if err != nil {
		return complain(io, "sleep", err)
	}
	time.Sleep(d)
	return 0
}

// duration parses seconds, also fractions of them, or a number with s, m, h or d.
func duration(text string) (time.Duration, error) {
	num := text
	unit := time.Second
	if i := strings.IndexAny(num, "smhd"); i == len(num)-1 && i > 0 {
		unit = map[byte]time.Duration{
			's': time.Second,
			'm': time.Minute,
			'h': time.Hour,
			'd': 24 * time.Hour,
		}[num[i]]
		num = num[:i]
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || f > 1e9 {
		return 0, fmt.Errorf("invalid time %q", text)
	}
	return time.Duration(min(f*float64(unit), float64(1<<62))), nil
}

// date prints the time in UTC; +FORMAT has the letters of strftime that are common.
func date(args []string, io stdio) int {
	now := time.Now().UTC()
	format := "+%a %b %e %H:%M:%S UTC %Y"
	for _, a := range args[1:] {
		switch {
		case strings.HasPrefix(a, "+"):
			format = a
		case a != "-u":
			return complain(io, "date", fmt.Errorf("%s is not known; usage: date [-u] [+FORMAT]", a))
		}
	}
	letters := []string{"%%", "%", "%n", "\n", "%t", "\t", "%s", strconv.FormatInt(now.Unix(), 10), "%N", fmt.Sprintf(
		"%09d", now.Nanosecond())}
	for letter, layout := range map[string]string{
		"%Y": "2006",
		"%y": "06",
		"%m": "01",
		"%d": "02",
		"%e": "_2",
		"%H": "15",
		"%M": "04",
		"%S": "05",
		"%T": "15:04:05",
		"%F": "2006-01-02",
		"%a": "Mon",
		"%A": "Monday",
		"%b": "Jan",
		"%B": "January",
		"%j": "002",
		"%R": "15:04",
		"%Z": "UTC",
		"%z": "-0700",
		"%p": "PM",
		"%I": "03",
	} {
		letters = append(letters, letter, now.Format(layout))
	}
	return write(io, "date", strings.NewReplacer(letters...).Replace(format[1:])+"\n")
}

// which prints where the shell finds a command.
func which(args []string, io stdio) int {
	return forEach("which", args[1:], io, func(name string) error {
		path, _, err := lookup(".", expand.ListEnviron(os.Environ()...), name)
		if err == nil {
			_, err = fmt.Fprintln(io.out, path)
		}
		return err
	})
}

func pwd(_ []string, io stdio) int {
	d, err := os.Getwd()
	if err != nil {
		return complain(io, "pwd", err)
	}
	return write(io, "pwd", d+"\n")
}
