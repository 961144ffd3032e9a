// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"keelson/lib/option"
)

func TestSplit(t *testing.T) {
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	fl.Bool("everyday", false, "")
	var b bool
	inner := option.In("Inner", option.New(&b, "i", false, ""))
	Add(fl, option.In("Outer", append(inner, option.New(&b, "o", false, ""))...))
	Add(fl, option.In("Another", option.New(&b, "a", false, ""), option.New(&b, "hidden", false, "")))
	_ = fl.MarkHidden("hidden")
	var got []string
	for _, g := range Split(fl, []string{"Outer"}) {
		got = append(got, g.Name+":")
		g.Flags.VisitAll(func(f *pflag.Flag) { got = append(got, f.Name) })
	}
	if s := strings.Join(got, " "); s != ": everyday Outer: o Another: a Inner: i" {
		t.Errorf("got %s", s)
	}
}

// level is a value of its own.
type level string

func (l *level) String() string { return string(*l) }

func (l *level) Set(text string) error {
	if text == "wrong" {
		return fmt.Errorf("%q is no level", text)
	}
	*l = level(text)
	return nil
}

func (*level) Type() string { return "level" }

// TestAdd: a row of each type has its usual value before a command line is parsed, sets what it points to, and shows
// both in the help text.
func TestAdd(t *testing.T) {
	type all struct {
		s       string
		b, no   bool
		n       int
		n64     int64
		f       float64
		d       time.Duration
		list    []string
		each    []string
		numbers []int32
		pairs   map[string]string
		level   level
	}
	set := &all{level: "low"}
	rows := []option.Row{
		option.New(&set.s, "s", "x", "`WORD`"),
		option.New(&set.b, "b", true, ""),
		option.Not(&set.no, "yes", ""),
		option.New(&set.n, "n", 3, ""),
		option.New(&set.n64, "n64", 4, ""),
		option.New(&set.f, "f", 0.5, ""),
		option.New(&set.d, "d", time.Minute, ""),
		option.New(&set.list, "list", []string{"a"}, ""),
		option.Each(&set.each, "each", ""),
		option.New(&set.numbers, "numbers", nil, ""),
		option.New(&set.pairs, "pairs", nil, ""),
		option.Set(&set.level, "level", ""),
		option.Ignored("old", "nothing is old"),
		option.IgnoredSwitch("older", "nothing is older"),
	}
	for _, tt := range []struct{ args, want string }{
		{"", `{s:x b:true no:false n:3 n64:4 f:0.5 d:60000000000 list:[a] each:[] numbers:[] pairs:map[] level:low}`},
		{
			"--s=y --b=false --yes=false --n=5 --n64=6 --f=1.5 --d=2s --list=p,q --each=p,q --each=r --numbers=7,8 " +
				"--pairs=k=v --level=high --old=1 --older",
			`{s:y b:false no:true n:5 n64:6 f:1.5 d:2000000000 list:[p q] each:[p,q r] numbers:[7 8] pairs:map[k:v] level:high}`,
		},
	} {
		fl := pflag.NewFlagSet("", pflag.ContinueOnError)
		Add(fl, rows)
		if err := fl.Parse(strings.Fields(tt.args)); err != nil {
			t.Errorf("%s: %v", tt.args, err)
		}
		if got := fmt.Sprintf("%+v", *set); got != tt.want {
			t.Errorf("%s: got %s\nwant %s", tt.args, got, tt.want)
		}
		if tt.args != "" {
			continue
		}
		if got := Values(fl)(); got["n"] != "3" || got["yes"] != "true" || got["level"] != "low" {
			t.Errorf("values %v", got)
		}
		for _, want := range []string{"--s WORD", `(default "x")`, "without effect: nothing is old"} {
			if !strings.Contains(fl.FlagUsages(), want) {
				t.Errorf("the help has no %q:\n%s", want, fl.FlagUsages())
			}
		}
		if err := fl.Parse([]string{"--level=wrong"}); err == nil || !strings.Contains(err.Error(), "is no level") {
			t.Errorf("a wrong level: %v", err)
		}
	}
}
