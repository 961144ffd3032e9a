// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"fmt"
	"math"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	defaultShares, defaultQueues, defaultHand, defaultLength = 30, 64, 8, 50

	maxQueues = 10_000_000
	// maxEntropy is how many bits of a flow's hash there are to deal a hand of queues with.
	maxEntropy = 60
)

// PriorityLevelConfiguration describes flowcontrol.apiserver.k8s.io/v1 PriorityLevelConfiguration.
func PriorityLevelConfiguration() *kind.Kind {
	type level = flowv1.PriorityLevelConfiguration
	none := func(c string) metav1.TableColumnDefinition {
		return metav1.TableColumnDefinition{Name: c, Type: "string", Description: levelColumns[c]}
	}
	return kind.Spec[*level]{
		Names:   names("PriorityLevelConfiguration", "prioritylevelconfigurations", "prioritylevelconfiguration"),
		New:     func() *level { return &level{} },
		NewList: func() runtime.Object { return &flowv1.PriorityLevelConfigurationList{} },
		Default: defaultLevel,
		PrepareCreate: func(p *level) {
			p.Generation = 1
			p.Status = flowv1.PriorityLevelConfigurationStatus{}
		},
		PrepareUpdate: func(p, old *level) {
			p.Status = old.Status
			p.Generation = old.Generation
			if !equality.Semantic.DeepEqual(p.Spec, old.Spec) {
				p.Generation++
			}
		},
		Validate:       validateLevel,
		ValidateUpdate: func(p, _ *level) field.ErrorList { return validateLevel(p) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, none("Type"), none("NominalConcurrencyShares"), none("Queues"), none("HandSize"),
			none("QueueLengthLimit"), kind.AgeColumn,
		},
		Row: levelRow,
		Status: &kind.Sub[*level]{
			PrepareUpdate: func(p, old *level) {
				p.Spec = old.Spec
				meta.KeepAllForStatus(p, old)
			},
			ValidateUpdate: func(p, _ *level) field.ErrorList { return validateLevel(p) },
		},
	}.Erase()
}

var levelColumns = map[string]string{
	"Type":                     "Whether the requests of this level are limited or exempt.",
	"NominalConcurrencyShares": "This level's share of the requests that the server works on at once.",
	"Queues":                   "The number of queues for this level.",
	"HandSize":                 "How many of the queues one flow may use.",
	"QueueLengthLimit":         "How many requests may wait in one queue.",
}

func defaultLevel(p *flowv1.PriorityLevelConfiguration) {
	if p.Spec.Type == flowv1.PriorityLevelEnablementExempt {
		kind.Fill(&p.Spec.Exempt, flowv1.ExemptPriorityLevelConfiguration{})
	}
	if e := p.Spec.Exempt; e != nil {
		kind.Fill(&e.NominalConcurrencyShares, 0)
		kind.Fill(&e.LendablePercent, 0)
	}
	lim := p.Spec.Limited
	if lim == nil {
		return
	}
	kind.Fill(&lim.NominalConcurrencyShares, defaultShares)
	kind.Fill(&lim.LendablePercent, 0)
	if q := lim.LimitResponse.Queuing; q != nil {
		for p, v := range map[*int32]int32{
			&q.Queues:           defaultQueues,
			&q.HandSize:         defaultHand,
			&q.QueueLengthLimit: defaultLength,
		} {
			if *p == 0 {
				*p = v
			}
		}
	}
}

func levelRow(p *flowv1.PriorityLevelConfiguration) []any {
	const none = "<none>"
	row := []any{p.Name, string(p.Spec.Type), none, none, none, none, kind.Age(p.CreationTimestamp)}
	if lim := p.Spec.Limited; lim != nil {
		row[2] = int64(kind.Value(lim.NominalConcurrencyShares))
		if q := lim.LimitResponse.Queuing; q != nil {
			row[3] = int64(q.Queues)
			row[4] = int64(q.HandSize)
			row[5] = int64(q.QueueLengthLimit)
		}
	}
	return row
}

func validateLevel(configuration *flowv1.PriorityLevelConfiguration) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(configuration)...)
	const zeroShares = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
	if _, ok := configuration.Annotations[zeroShares]; ok {
		errs.Forbidden("metadata.annotations", "annotation '"+zeroShares+"' is forbidden")
	}
	errs.Within("spec", func() {
		validateLevelSpec(errs, configuration.Name, &configuration.Spec)
		declaredLevel(errs, &configuration.Spec)
	})
	validateFixedLevel(errs, configuration)
	var seen check.Set
	errs.Within("status", func() {
		check.Each(errs, "conditions", configuration.Status.Conditions, func(
			_ int, c *flowv1.PriorityLevelConfigurationCondition,
		) {
			validateConditionType(errs, &seen, string(c.Type))
		})
	})
	return errs.Errors()
}

// validateFixedLevel: of the mandatory levels, only the part of the exempt one that is for such may be changed.
func validateFixedLevel(errs *check.List, configuration *flowv1.PriorityLevelConfiguration) {
	for _, fixed := range MandatoryPriorityLevels() {
		if fixed.Name != configuration.Name {
			continue
		}
		want := fixed.Spec
		what := ""
		if configuration.Name == flowv1.PriorityLevelConfigurationNameExempt {
			want.Exempt = configuration.Spec.Exempt
			what = " except the 'spec.exempt' field"
		}
		if !equality.Semantic.DeepEqual(want, configuration.Spec) {
			errs.Invalid("spec", configuration.Spec, fmt.Sprintf("spec of '%s'%s must equal the fixed value",
				configuration.Name, what))
		}
	}
}

