// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Level is how much of a request is recorded.
type Level string

// The levels; each includes the one before.
const (
	LevelNone            Level = "None"
	LevelMetadata        Level = "Metadata"
	LevelRequest         Level = "Request"
	LevelRequestResponse Level = "RequestResponse"
)

var levels = []Level{LevelNone, LevelMetadata, LevelRequest, LevelRequestResponse}

// Stage is a stage of the handling of a request.
type Stage string

// The stages.
const (
	StageRequestReceived  Stage = "RequestReceived"
	StageResponseStarted  Stage = "ResponseStarted" // long-running requests only
	StageResponseComplete Stage = "ResponseComplete"
	StagePanic            Stage = "Panic"
)

var stages = []Stage{StageRequestReceived, StageResponseStarted, StageResponseComplete, StagePanic}

// Policy is an audit Policy (audit.k8s.io/v1): the first matching rule decides.
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"` //nolint:modernize // as in every object of the API
	Rules             []Rule                      `json:"rules"`
	OmitStages        []Stage                     `json:"omitStages,omitempty"`
	OmitManagedFields bool                        `json:"omitManagedFields,omitempty"`
}

// Rule is one rule of a policy; an empty field matches everything.
type Rule struct {
	Level             Level            `json:"level"`
	Users             []string         `json:"users,omitempty"`
	UserGroups        []string         `json:"userGroups,omitempty"`
	Verbs             []string         `json:"verbs,omitempty"`
	Resources         []GroupResources `json:"resources,omitempty"`
	Namespaces        []string         `json:"namespaces,omitempty"`
	NonResourceURLs   []string         `json:"nonResourceURLs,omitempty"`
	OmitStages        []Stage          `json:"omitStages,omitempty"`
	OmitManagedFields *bool            `json:"omitManagedFields,omitempty"`
}

// GroupResources are resources of one API group.
type GroupResources struct {
	Group         string   `json:"group,omitempty"`
	Resources     []string `json:"resources,omitempty"`
	ResourceNames []string `json:"resourceNames,omitempty"`
}

// Request holds the attributes that rules match.
type Request struct {
	User         string
	Groups       []string
	Verb         string
	IsResource   bool
	Group        string
	Resource     string
	Subresource  string
	Namespace    string
	Name         string
	Path         string
	ReceivedFrom string
}

// LoadPolicy reads a policy file.
func LoadPolicy(path string) (*Policy, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read audit policy: %w", err)
	}
	p, err := ParsePolicy(b)
	if err != nil {
		return nil, fmt.Errorf("audit policy %s: %w", path, err)
	}
	return p, nil
}

// ParsePolicy parses a policy.
func ParsePolicy(b []byte) (*Policy, error) {
	policy := &Policy{}
	if err := yaml.UnmarshalStrict(b, policy); err != nil {
		return nil, err
	}
	if policy.APIVersion != "audit.k8s.io/v1" || policy.Kind != "Policy" {
		return nil, fmt.Errorf("it is a %s of %s, not a Policy of audit.k8s.io/v1", policy.Kind, policy.APIVersion)
	}
	if len(policy.Rules) == 0 {
		return nil, errors.New("rules: at least one is needed")
	}
	errs := []error{knownStages("omitStages", policy.OmitStages)}
	for i := range policy.Rules {
		errs = append(errs, policy.Rules[i].check(fmt.Sprintf("rules[%d]", i)))
	}
	return policy, errors.Join(errs...)
}

func knownStages(at string, list []Stage) error {
	for i, s := range list {
		if !slices.Contains(stages, s) {
			return fmt.Errorf("%s[%d]: %q is no stage, %v are", at, i, s, stages)
		}
	}
	return nil
}

func (r *Rule) check(at string) error {
	errs := []error{knownStages(at+".omitStages", r.OmitStages)}
	if !slices.Contains(levels, r.Level) {
		errs = append(errs, fmt.Errorf("%s.level: %q is no level, %v are", at, r.Level, levels))
	}
	if len(r.NonResourceURLs) > 0 && (len(r.Resources) > 0 || len(r.Namespaces) > 0) {
		errs = append(errs,
			fmt.Errorf("%s.nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs", at))
	}
	for i, u := range r.NonResourceURLs {
		if u != "*" && (!strings.HasPrefix(u, "/") || strings.Contains(strings.TrimSuffix(u, "*"), "*")) {
			errs = append(errs, fmt.Errorf("%s.nonResourceURLs[%d]: %q is no path; a '*' may stand at its end", at, i,
				u))
		}
	}
	for i, g := range r.Resources {
		if len(g.ResourceNames) > 0 && len(g.Resources) == 0 {
			errs = append(errs,
				fmt.Errorf("%s.resources[%d].resourceNames: using resourceNames requires at least one resource", at, i))
		}
	}
	return errors.Join(errs...)
}

func (p *Policy) evaluate(r *Request) RequestAuditConfig {
	for i := range p.Rules {
		rule := &p.Rules[i]
		if !rule.matches(r) {
			continue
		}
		v := RequestAuditConfig{
			Level:             rule.Level,
			OmitStages:        append(slices.Clone(p.OmitStages), rule.OmitStages...),
			OmitManagedFields: p.OmitManagedFields,
		}
		if rule.OmitManagedFields != nil {
			v.OmitManagedFields = *rule.OmitManagedFields
		}
		return v
	}
	return RequestAuditConfig{Level: LevelNone}
}

func (r *Rule) matches(request *Request) bool {
	if len(r.Users) > 0 && !slices.Contains(r.Users, request.User) || len(r.Verbs) > 0 && !slices.Contains(r.Verbs,
		request.Verb) {
		return false
	}
	if len(r.UserGroups) > 0 && !slices.ContainsFunc(request.Groups, func(g string) bool {
		return slices.Contains(r.UserGroups, g)
	}) {
		return false
	}
	switch {
	case len(r.Namespaces) > 0 || len(r.Resources) > 0:
		return request.IsResource && r.matchesResource(request)
	case len(r.NonResourceURLs) > 0:
		return !request.IsResource && slices.ContainsFunc(r.NonResourceURLs, func(u string) bool {
			before, star := strings.CutSuffix(u, "*")
			return u == request.Path || star && strings.HasPrefix(request.Path, before)
		})
	}
	return true
}

func (r *Rule) matchesResource(request *Request) bool {
	if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, request.Namespace) {
		return false
	}
	if len(r.Resources) == 0 {
		return true
	}
	full := request.Resource
	if request.Subresource != "" {
		full += "/" + request.Subresource
	}
	for _, g := range r.Resources {
		if g.Group != request.Group && g.Group != "*" {
			continue
		}
		if len(g.Resources) == 0 {
			return true
		}
		if len(g.ResourceNames) > 0 && !slices.Contains(g.ResourceNames, request.Name) {
			continue
		}
		for _, res := range g.Resources {
			sub, anyOf := strings.CutPrefix(res, "*/")
			of, anySub := strings.CutSuffix(res, "/*")
			if res == full || res == "*" || anyOf && sub == request.Subresource && sub != "" ||
				anySub && of == request.Resource {
				return true
			}
		}
	}
	return false
}
