// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apiserver/pkg/cel/library"

	"keelson/lib/celenv"
)

// Limits in CEL cost units. A unit takes less than a microsecond.
const (
	// evaluationLimit is for one evaluation, attemptLimit for all evaluations in one attempt of a pod.
	evaluationLimit = 20_000
	attemptLimit    = 500_000
	// estimateLimit is for the estimated worst cost of an expression, with the sizes below. Expressions above it are
	// invalid.
	estimateLimit = 1_000_000
	assumedString = 256
	assumedList   = 64
)

// scope is the set of variables of an expression.
type scope int

const (
	podOnly scope = iota
	podAndNode
)

// environments are created with the first policy.
var environments = sync.OnceValues(func() ([2]*cel.Env, error) {
	var out [2]*cel.Env
	base := celenv.Base().StoredExpressionsEnv()
	s := newStructs(base.CELTypeProvider(), base.CELTypeAdapter())
	s.declareNode()
	s.declarePod()
	pod, err := base.Extend(cel.CustomTypeProvider(s), cel.CustomTypeAdapter(s),
		cel.Variable("pod", cel.ObjectType(podTypeName)))
	if err != nil {
		return out, fmt.Errorf("declare pod: %w", err)
	}
	both, err := pod.Extend(cel.Variable("node", cel.ObjectType(nodeTypeName)))
	if err != nil {
		return out, fmt.Errorf("declare node: %w", err)
	}
	return [2]*cel.Env{podOnly: pod, podAndNode: both}, nil
})

// expression is a compiled CEL expression.
type expression struct {
	source string
	field  string // its field path below spec
	run    cel.Program
	reads  reads
}

// compile compiles an expression whose result must have one of the wanted kinds; of names them in errors.
func compile(source, at string, in scope, of string, wanted ...celtypes.Kind) (e *expression, err error) {
	defer func() { // the parser may panic on hostile input
		if r := recover(); r != nil {
			e = nil
			err = fmt.Errorf("cannot be compiled: %v", r)
		}
	}()
	if len(source) > maxExpression {
		return nil, fmt.Errorf("is longer than %d bytes", maxExpression)
	}
	envs, err := environments()
	if err != nil {
		return nil, err
	}
	env := envs[in]
	ast, issues := env.Compile(source)
	if issues != nil && issues.Err() != nil {
		return nil, compileError(issues)
	}
	ok := false
	for _, k := range wanted {
		ok = ok || ast.OutputType().Kind() == k
	}
	if !ok {
		return nil, fmt.Errorf("1:1: must be %s, but is %s", of, ast.OutputType())
	}
	cost, err := env.EstimateCost(ast, &library.CostEstimator{SizeEstimator: assumedSizes{}})
	if err != nil {
		return nil, fmt.Errorf("1:1: its cost cannot be estimated: %w", err)
	}
	if cost.Max > estimateLimit {
		return nil, fmt.Errorf("1:1: may cost too much: %d by estimate, where %d is allowed", cost.Max, estimateLimit)
	}
	run, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostTracking(&library.CostEstimator{}), cel.CostLimit(evaluationLimit))
	if err != nil {
		return nil, fmt.Errorf("1:1: %w", err)
	}
	return &expression{
		source: source,
		field:  at,
		run:    run,
		reads:  readsOf(ast.NativeRep().Expr()),
	}, nil
}

// compileError formats the first few issues as "line:column: message".
func compileError(issues *cel.Issues) error {
	const most = 3
	var out []string
	for i, e := range issues.Errors() {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(issues.Errors())-most))
			break
		}
		text, _, _ := strings.Cut(e.Message, "\n")
		out = append(out, fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, clip(text)))
	}
	return errors.New(strings.Join(out, "; "))
}

// assumedSizes are the sizes of values whose real size is not known at compile time.
type assumedSizes struct{}

func (assumedSizes) EstimateSize(e checker.AstNode) *checker.SizeEstimate {
	switch e.Type().Kind() {
	case celtypes.StringKind, celtypes.BytesKind:
		return &checker.SizeEstimate{Max: assumedString}
	default:
		return &checker.SizeEstimate{Max: assumedList}
	}
}

func (assumedSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// budget is the rest of attemptLimit.
type budget struct{ left atomic.Int64 }

func newBudget() *budget {
	b := &budget{}
	b.left.Store(attemptLimit)
	return b
}

var (
	errBudget    = fmt.Errorf("the policies cost more than the %d that they may in one attempt", attemptLimit)
	errCostLimit = fmt.Errorf("costs more than the %d that it may", evaluationLimit)
)

// variables are the values of an expression's variables.
type variables struct {
	pod  podInfo
	node nodeInfo
}

// ResolveName implements interpreter.Activation.
func (v *variables) ResolveName(name string) (any, bool) {
	switch {
	case name == "pod":
		return v.pod, true
	case name == "node" && v.node != nil:
		return v.node, true
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (*variables) Parent() interpreter.Activation { return nil }

func (e *expression) eval(v *variables, b *budget) (ref.Val, error) {
	if b.left.Load() <= 0 {
		return nil, errBudget
	}
	out, details, err := e.run.Eval(v)
	cost := uint64(evaluationLimit)
	if details != nil && details.ActualCost() != nil {
		cost = *details.ActualCost()
	}
	b.left.Add(-int64(min(cost, evaluationLimit)) - 1) // it is small
	if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok &&
		cancelled.Cause == interpreter.CostLimitExceeded {
		return nil, errCostLimit
	}
	if err != nil {
		return nil, errors.New(clip(oneLine(err.Error())))
	}
	return out, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// clip shortens a text to maxMessage bytes.
func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("...")], "") + "..."
}
