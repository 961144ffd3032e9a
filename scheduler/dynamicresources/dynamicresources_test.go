// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/core"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

const driver = "gpu.example.com"

// world is a plugin with claims, slices and classes, and a scheduler without a server around it.
type world struct {
	*schedtest.Harness
	t      testing.TB
	client *fake.Clientset
	known  *Tracker
	plugin *Plugin
	caches informers.SharedInformerFactory
}

func newWorld(t testing.TB, objs ...any) *world {
	t.Helper()
	w := &world{t: t, client: clienttest.New(), known: NewTracker()}
	w.caches = informers.NewSharedInformerFactory(w.client, 0)
	w.known.Watch(w.caches, func(string) bool { return true })
	w.plugin = New(Config{
		Tracker: w.known,
		Client:  client.Plain(w.client),
		Explain: time.Minute,
		Later:   func(ctx context.Context, job func(context.Context)) { job(ctx) },
	})
	w.Harness = schedtest.New(1, 1)
	handle := &framework.Handle{DeviceClass: w.known.DeviceClass}
	w.Engine = core.NewEngine(plugins.Default("default-scheduler", handle, &plugins.Shared{}, framework.Weighted{
		Plugin: w.plugin.Descriptor(),
		Weight: 2,
	}), 1, 1)
	w.add(class("gpu"))
	w.add(objs...)
	return w
}

// add puts objects into the caches, and claims also on the server.
func (w *world) add(objs ...any) {
	w.t.Helper()
	cs := w.caches.Resource().V1()
	for _, o := range objs {
		var err error
		switch o := o.(type) {
		case *resourcev1.DeviceClass:
			err = cs.DeviceClasses().Informer().GetStore().Add(o)
		case *resourcev1.ResourceSlice:
			err = cs.ResourceSlices().Informer().GetStore().Add(o)
		case *resourcev1.DeviceTaintRule:
			err = cs.DeviceTaintRules().Informer().GetStore().Add(o)
		case *resourcev1.ResourceClaim:
			if err = cs.ResourceClaims().Informer().GetStore().Add(o); err == nil {
				err = w.client.Tracker().Add(o)
			}
			w.known.ClaimChanged(nil, o)
		default:
			w.Add(o)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.known.DevicesChanged()
}

// place makes an attempt and reserves what it found.
func (w *world) place(pod *corev1.Pod) *framework.Attempt {
	w.t.Helper()
	a := w.Try(pod)
	if a.Chosen != nil {
		if err := w.plugin.Reserve(w.t.Context(), a.Cycle, a.Pod, a.Chosen); err != nil {
			w.t.Fatalf("reserve: %v", err)
		}
	}
	return a
}

func class(name string, selectors ...string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.DeviceClassSpec{
			Selectors: cels(selectors),
		},
	}
}

func cels(in []string) (out []resourcev1.DeviceSelector) {
	for _, e := range in {
		out = append(out, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	return out
}

type sliceOption func(*resourcev1.ResourceSlice)

// slice has the devices of one pool of a node of that name.
func slice(node string, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:   driver,
			NodeName: &node,
			Pool:     resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices:  devices,
		},
	}
}

func with(s *resourcev1.ResourceSlice, opts ...sliceOption) *resourcev1.ResourceSlice {
	for _, o := range opts {
		o(s)
	}
	return s
}

// device has string attributes, given as name, value, name, value.
func device(name string, attributes ...string) resourcev1.Device {
	d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}}
	for i := 0; i+1 < len(attributes); i += 2 {
		d.Attributes[resourcev1.QualifiedName(attributes[i])] = resourcev1.DeviceAttribute{
			StringValue: &attributes[i+1],
		}
	}
	return d
}

func exactly(name, class string, count int64, selectors ...string) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{
		Name: name,
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class,
			AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
			Count:           count,
			Selectors:       cels(selectors),
		},
	}
}

func all(name, class string) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{
		Name: name,
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class,
			AllocationMode:  resourcev1.DeviceAllocationModeAll,
		},
	}
}

func first(name string, alternatives ...resourcev1.DeviceRequest) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: name}
	for _, a := range alternatives {
		r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{
			Name:            a.Name,
			DeviceClassName: a.Exactly.DeviceClassName,
			AllocationMode:  a.Exactly.AllocationMode,
			Count:           a.Exactly.Count,
			Selectors:       a.Exactly.Selectors,
		})
	}
	return r
}

