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
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

// Limits in CEL's units of cost, of which one takes less than a microsecond.
const (
	// evaluationLimit is what one evaluation may cost, attemptLimit all those of one attempt of a pod.
	evaluationLimit = 20_000
	attemptLimit    = 500_000
	// estimateLimit is what an expression may cost at worst, as estimated from the sizes below, to be taken at all.
	estimateLimit = 1_000_000
	likelyString  = 256
	likelyList    = 64
)

// scope says which variables an expression sees.
type scope int

const (
	podOnly scope = iota
	podAndNode
)

// environments are made when the first policy is.
var environments = sync.OnceValues(func() ([2]*cel.Env, error) {
	var out [2]*cel.Env
	base := environment.MustBaseEnvSet(version.MajorMinor(1, 37)).StoredExpressionsEnv()
	s := newStructs(base.CELTypeProvider(), base.CELTypeAdapter())
	s.declareNode()
	s.declarePod()
	pod, err := base.Extend(cel.CustomTypeProvider(s), cel.CustomTypeAdapter(s), cel.Variable("pod", cel.ObjectType(podTypeName)))
	if err != nil {
		return out, fmt.Errorf("declare pod: %w", err)
	}
	both, err := pod.Extend(cel.Variable("node", cel.ObjectType(nodeTypeName)))
	if err != nil {
		return out, fmt.Errorf("declare node: %w", err)
	}
	return [2]*cel.Env{podOnly: pod, podAndNode: both}, nil
})

// expression is a compiled one.
type expression struct {
	source string
	at     string // its field below spec
	run    cel.Program
	reads  reads
}

// compile compiles one whose value is of one of the kinds that are wanted; of names these in errors.
func compile(source, at string, in scope, of string, wanted ...celtypes.Kind) (e *expression, err error) {
	defer func() { // whatever a text may do to the parser
		if r := recover(); r != nil {
			e, err = nil, fmt.Errorf("cannot be compiled: %v", r)
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
		return nil, positions(issues)
	}
	ok := false
	for _, k := range wanted {
		ok = ok || ast.OutputType().Kind() == k
	}
	if !ok {
		return nil, fmt.Errorf("1:1: must be %s, but is %s", of, ast.OutputType())
	}
	cost, err := env.EstimateCost(ast, &library.CostEstimator{SizeEstimator: likelySizes{}})
	if err != nil {
		return nil, fmt.Errorf("1:1: its cost cannot be estimated: %w", err)
	}
	if cost.Max > estimateLimit {
		return nil, fmt.Errorf("1:1: may cost too much: %d by estimate, where %d is allowed", cost.Max, estimateLimit)
	}
	run, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost), cel.CostTracking(&library.CostEstimator{}), cel.CostLimit(evaluationLimit))
	if err != nil {
		return nil, fmt.Errorf("1:1: %w", err)
	}
	return &expression{source: source, at: at, run: run, reads: readsOf(ast.NativeRep().Expr())}, nil
}

// positions tells the issues as line:column: message, the first few of them.
func positions(issues *cel.Issues) error {
	const most = 3
	var out []string
	for i, e := range issues.Errors() {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(issues.Errors())-most))
			break
		}
		text, _, _ := strings.Cut(e.Message, "\n")
		out = append(out, fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, clip(text, maxMessage)))
	}
	return errors.New(strings.Join(out, "; "))
}

// likelySizes are what is assumed of what nothing is known about.
type likelySizes struct{}

func (likelySizes) EstimateSize(e checker.AstNode) *checker.SizeEstimate {
	switch e.Type().Kind() {
	case celtypes.StringKind, celtypes.BytesKind:
		return &checker.SizeEstimate{Max: likelyString}
	default:
		return &checker.SizeEstimate{Max: likelyList}
	}
}

func (likelySizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// budget is what is left of what one attempt may cost.
type budget struct{ left atomic.Int64 }

func newBudget() *budget {
	b := &budget{}
	b.left.Store(attemptLimit)
	return b
}

var (
	errSpent  = fmt.Errorf("the policies cost more than the %d that they may in one attempt", attemptLimit)
	errCostly = fmt.Errorf("costs more than the %d that it may", evaluationLimit)
)

// variables are what an expression sees.
type variables struct {
	pod  podInfo
	node nodeInfo
}

// ResolveName is how CEL asks.
func (v *variables) ResolveName(name string) (any, bool) {
	switch {
	case name == "pod":
		return v.pod, true
	case name == "node" && v.node != nil:
		return v.node, true
	}
	return nil, false
}

// Parent is how CEL asks for more.
func (*variables) Parent() interpreter.Activation { return nil }

func (e *expression) eval(v *variables, b *budget) (ref.Val, error) {
	if b.left.Load() <= 0 {
		return nil, errSpent
	}
	out, details, err := e.run.Eval(v)
	cost := uint64(evaluationLimit)
	if details != nil && details.ActualCost() != nil {
		cost = *details.ActualCost()
	}
	b.left.Add(-int64(min(cost, evaluationLimit)) - 1) //nolint:gosec // it is small
	if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && cancelled.Cause == interpreter.CostLimitExceeded {
		return nil, errCostly
	}
	if err != nil {
		return nil, errors.New(clip(oneLine(err.Error()), maxMessage))
	}
	return out, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// clip shortens a text to that many bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("...")], "") + "..."
}