func validateLevelSpec(errs *check.List, name string, spec *flowv1.PriorityLevelConfigurationSpec) {
	if (name == flowv1.PriorityLevelConfigurationNameExempt) != (spec.Type == flowv1.PriorityLevelEnablementExempt) {
		errs.Invalid("type", spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'")
	}
	switch spec.Type {
	case flowv1.PriorityLevelEnablementExempt:
		if spec.Exempt != nil {
			errs.Within("exempt", func() {
				validateShares(errs, spec.Exempt.NominalConcurrencyShares, spec.Exempt.LendablePercent)
			})
		}
	case flowv1.PriorityLevelEnablementLimited:
		if spec.Limited != nil {
			errs.Within("limited", func() { validateLimited(errs, spec.Limited) })
		}
	case "":
	default:
		check.NotSupported(errs, "type", spec.Type, flowv1.PriorityLevelEnablementExempt,
			flowv1.PriorityLevelEnablementLimited)
	}
}

// declaredLevel is what is declared of a level: which part goes with which type.
func declaredLevel(errs *check.List, spec *flowv1.PriorityLevelConfigurationSpec) {
	goesWith := func(child string, has, right, needed bool) {
		switch {
		case has && !right:
			errs.Declared(field.Forbidden(errs.Path(child), ""))
		case !has && right && needed:
			errs.Missing(child)
		}
	}
	goesWith("exempt", spec.Exempt != nil, spec.Type == flowv1.PriorityLevelEnablementExempt, false)
	goesWith("limited", spec.Limited != nil, spec.Type == flowv1.PriorityLevelEnablementLimited, true)
	if spec.Type == "" {
		errs.Missing("type")
	}
	if spec.Limited == nil {
		return
	}
	r := &spec.Limited.LimitResponse
	errs.In("limited")
	errs.In("limitResponse")
	goesWith("queuing", r.Queuing != nil, r.Type == flowv1.LimitResponseTypeQueue, true)
	if r.Type == "" {
		errs.Missing("type")
	}
	errs.Out()
	errs.Out()
}

func validateShares(l *check.List, shares, lendable *int32) {
	if n := kind.Value(shares); n < 0 {
		l.Invalid("nominalConcurrencyShares", n, "must be a non-negative integer")
	}
	if n := kind.Value(lendable); n < 0 || n > 100 {
		l.Invalid("lendablePercent", n, "must be between 0 and 100, inclusive")
	}
}

func validateLimited(l *check.List, lim *flowv1.LimitedPriorityLevelConfiguration) {
	validateShares(l, lim.NominalConcurrencyShares, nil)
	l.Within("limitResponse", func() { validateLimitResponse(l, &lim.LimitResponse) })
	validateShares(l, nil, lim.LendablePercent)
	if n := lim.BorrowingLimitPercent; n != nil && *n < 0 {
		l.Invalid("borrowingLimitPercent", *n, "if specified, must be a non-negative integer")
	}
}

func validateLimitResponse(l *check.List, r *flowv1.LimitResponse) {
	switch q := r.Queuing; r.Type {
	case "", flowv1.LimitResponseTypeReject:
	case flowv1.LimitResponseTypeQueue:
		if q != nil {
			l.Within("queuing", func() { validateQueuing(l, q) })
		}
	default:
		check.NotSupported(l, "type", r.Type, flowv1.LimitResponseTypeQueue, flowv1.LimitResponseTypeReject)
	}
}

func validateQueuing(errs *check.List, configuration *flowv1.QueuingConfiguration) {
	if configuration.QueueLengthLimit <= 0 {
		errs.Invalid("queueLengthLimit", configuration.QueueLengthLimit, "must be positive")
	}
	if configuration.Queues <= 0 {
		errs.Invalid("queues", configuration.Queues, "must be positive")
	} else if configuration.Queues > maxQueues {
		errs.Invalid("queues", configuration.Queues, fmt.Sprintf("must not be greater than %d", maxQueues))
	}
	if configuration.HandSize <= 0 {
		errs.Invalid("handSize", configuration.HandSize, "must be positive")
	} else if configuration.HandSize > configuration.Queues {
		errs.Invalid("handSize", configuration.HandSize, fmt.Sprintf("should not be greater than queues (%d)",
			configuration.Queues))
	} else if entropy(configuration.Queues, configuration.HandSize) > maxEntropy {
		errs.Invalid("handSize", configuration.HandSize,
			fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
				configuration.Queues,
				configuration.HandSize, maxEntropy))
	}
}

// entropy is how many bits it takes to deal hand cards, in order, from a deck. It stops counting when there are too
// many.
func entropy(deck, hand int32) int {
	bits := 0.0
	for i := int32(0); i < hand && bits <= maxEntropy+1; i++ {
		bits += math.Log2(float64(deck - i))
	}
	return int(math.Ceil(bits))
}