func claim(name string, requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       "default",
			Name:            name,
			UID:             types.UID("claim-" + name),
			ResourceVersion: "1",
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}
}

func constrained(c *resourcev1.ResourceClaim, match, distinct string) *resourcev1.ResourceClaim {
	k := resourcev1.DeviceConstraint{}
	if match != "" {
		k.MatchAttribute = (*resourcev1.FullyQualifiedName)(&match)
	} else {
		k.DistinctAttribute = (*resourcev1.FullyQualifiedName)(&distinct)
	}
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, k)
	return c
}

// having has the device of a pool, which is on the node of that name.
func having(resourceClaim *resourcev1.ResourceClaim, pool, device string) *resourcev1.ResourceClaim {
	resourceClaim.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
			Request: "r",
			Driver:  driver,
			Pool:    pool,
			Device:  device,
		}}},
		NodeSelector: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}},
			}}},
		},
	}
	return resourceClaim
}

func using(claims ...string) schedtest.PodOption {
	return func(p *corev1.Pod) {
		for _, name := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{
				Name:              name,
				ResourceClaimName: &name,
			})
		}
	}
}

func taken(a *framework.Attempt) string {
	s, ok := key.Read(a.Cycle)
	if !ok {
		return ""
	}
	var out []string
	for _, c := range s.claims {
		if c.plan != nil {
			for _, r := range c.plan.Devices.Results {
				out = append(out, r.Request+"="+r.Pool+"/"+r.Device)
			}
		}
	}
	return strings.Join(out, " ")
}

// rule taints a device wherever it is.
func rule(device string) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: device},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Device: &device},
			Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule},
		},
	}
}

// TestRuleComesAndGoes: a slice is tainted while there is a rule, and the caches' own objects are left alone.
func TestRuleComesAndGoes(t *testing.T) {
	resourceSlice := slice("a", device("d"))
	r := rule("d")
	world := newWorld(t, resourceSlice, r)
	taints := func() int {
		all, err := world.known.allSlices()
		if err != nil {
			t.Fatal(err)
		}
		return len(all[0].Spec.Devices[0].Taints)
	}
	if n := taints(); n != 1 {
		t.Errorf("%d taints, want 1", n)
	}
	world.add(rule("e"))
	changed := rule("d")
	changed.Spec.DeviceSelector.Pool = new("elsewhere")
	world.add(changed)
	if n := taints(); n != 0 {
		t.Errorf("%d taints of rules for other devices", n)
	}
	if len(resourceSlice.Spec.Devices[0].Taints) > 0 {
		t.Error("the cache's slice was changed")
	}
	for _, tt := range []struct {
		name     string
		old, now any
		want     bool
	}{{"new", nil, r, false}, {"changed", r, changed, true}, {"gone", r, nil, true}} {
		for _, h := range world.plugin.events() {
			if h.Resource == TaintRules &&
				h.QueueingHintFn(nil, &framework.Event{OldObject: tt.old, NewObject: tt.now}) != tt.want {
				t.Errorf("a rule that is %s wakes pods: %v, want %v", tt.name, !tt.want, tt.want)
			}
		}
	}
}

