// SPDX-License-Identifier: Apache-2.0

// Package resource describes the kinds of resource.k8s.io/v1 (dynamic resource
// allocation): device classes, claims and their templates, slices of devices,
// and rules that taint them. The registry lists them. It allocates nothing.
package resource

import (
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/lib/celenv"
)

func names(k, resource, singular string, namespaced bool) kind.Names {
	gv := resourcev1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		Namespaced: namespaced,
	}
}

type claim = resourcev1.ResourceClaim

// ResourceClaim describes resource.k8s.io/v1 ResourceClaim.
func ResourceClaim() *kind.Kind {
	return kind.Spec[*claim]{
		Names:   names("ResourceClaim", "resourceclaims", "resourceclaim", true),
		New:     func() *claim { return &claim{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceClaimList{} },
		Default: func(c *claim) { defaultRequests(c.Spec.Devices.Requests) },
		PrepareCreate: func(c *claim) {
			c.Status = resourcev1.ResourceClaimStatus{}
			dropFromRequests(c.Spec.Devices.Requests, nil)
		},
		PrepareUpdate: func(c, old *claim) {
			c.Status = old.Status
			dropFromRequests(c.Spec.Devices.Requests, old.Spec.Devices.Requests)
		},
		Validate: validateSpec,
		ValidateUpdate: func(c, old *claim) field.ErrorList {
			l := check.At(nil)
			l.Add(meta.Finalizers(c)...)
			l.Fixed("spec", equality.Semantic.DeepEqual(c.Spec, old.Spec))
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{
				Name:        "State",
				Type:        "string",
				Description: "A summary of the current state (allocated, pending, reserved, etc.).",
			},
			kind.AgeColumn,
		},
		Row: func(c *claim) []any { return []any{c.Name, claimState(c), kind.Age(c.CreationTimestamp)} },
		Status: &kind.Sub[*claim]{
			PrepareUpdate: func(c, old *claim) {
				c.Spec = old.Spec
				meta.KeepForStatus(c, old)
				dropFreed(&c.Status, &old.Status)
				dropFromResults(c.Status.Allocation, old.Status.Allocation)
			},
			ValidateUpdate: validateClaimStatus,
		},
	}.Erase()
}

func validateSpec(c *claim) field.ErrorList {
	l := check.At(field.NewPath("spec"))
	l.Add(meta.Finalizers(c)...)
	validateClaim(l, &c.Spec)
	return l.Errors()
}

// dropFreed removes what drivers say of devices that old has allocated and status has not.
func dropFreed(status, old *resourcev1.ResourceClaimStatus) {
	type device struct{ driver, pool, name string }
	freed := map[device]bool{}
	if old.Allocation != nil {
		for _, r := range old.Allocation.Devices.Results {
			freed[device{r.Driver, r.Pool, r.Device}] = true
		}
	}
	if status.Allocation != nil {
		for _, r := range status.Allocation.Devices.Results {
			delete(freed, device{r.Driver, r.Pool, r.Device})
		}
	}
	kept := slices.Clone(status.Devices)
	if kept = slices.DeleteFunc(kept, func(d resourcev1.AllocatedDeviceStatus) bool {
		return freed[device{d.Driver, d.Pool, d.Device}]
	}); len(kept) == 0 {
		kept = nil
	}
	status.Devices = kept
}

func claimState(c *claim) string {
	var out []string
	if c.DeletionTimestamp != nil {
		out = append(out, "deleted")
	}
	switch {
	case c.Status.Allocation == nil && c.DeletionTimestamp == nil:
		out = append(out, "pending")
	case c.Status.Allocation != nil && len(c.Status.ReservedFor) > 0:
		out = append(out, "allocated", "reserved")
	case c.Status.Allocation != nil:
		out = append(out, "allocated")
	}
	return strings.Join(out, ",")
}

// ResourceClaimTemplate describes resource.k8s.io/v1 ResourceClaimTemplate.
func ResourceClaimTemplate() *kind.Kind {
	type template = resourcev1.ResourceClaimTemplate
	valid := func(t *template) field.ErrorList {
		l := check.At(field.NewPath("spec"))
		l.Add(meta.Finalizers(t)...)
		l.Within("metadata", func() { templateMeta(l, &t.Spec.ObjectMeta) })
		l.Within("spec", func() { validateClaim(l, &t.Spec.Spec) })
		return l.Errors()
	}
	return kind.Spec[*template]{
		Names:   names("ResourceClaimTemplate", "resourceclaimtemplates", "resourceclaimtemplate", true),
		New:     func() *template { return &template{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },
		Default: func(t *template) { defaultRequests(t.Spec.Spec.Devices.Requests) },

		PrepareCreate: func(t *template) { dropFromRequests(t.Spec.Spec.Devices.Requests, nil) },
		PrepareUpdate: func(t, old *template) {
			dropFromRequests(t.Spec.Spec.Devices.Requests, old.Spec.Spec.Devices.Requests)
		},
		Validate: valid,
		ValidateUpdate: func(t, old *template) field.ErrorList {
			l := check.At(nil)
			l.Add(valid(t)...)
			l.Immutable("spec", t.Spec, old.Spec)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{kind.NameColumn, kind.AgeColumn},
		Row:     func(t *template) []any { return []any{t.Name, kind.Age(t.CreationTimestamp)} },
	}.Erase()
}

func defaultRequests(requests []resourcev1.DeviceRequest) {
	fill := func(mode *resourcev1.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourcev1.DeviceAllocationModeExactCount
		}
		if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	tolerate := func(list []resourcev1.DeviceToleration) {
		for i := range list {
			if list[i].Operator == "" {
				list[i].Operator = resourcev1.DeviceTolerationOpEqual
			}
		}
	}
	for i := range requests {
		if e := requests[i].Exactly; e != nil {
			fill(&e.AllocationMode, &e.Count)
			tolerate(e.Tolerations)
		}
		for j := range requests[i].FirstAvailable {
			s := &requests[i].FirstAvailable[j]
			fill(&s.AllocationMode, &s.Count)
			tolerate(s.Tolerations)
		}
	}
}

// maxExpressions limits the length of all CEL expressions of a claim. A kilobyte takes 10 ms to compile, and a claim
// has room for three megabytes. In Kubernetes only each expression is limited.
const maxExpressions = 128 << 10

// expressionBytes is the length of all CEL expressions of a claim.
func expressionBytes(claim *resourcev1.DeviceClaim) (sum int) {
	add := func(selectors []resourcev1.DeviceSelector) {
		for _, s := range selectors {
			if s.CEL != nil {
				sum += len(s.CEL.Expression)
			}
		}
	}
	for _, r := range claim.Requests {
		if r.Exactly != nil {
			add(r.Exactly.Selectors)
		}
		for i := range r.FirstAvailable {
			add(r.FirstAvailable[i].Selectors)
		}
	}
	return sum
}

// validateClaim checks a claim's spec, standing at it.
func validateClaim(errs *check.List, s *resourcev1.ResourceClaimSpec) {
	errs.In("devices")
	defer errs.Out()
	var seen check.Set
	known := knownRequests(s)
	deviceClaim := &s.Devices
	if n := expressionBytes(deviceClaim); n > maxExpressions {
		errs.Forbidden("requests", fmt.Sprintf("the CEL expressions have %d bytes in all, and may have %d", n,
			maxExpressions))
		return
	}
	limited(errs, "requests", deviceClaim.Requests, resourcev1.DeviceRequestsMaxSize, func(
		_ int, r *resourcev1.DeviceRequest,
	) {
		if !seen.Add(r.Name) {
			errs.Declared(field.Duplicate(errs.Path(""), *r))
		}
		validateRequest(errs, r)
	})
	limited(errs, "constraints", deviceClaim.Constraints, resourcev1.DeviceConstraintsMaxSize, func(
		_ int, c *resourcev1.DeviceConstraint,
	) {
		requestNames(errs, c.Requests, known)
		if c.MatchAttribute == nil && c.DistinctAttribute == nil { // what Kubernetes says of it is of another mistake
			errs.Required("",
				`exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`)
		}
		if a := c.MatchAttribute; a != nil {
			check.Format(errs, "matchAttribute", *a, validate.ResourceFullyQualifiedName)
		}
		if a := c.DistinctAttribute; a != nil {
			check.Format(errs, "distinctAttribute", *a, validate.ResourceFullyQualifiedName)
		}
	})
	limited(errs, "config", deviceClaim.Config, resourcev1.DeviceConfigMaxSize, func(
		_ int, c *resourcev1.DeviceClaimConfiguration,
	) {
		requestNames(errs, c.Requests, known)
		validateConfiguration(errs, &c.DeviceConfiguration, false)
	})
}

// tooMany reports more items than there may be.
func tooMany(l *check.List, child string, n, most int) bool {
	if n > most {
		l.Add(field.TooMany(l.Path(child), n, most))
	}
	return n > most
}

// limited visits the items of a list, unless there are too many.
func limited[T any](l *check.List, child string, items []T, most int, visit func(i int, item *T)) {
	if len(items) > most {
		l.Declared(field.TooMany(l.Path(child), len(items), most))
		return
	}
	check.Each(l, child, items, visit)
}

// templateMeta: a template names nothing and has no history.
func templateMeta(errs *check.List, m *metav1.ObjectMeta) {
	for _, f := range []struct {
		child string
		set   bool
	}{
		{"name", m.Name != ""},
		{"generateName", m.GenerateName != ""},
		{"namespace", m.Namespace != ""},
		{"selfLink", m.SelfLink != ""}, //nolint:staticcheck // deprecated, and still refused
		{"uID", m.UID != ""},
		{"resourceVersion", m.ResourceVersion != ""},
		{"generation", m.Generation != 0},
		{"creationTimestamp", !m.CreationTimestamp.IsZero()},
		{"deletionTimestamp", m.DeletionTimestamp != nil},
		{"deletionGracePeriodSeconds", m.DeletionGracePeriodSeconds != nil},
		{"ownerReferences", m.OwnerReferences != nil},
		{"finalizers", m.Finalizers != nil},
		{"managedFields", m.ManagedFields != nil},
	} {
		if f.set {
			errs.Forbidden(f.child, "cannot be set")
		}
	}
	errs.Add(apivalidation.ValidateAnnotations(m.Annotations, errs.Path("annotations"))...)
	errs.Labels("labels", m.Labels)
}

func requestNames(l *check.List, names []string, known *check.Set) {
	var seen check.Set
	limited(l, "requests", names, resourcev1.DeviceRequestsMaxSize, func(_ int, name *string) {
		if !seen.Add(*name) {
			l.Declared(field.Duplicate(l.Path(""), *name))
		}
		requestName(l, "", *name, known)
	})
}

// requestName wants the name of a request in known, or of one's alternative.
func requestName(errs *check.List, child, name string, known *check.Set) {
	const wrong = "must be the name of a request in the claim or the name of a request and a subrequest " +
		"separated by '/'"
	parts := strings.Split(name, "/")
	if len(parts) > 2 {
		errs.Invalid(child, name, wrong)
		return
	}
	for _, part := range parts {
		errs.Label(child, part)
	}
	if !known.Has(name) {
		errs.Invalid(child, name, wrong)
	}
}

// knownRequests are the names of a claim's requests, and of their alternatives.
func knownRequests(s *resourcev1.ResourceClaimSpec) *check.Set {
	var known check.Set
	for i := range s.Devices.Requests {
		r := &s.Devices.Requests[i]
		known.Add(r.Name)
		for j := range r.FirstAvailable {
			known.Add(r.Name + "/" + r.FirstAvailable[j].Name)
		}
	}
	return &known
}

func validateRequest(errs *check.List, deviceRequest *resourcev1.DeviceRequest) {
	errs.Label("name", deviceRequest.Name)
	switch {
	case deviceRequest.Exactly == nil && len(deviceRequest.FirstAvailable) == 0:
		errs.Required("", "exactly one of `exactly` or `firstAvailable` is required")
	case deviceRequest.Exactly != nil && len(deviceRequest.FirstAvailable) > 0:
		errs.Invalid("", nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set")
	case deviceRequest.Exactly != nil:
		e := deviceRequest.Exactly
		errs.Within("exactly", func() {
			validateChoice(errs, e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations)
		})
	default:
		var seen check.Set
		limited(errs, "firstAvailable", deviceRequest.FirstAvailable,
			resourcev1.FirstAvailableDeviceRequestMaxSize, func(
				_ int, s *resourcev1.DeviceSubRequest,
			) {
				errs.Label("name", s.Name)
				if !seen.Add(s.Name) {
					errs.Declared(field.Duplicate(errs.Path(""), *s))
				}
				validateChoice(errs, s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations)
			})
	}
}

// validateChoice checks what requests and their alternatives have in common.
func validateChoice(
	errs *check.List, class string, selectors []resourcev1.DeviceSelector, mode resourcev1.DeviceAllocationMode,
	count int64,
	tolerations []resourcev1.DeviceToleration,
) {
	check.NeedsForm(errs, "deviceClassName", class, errs.Subdomain)
	validateSelectors(errs, selectors, false)
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			errs.Invalid("count", count, "must not be specified when allocationMode is 'All'")
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			errs.Invalid("count", count, "must be greater than zero")
		}
	default:
		modes := []resourcev1.DeviceAllocationMode{
			resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount,
		}
		errs.Declared(field.NotSupported(errs.Path("allocationMode"), mode, modes))
	}
	check.Each(errs, "tolerations", tolerations, func(_ int, t *resourcev1.DeviceToleration) {
		validateToleration(errs, t)
	})
}

func validateToleration(errs *check.List, toleration *resourcev1.DeviceToleration) {
	if toleration.Key != "" {
		check.Format(errs, "key", toleration.Key, validate.LabelKey)
	}
	operators := []resourcev1.DeviceTolerationOperator{
		resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists,
	}
	switch toleration.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if toleration.Value != "" {
			errs.Invalid("value", toleration.Value, "must be empty for operator `Exists`")
		}
	case resourcev1.DeviceTolerationOpEqual:
		errs.LabelValue("value", toleration.Value)
	case "":
	default:
		errs.Declared(field.NotSupported(errs.Path("operator"), toleration.Operator, operators))
	}
	if toleration.Effect != "" && !slices.Contains(taintEffects, toleration.Effect) {
		errs.Declared(field.NotSupported(errs.Path("effect"), toleration.Effect, taintEffects))
	}
}

var taintEffects = []resourcev1.DeviceTaintEffect{
	resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone,
}

// validateSelectors takes expressions that are stored for good.
func validateSelectors(errs *check.List, selectors []resourcev1.DeviceSelector, stored bool) {
	limited(errs, "selectors", selectors, resourcev1.DeviceSelectorsMaxSize, func(
		_ int, deviceSelector *resourcev1.DeviceSelector,
	) {
		if deviceSelector.CEL == nil {
			errs.Required("cel", "")
			return
		}
		if stored {
			return
		}
		errs.Within("cel", func() {
			if len(deviceSelector.CEL.Expression) > resourcev1.CELSelectorExpressionMaxLength {
				errs.TooLong("expression", resourcev1.CELSelectorExpressionMaxLength)
				return
			}
			compile(errs, deviceSelector.CEL.Expression)
		})
	})
}

// compile checks that an expression about a device is one, and that it cannot cost too much.
func compile(errs *check.List, expression string) {
	celenv.Bound() // before the compiler takes the environment
	env := environment.NewExpressions
	r := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{
		EnvType: &env,
	})
	switch {
	case r.Error != nil && r.Error.Type == apiservercel.ErrorTypeInternal:
		errs.Add(field.InternalError(errs.Path("expression"), r.Error))
	case r.Error != nil:
		errs.Invalid("expression", expression, r.Error.Detail)
	case r.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		errs.Forbidden("expression", "too complex, exceeds cost limit")
	}
}

