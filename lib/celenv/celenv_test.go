// SPDX-License-Identifier: Apache-2.0

package celenv

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

const limit = 1_000_000 // as for one expression of a rule or policy

// text is of 100 kB, list of 100 numbers.
var variables = map[string]any{
	"text": strings.Repeat("a", 100_000),
	"list": make([]int, 100),
	"dear": "1e2880888",
}

// run evaluates an expression in an environment.
func run(t *testing.T, set *environment.EnvSet, source string) (string, uint64) {
	t.Helper()
	env, err := set.StoredExpressionsEnv().Extend(cel.Variable("text", cel.StringType),
		cel.Variable("list", cel.ListType(cel.IntType)), cel.Variable("dear", cel.StringType))
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", source, issues.Err())
	}
	program, err := env.Program(ast, cel.CostLimit(limit), cel.CostTracking(&library.CostEstimator{}))
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	out, details, err := program.Eval(variables)
	cost := uint64(0)
	if details != nil {
		cost = *details.ActualCost()
	}
	if err != nil {
		return err.Error(), cost
	}
	return fmt.Sprint(out.Value()), cost
}

// nested is a list of 1,100 times the same list of 1,000 numbers.
const nested = "[lists.range(1000)].all(a, [lists.range(1100).map(x, a)].all(b, %s))"

// TestRefused: what takes long for a few units, or much memory, is refused before it is done.
func TestRefused(t *testing.T) {
	for source, want := range map[string]string{
		`quantity("1e2880888").isGreaterThan(quantity("1500m"))`: "quantity: longer than 64 characters, or an exponent over 100",
		`sign(quantity(dear).add(quantity("1"))) == 1`:           "quantity: longer than 64 characters, or an exponent over 100",
		`quantity(dyn(dear)) == quantity("1")`:                   "quantity: longer than 64 characters, or an exponent over 100",
		`isQuantity(dear)`:                                       "false",
		`isQuantity(text.replace("a", "1"))`:                     "false",

		`text.substring(0, 4000).replace("", text.substring(0, 4000)) == ""`: "replace: the result is longer than 10 MiB",
		`lists.range(200).map(i, text).join() == ""`:                         "join: the result is longer than 10 MiB",
		`lists.range(200).map(i, "").join(text) == ""`:                       "join: the result is longer than 10 MiB",

		fmt.Sprintf(nested, `b == b`):                  "==: the values are too large to compare",
		fmt.Sprintf(nested, `b != b`):                  "!=: the values are too large to compare",
		fmt.Sprintf(nested, `b in [b, b]`):             "in: the list is too large",
		fmt.Sprintf(nested, `b.flatten() == []`):       "flatten: the list is too large",
		fmt.Sprintf(nested, `[b].indexOf(b) == 0`):     "indexOf: the list is too large",
		fmt.Sprintf(nested, `[b].lastIndexOf(b) == 0`): "lastIndexOf: the list is too large",
		fmt.Sprintf(nested, `"%s".format([b]) == ""`):  "format: the values are too large",

		`lists.range(1100).distinct() == []`:                    "distinct: the list is too large",
		`sets.contains(lists.range(1100), lists.range(1100))`:   "sets.contains: the lists are too large",
		`sets.equivalent(lists.range(1100), lists.range(1100))`: "sets.equivalent: the lists are too large",
		`sets.intersects(lists.range(1100), lists.range(1100))`: "sets.intersects: the lists are too large",
		`text.matches("(a?){1000}b")`:                           tooLong,
		`text.matches("(a?){1000}" + "b")`:                      tooLong,
		`text.find("(a?){1000}b") == ""`:                        tooLong,
		`text.find("(a?){1000}" + "b") == ""`:                   tooLong,
		`text.findAll("(a?){1000}b") == []`:                     tooLong,
		`text.findAll("(a?){1000}" + "b", 2) == []`:             tooLong,
		`lists.range(2200).all(i, text.charAt(99999) == "a")`:   "operation cancelled: actual cost limit exceeded",
	} {
		// The cost is counted after a call that is refused, too.
		got, _ := run(t, Base(), source)
		if !strings.HasPrefix(got, want) && (want == "false" || got != "operation cancelled: actual cost limit exceeded") {
			t.Errorf("%s: got %.100q, want %q", source, got, want)
		}
	}
}