// TestChoices: which node a pod gets, and which devices, or why none.
func TestChoices(t *testing.T) {
	big := []string{"model", "big", "numa", "0"}
	small := []string{"model", "small", "numa", "1"}
	isBig := `device.attributes["` + driver + `"].model == "big"`
	tainted := device("d", big...)
	tainted.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	tolerating := exactly("r", "gpu", 1)
	tolerating.Exactly.Tolerations = []resourcev1.DeviceToleration{
		{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists},
	}
	admin := exactly("r", "gpu", 1)
	admin.Exactly.AdminAccess = new(true)
	onlyB := device("d")
	onlyB.NodeName = new("b")
	inZone := &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}},
		}}},
	}
	for _, tt := range []struct {
		name    string
		objs    []any
		claims  []string
		node    string // where the pod goes
		devices string
		message string // why it goes nowhere
	}{
		{"one", []any{slice("a", device("d")), claim("c", exactly("r", "gpu", 1))}, nil, "a", "r=a/d", ""},
		{
			"two of one",
			[]any{slice("a", device("d")), claim("c", exactly("r", "gpu", 2))},
			nil, "", "",
			"2 cannot allocate all claims",
		},
		{"all", []any{slice("b", device("d"), device("e")), claim("c", all("r", "gpu"))}, nil, "b", "r=b/d r=b/e", ""},
		{
			"all of an incomplete pool", []any{
				with(slice("b", device("d")), func(s *resourcev1.ResourceSlice) {
					s.Spec.Pool.ResourceSliceCount = 2
				}), claim("c", all("r", "gpu")),
			}, nil, "", "", "all devices",
		},
		{
			"a selector", []any{slice("a", device("d", small...)), slice("b", device("d", big...)), claim("c",
				exactly("r", "gpu", 1, isBig))}, nil, "b", "r=b/d", "",
		},
		{
			"a class's selector", []any{slice("a", device("d", small...)), slice("b", device("d", big...)), class(
				"big", isBig), claim("c", exactly("r", "big", 1))}, nil, "b", "r=b/d", "",
		},
		{
			"unparsable",
			[]any{slice("a", device("d")), claim("c", exactly("r", "gpu", 1, "device.???"))},
			nil, "",
			"", "selector #0: CEL compile error: ",
		},
		{
			"evaluated wrongly",
			[]any{slice("a", device("d")), claim("c", exactly("r", "gpu", 1, isBig))},
			nil, "",
			"", "no such key: model",
		},
		{
			"evaluated wrongly on one of two nodes",
			[]any{
				slice("a", device("d", big...)), slice("b", device("d")), claim("c", exactly("r", "gpu", 1, isBig)),
			},
			nil, "", "", Name + ": claim default/c: selector #0 on device gpu.example.com/b/d: CEL runtime error: no " +
				"such key: model",
		},
		{
			"no class",
			[]any{slice("a", device("d")), claim("c", exactly("r", "none", 1))},
			nil, "", "",
			"request r: device class none does not exist",
		},
		{
			"the first alternative", []any{
				slice("a", device("d", small...)), slice("b", device("e", big...), device("f", small...)),
				claim("c", first("r", exactly("best", "gpu", 1, isBig), exactly("any", "gpu", 1))),
			}, nil, "b", "r/best=b/e", "",
		},
		{
			"the same", []any{
				slice("a", device("d", big...), device("e", small...)),
				slice("b", device("d", big...), device("e", big...)),
				constrained(claim("c", exactly("r", "gpu", 2)), driver+"/numa", ""),
			}, nil, "b", "r=b/d r=b/e", "",
		},
		{
			"different ones", []any{
				slice("a", device("d", big...), device("e", small...)),
				slice("b", device("d", big...), device("e", big...)),
				constrained(claim("c", exactly("r", "gpu", 2)), "", driver+"/numa"),
			}, nil, "a", "r=a/d r=a/e", "",
		},
		{
			"tainted",
			[]any{slice("a", tainted), claim("c", exactly("r", "gpu", 1))},
			nil, "", "",
			"2 cannot allocate all claims",
		},
		{
			"tainted by a rule", []any{slice("a", device("d"), device("e")), rule("d"), claim("c",
				exactly("r", "gpu", 1))}, nil, "a", "r=a/e", "",
		},
		{
			"all tainted by a rule",
			[]any{slice("a", device("d")), rule("d"), claim("c", exactly("r", "gpu", 1))},
			nil, "", "", "2 cannot allocate all claims",
		},
		{
			"tainted by a rule and tolerated",
			[]any{slice("a", device("d")), rule("d"), claim("c", tolerating)},
			nil,
			"a", "r=a/d", "",
		},
		{"tolerated", []any{slice("a", tainted), claim("c", tolerating)}, nil, "a", "r=a/d", ""},
		{
			"taken", []any{slice("a", device("d")), having(claim("other"), "a", "d"), claim("c",
				exactly("r", "gpu", 1))}, nil, "", "", "2 cannot allocate all claims",
		},
		{
			"taken, for administration", []any{
				slice("a", device("d")), having(claim("other"), "a", "d"), claim("c", admin),
			}, nil, "a", "r=a/d", "",
		},
		{"allocated", []any{having(claim("c"), "b", "d")}, nil, "b", "", ""},
		{
			"allocated on a node that is gone",
			[]any{having(claim("c"), "x", "d")},
			nil, "", "",
			"resourceclaim not available on the node",
		},
		{
			"two claims",
			[]any{
				slice("a", device("d")), slice("b", device("d"), device("e")), claim("c", exactly("r", "gpu", 1)),
				claim("d", exactly("r", "gpu", 1)),
			},
			[]string{"c", "d"},
			"b", "r=b/d r=b/e", "",
		},
		{
			"one with an allocated one", []any{slice("a", device("d")), slice("b", device("e")), having(claim("d"),
				"b", "x"), claim("c", exactly("r", "gpu", 1))}, []string{"c", "d"}, "b", "r=b/e", "",
		},
		{
			"twice the same claim",
			[]any{slice("a", device("d")), claim("c", exactly("r", "gpu", 1))},
			[]string{"c", "c"},
			"a", "r=a/d", "",
		},
		{
			"of the network",
			[]any{with(slice("x", device("d")), func(s *resourcev1.ResourceSlice) {
				s.Spec.NodeName = nil
				s.Spec.NodeSelector = inZone
			}), claim("c", exactly("r", "gpu", 1))},
			nil, "b", "r=x/d", "",
		},
		{
			"everywhere",
			[]any{with(slice("x", device("d")), func(s *resourcev1.ResourceSlice) {
				s.Spec.NodeName = nil
				s.Spec.AllNodes = new(true)
			}), claim("c", exactly("r", "gpu", 1))},
			nil, "*", "r=x/d", "",
		},
		{
			"by device",
			[]any{with(slice("x", onlyB), func(s *resourcev1.ResourceSlice) {
				s.Spec.NodeName = nil
				s.Spec.PerDeviceNodeSelection = new(true)
			}), claim("c", exactly("r", "gpu", 1))},
			nil, "b", "r=x/d", "",
		},
		{"no such claim", nil, nil, "", "", `"c" not found`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.objs...)
			w.Add(schedtest.Node("a"), schedtest.Node("b", schedtest.Labels("zone", "z")))
			if tt.claims == nil {
				tt.claims = []string{"c"}
			}
			a := w.place(schedtest.Pod("p", using(tt.claims...)))
			if a.Chosen == nil {
				if tt.node != "" || !strings.Contains(a.Message(), tt.message) {
					t.Errorf("nowhere: %s; want %s%s", a.Message(), tt.node, tt.message)
				}
				return
			}
			if tt.node != "*" && a.Chosen.Name != tt.node || taken(a) != tt.devices {
				t.Errorf("on %s with %s, want %q with %s (%s)", a.Chosen.Name, taken(a), tt.node, tt.devices,
					tt.message)
			}
		})
	}
}