// validateConfiguration takes parameters of any length that are stored.
func validateConfiguration(errs *check.List, configuration *resourcev1.DeviceConfiguration, stored bool) {
	if configuration.Opaque == nil {
		errs.Required("opaque", "")
		return
	}
	errs.In("opaque")
	defer errs.Out()
	driverName(errs, "driver", configuration.Opaque.Driver)
	most := resourcev1.OpaqueParametersMaxLength
	if stored {
		most = len(configuration.Opaque.Parameters.Raw)
	}
	jsonObject(errs, "parameters", configuration.Opaque.Parameters.Raw, most)
}

// jsonObject wants an object of at most so many bytes.
func jsonObject(l *check.List, child string, raw []byte, most int) {
	switch text := strings.TrimSpace(string(raw)); {
	case text == "" || text == "null":
		l.Required(child, "")
	case len(raw) > most:
		l.TooLong(child, most)
	case !strings.HasPrefix(text, "{"):
		l.Invalid(child, "<value omitted>", "must be a valid JSON object")
	}
}

// driverName wants a DNS subdomain of the length of a label, in any case.
func driverName(l *check.List, child, name string) {
	if name == "" {
		l.Missing(child)
		return
	}
	check.Format(l, child, name, validate.LongNameCaseless) //nolint:staticcheck // what Kubernetes checks here
	if len(name) > maxDriver {
		l.Declared(field.TooLongCharacters(l.Path(child), name, maxDriver))
	}
}

const maxDriver = 63

// poolName wants DNS subdomains joined by slashes.
func poolName(l *check.List, child, name string) {
	if name == "" {
		l.Required(child, "")
		return
	}
	if len(name) > resourcev1.PoolNameMaxLength {
		l.TooLong(child, resourcev1.PoolNameMaxLength)
	}
	for part := range strings.SplitSeq(name, "/") {
		l.Subdomain(child, part)
	}
}

// bumped is the generation after an update of the spec.
func bumped(generation int64, spec, old any) int64 {
	if equality.Semantic.DeepEqual(spec, old) {
		return generation
	}
	return generation + 1
}