// TestLoopsAreLinear: the rounds of a loop leave nothing with the tracker of costs.
func TestLoopsAreLinear(t *testing.T) {
	for _, source := range []string{
		`lists.range(40000).all(i, i >= 0)`,
		`!lists.range(40000).exists(i, i < 0)`,
		`lists.range(40000).map(i, i + 1).size() == 40000`,
		`lists.range(40000).filter(i, i > 5).size() > 0`,
		`lists.range(40000).exists_one(i, i == 5)`,
		`lists.range(40000).all(i, v, i == v)`,
		`lists.range(40000).transformList(i, v, v + 1).size() > 0`,
		`lists.range(40000).transformMap(i, v, v + 1).size() > 0`,
	} {
		begin := cpu(t)
		got, _ := run(t, Base(), source)
		if took := cpu(t) - begin; got != "true" || took > time.Second { // 2 s before, and 20 ms now
			t.Errorf("%s: %s after %v of processor time", source, got, took)
		}
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestSame: values, errors and costs of ordinary expressions are Kubernetes'.
func TestSame(t *testing.T) {
	other := environment.MustBaseEnvSet(version.MajorMinor(1, 35)) // not the one that Base changes
	if other == Base() {
		t.Fatal("compared with itself")
	}
	for _, source := range []string{
		`quantity("5Gi").isGreaterThan(quantity("1500m"))`, `quantity("abc") == quantity("1")`, `isQuantity("1e3")`,
		`isQuantity("x")`, `quantity("1e100").compareTo(quantity("1E")) == 1`, `quantity(dyn(1)) == quantity("1")`,
		`"abcabc".indexOf("c", 3)`, `"abcabc".indexOf("c", 9)`, `"abcabc".indexOf("c", -1)`, `"abc".indexOf("")`,
		`"abc".indexOf("", 9)`, `"äöüä".indexOf("ä", 1)`, `"äöüä".indexOf("")`, `"abc".indexOf("abcd")`,
		`"abcabc".lastIndexOf("c")`, `"abcabc".lastIndexOf("c", 4)`, `"abcabc".lastIndexOf("c", 9)`,
		`"abcabc".lastIndexOf("bc", 4)`, `"abcabc".lastIndexOf("bca", 1)`, `"äöüä".lastIndexOf("ä")`,
		`"äöüä".lastIndexOf("üä", 3)`, `"abc".lastIndexOf("", 1)`, `"abc".lastIndexOf("c", -1)`, `"".lastIndexOf("c")`,
		`[1, 2, 1].indexOf(1)`, `[1, 2, 1].lastIndexOf(1)`, `[1, 2].includes(2)`, `dyn("abc").indexOf("b")`,
		`"a-b-c".replace("-", "+")`, `"a-b-c".replace("-", "+", 1)`, `"a-b-c".replace("", "+")`,
		`["a", "b"].join()`, `["a", "b"].join(", ")`, `[].join()`, `"%s is %d".format(["a", 1])`, `"%.3f".format([1.0])`,
		`[[1], [2]].flatten() == [1, 2]`, `[1, 1, 2].distinct()`, `sets.contains([1, 2], [1])`,
		`sets.equivalent([1, 1], [1])`, `sets.intersects([1], [2])`,
		`1 in [1, 2]`, `list[0] in list`, `"a" in {"a": 1}`, `dyn(1) in dyn([1])`, `1 in dyn(2)`, `dyn([1]) in [[1]]`,
		`1 == 1`, `"a" != "b"`, `[1, 2] == [1, 2]`, `[1] != [2]`, `{"a": [1]} == {"a": [1]}`, `dyn(1) == dyn("1")`,
		`dyn([1])[3] == 1`, `dyn(1) == dyn(1.0)`, `null == null`, `optional.of([1]) == optional.of([1])`,
		`"abc".matches("^[a-z]+$")`, `"abc".matches("^[a-" + "z]+$")`, `matches("abc", "b")`, `"abc".find("[bc]+")`,
		`"abc".find("x" + "y")`, `"abc".findAll("[bc]")`, `"abc".findAll("[bc]", 1)`, `"abc".findAll("[b" + "c]", 1)`,
		`"abc".matches("(" + "a")`, `dyn("abc").matches("b")`, `"abc".charAt(1)`, `"abc".size()`, `size("abc")`,
		`true ? 1 : 2`, `string(true)`, `true && list.size() > 0`,
		`list.all(i, i == 0 || true)`, `list.map(i, true)`,
	} {
		want, wantCost := run(t, other, source)
		got, cost := run(t, Base(), source)
		if got != want {
			t.Errorf("%s: got %s, want %s", source, got, want)
		}
		if strings.Contains(want, " ") {
			continue // an error of the left side spares the right one
		}
		if low, high := wantCost-wantCost/50, wantCost+wantCost/50; cost+1 < low || cost > high+1 {
			t.Errorf("%s: cost %d, want %d", source, cost, wantCost)
		}
	}
	// Costs differ by the first round of a loop, and by literals with true, which are made at each evaluation.
	for _, source := range []string{
		`lists.range(30).map(a, a + lists.range(10).filter(b, b < 5).size()).size() == 30`,
		`lists.range(30).all(a, lists.range(10).map(b, a + b).exists(c, c == a))`,
		`lists.range(30).filter(a, "x" + string(a) == ["x"].map(s, s + string(a))[0]).size() == 30`,
		`[true, true] == [true, true]`, `{true: 1}[true]`, `[true, false].filter(b, b == true)`,
	} {
		want, wantCost := run(t, other, source)
		got, cost := run(t, Base(), source)
		if got != want || cost < wantCost*9/10 || cost > wantCost*11/10+30 {
			t.Errorf("%s: got %s, cost %d, want %s, %d", source, got, cost, want, wantCost)
		}
	}
}

// TestProcess: packages of Kubernetes that take the environment by themselves take the bounded one.
func TestProcess(t *testing.T) {
	Bound()
	own := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	if got, _ := run(t, own, `quantity(dear) == quantity("1")`); !strings.HasPrefix(got, "quantity: longer") {
		t.Errorf("got %q", got)
	}
}