// TestParts: the counters and the capacity that partitions and shares of a device consume are counted.
func TestParts(t *testing.T) {
	whole := resource.MustParse("4")
	part := func(name, uses string) resourcev1.Device {
		return resourcev1.Device{
			Name: name,
			ConsumesCounters: []resourcev1.DeviceCounterConsumption{
				{
					CounterSet: "gpu",
					Counters:   map[string]resourcev1.Counter{"cores": {Value: resource.MustParse(uses)}},
				},
			},
		}
	}
	pool := func(n int, edit func(*resourcev1.ResourceSlice)) *resourcev1.ResourceSlice {
		return with(slice("a"), func(s *resourcev1.ResourceSlice) {
			s.Name = fmt.Sprintf("s%d", n)
			s.Spec.Pool.ResourceSliceCount = 2
			edit(s)
		})
	}
	shared := resourcev1.Device{
		Name:                     "net",
		AllowMultipleAllocations: new(true),
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
			"bandwidth": {Value: resource.MustParse("10")},
		},
	}
	tenths := *shared.DeepCopy()
	tenths.Capacity["bandwidth"] = resourcev1.DeviceCapacity{
		Value: resource.MustParse("1"),
		RequestPolicy: &resourcev1.CapacityRequestPolicy{
			Default: new(resource.MustParse("500m")),
			ValidRange: &resourcev1.CapacityRequestPolicyRange{
				Min:  new(resource.MustParse("100m")),
				Step: new(resource.MustParse("100m")),
			},
		},
	}
	wants := func(amount string) resourcev1.DeviceRequest {
		r := exactly("r", "gpu", 1)
		r.Exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
			"bandwidth": resource.MustParse(amount),
		}}
		return r
	}
	for _, tt := range []struct {
		name  string
		objs  []any
		fits  []bool // pods p0, p1... with claims c0, c1...
		asked func(i int) resourcev1.DeviceRequest
	}{
		{"partitions", []any{
			pool(1, func(s *resourcev1.ResourceSlice) {
				s.Spec.SharedCounters = []resourcev1.CounterSet{
					{Name: "gpu", Counters: map[string]resourcev1.Counter{"cores": {Value: whole}}},
				}
			}),
			pool(2, func(s *resourcev1.ResourceSlice) {
				s.Spec.Devices = []resourcev1.Device{part("half-0", "2"), part("half-1", "2"), part("whole", "4")}
			}),
		}, []bool{true, true, false}, func(int) resourcev1.DeviceRequest { return exactly("r", "gpu", 1) }},
		{"shares", []any{slice("a", shared)}, []bool{true, true, false}, func(i int) resourcev1.DeviceRequest {
			return wants([]string{"6", "4", "1"}[i])
		}},
		{"fractions", []any{slice("a", tenths)}, []bool{true, true, false}, func(i int) resourcev1.DeviceRequest {
			return wants([]string{"410m", "500m", "10m"}[i]) // the first is rounded up to 500m
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.objs...)
			w.Add(schedtest.Node("a"))
			for i, fits := range tt.fits {
				w.add(claim(fmt.Sprintf("c%d", i), tt.asked(i)))
				if a := w.place(
					schedtest.Pod(fmt.Sprintf("p%d", i), using(fmt.Sprintf("c%d", i)))); (a.Chosen != nil) != fits {
					t.Errorf("pod %d: %v %s, want %v", i, a.Chosen, a.Message(), fits)
				}
			}
		})
	}
}

// TestNeverTwice: whatever comes and goes, no device is in two claims, and none is lost.
func TestNeverTwice(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, seed)) // a test
		world := newWorld(t)
		total := 0
		for n := range 1 + rnd.IntN(4) {
			var devices []resourcev1.Device
			for d := range rnd.IntN(5) {
				devices = append(devices, device(fmt.Sprintf("d%d", d), "numa", fmt.Sprint(rnd.IntN(2))))
			}
			total += len(devices)
			world.add(slice(fmt.Sprintf("n%d", n), devices...))
			world.Add(schedtest.Node(fmt.Sprintf("n%d", n)))
		}
		plans := map[string]*framework.Attempt{}
		owner := map[string]string{}
		for i := range 60 {
			name := fmt.Sprintf("c%d", i)
			if len(plans) > 0 && rnd.IntN(3) == 0 {
				for gone, a := range plans { // any
					world.plugin.Unreserve(t.Context(), a.Cycle, a.Pod, "")
					delete(plans, gone)
					for d, by := range owner {
						if by == gone {
							delete(owner, d)
						}
					}
					break
				}
			}
			c := claim(name, exactly("r", "gpu", 1+int64(rnd.IntN(2))))
			if rnd.IntN(2) == 0 {
				constrained(c, driver+"/numa", "")
			}
			world.add(c)
			a := world.place(schedtest.Pod(name, using(name)))
			if a.Chosen == nil {
				continue
			}
			cycle := *a
			plans[name] = &cycle
			for d := range strings.FieldsSeq(taken(a)) {
				if by, ok := owner[d]; ok {
					t.Fatalf("seed %d: %s is in %s and %s", seed, d, by, name)
				}
				owner[d] = name
			}
		}
		if len(world.known.view().taken.AllocatedDevices) != len(owner) || len(owner) > total {
			t.Fatalf("seed %d: %d devices are counted as taken, %d are, of %d", seed,
				len(world.known.view().taken.AllocatedDevices), len(owner), total)
		}
		for _, a := range plans {
			world.plugin.Unreserve(t.Context(), a.Cycle, a.Pod, "")
		}
		if n := len(world.known.view().taken.AllocatedDevices); n != 0 {
			t.Fatalf("seed %d: %d devices are still counted", seed, n)
		}
	}
}

// TestBounded: a search that would take forever ends with a message, and leaves the other nodes their time.
func TestBounded(t *testing.T) {
	world := newWorld(t)
	world.plugin.Filter = 2 * time.Second
	for s := range 20 { // 2,560 devices of 31 parts: no 32 of different ones
		var devices []resourcev1.Device
		for d := range resourcev1.ResourceSliceMaxDevices {
			devices = append(devices, device(fmt.Sprintf("d%d-%d", s, d), "part", fmt.Sprint(d%31)))
		}
		world.add(with(slice("hard", devices...), func(sl *resourcev1.ResourceSlice) {
			sl.Name = fmt.Sprintf("s%d", s)
			sl.Spec.Pool.ResourceSliceCount = 20
		}))
	}
	var requests []resourcev1.DeviceRequest
	for i := range 32 {
		requests = append(requests, exactly(fmt.Sprintf("r%d", i), "gpu", 1))
	}
	world.add(constrained(claim("c", requests...), "", driver+"/part"))
	world.Add(schedtest.Node("hard"), schedtest.Node("easy"))
	begin := time.Now()
	a := world.place(schedtest.Pod("p", using("c")))
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if a.Chosen != nil || !strings.Contains(a.Message(), "1 timed out trying to allocate devices") ||
		!strings.Contains(a.Message(), "1 cannot allocate all claims") {
		t.Errorf("got %v, %s", a.Chosen, a.Message())
	}
}

// TestDearSelector: a selector with a quantity of millions of digits costs nothing.
func TestDearSelector(t *testing.T) {
	world := newWorld(t, slice("a", device("d")),
		claim("c", exactly("r", "gpu", 1, `quantity("1e" + "2880888").isGreaterThan(quantity("1"))`)))
	world.Add(schedtest.Node("a"))
	a := world.place(schedtest.Pod("p", using("c")))
	if a.Chosen != nil || !strings.Contains(a.Message(), "an exponent over 100") {
		t.Errorf("got %v, %s", a.Chosen, a.Message())
	}
}

// TestExplain: the request is named that a node cannot meet.
func TestExplain(t *testing.T) {
	isBig := `device.attributes["` + driver + `"].model == "big"`
	world := newWorld(t, slice("a", device("d", "model", "small")), slice("b", device("d", "model", "big")),
		having(claim("other"), "b", "d"),
		claim("c", exactly("any", "gpu", 1), exactly("one", "gpu", 1, isBig)), having(claim("e"), "b", "x"))
	world.Add(schedtest.Node("a"), schedtest.Node("b"))
	for _, tt := range []struct{ claims, want string }{
		{"c", "a: claim c, request one: asks for 1 of class gpu with a selector, the node has no such\n" +
			"b: claim c, request any: asks for 1 of class gpu, which other claims have fits on b when a claim gives " +
			"back 1 of class gpu\n"},
		{
			"e c", "a: claim e: its devices are on node b\nb: claim c, request any: asks for 1 of class gpu, which " +
				"other claims have fits on b when a claim gives back 1 of class gpu\n",
		},
	} {
		a := world.place(schedtest.Pod("p", using(strings.Fields(tt.claims)...)))
		var got strings.Builder
		for _, v := range explain.Decision(a, 1, 0).Refusals {
			fmt.Fprintf(&got, "%s: %s\n", v.Node, strings.TrimSpace(v.Shortage+" "+v.Hint))
		}
		if got.String() != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.claims, got.String(), tt.want)
		}
	}
}

// TestCostsNothing: a pod without claims has nothing to do with any of this.
func TestCostsNothing(t *testing.T) {
	w := newWorld(t)
	pod := state.NewPodInfo(schedtest.Pod("p"))
	c := &framework.CycleState{}
	if n := testing.AllocsPerRun(100, func() {
		if f, st := w.plugin.PreFilter(c, pod, nil); f.Filter != nil || st != nil || w.plugin.PreEnqueue(pod) != nil ||
			w.plugin.PreBindPreFlight(c, pod, "") {
			t.Fatal("it has something to say")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
