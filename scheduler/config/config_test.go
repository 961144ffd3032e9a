// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"testing"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func read(t *testing.T, body string) *Configuration {
	t.Helper()
	c, err := Read("f", []byte(head+body), []string{"Mine"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWrong: each error is reported with its line and field. The body begins in line 3.
func TestWrong(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"unknown field", "parallelism: 3\nnoSuch: 1\n", "f:4: noSuch: unknown field"},
		{
			"deep", "profiles:\n- schedulerName: a\n  plugins:\n    score:\n      enable: []\n",
			"f:7: profiles[0].plugins.score.enable: unknown field",
		},
		{"twice", "parallelism: 3\nparallelism: 4\n", "f:4: parallelism: duplicate field"},
		{"type", "extenders: []\nparallelism: many\n", "f:4: parallelism: must be int32, not string"},
		{"duration", "extenders:\n- urlPrefix: http://x\n  httpTimeout: soon\n", `f:5: time: invalid duration "soon"`},
		{
			"range", "percentageOfNodesToScore: 101\n",
			"f:3: percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
		},
		{
			"backoff", "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2\n",
			"f:4: podMaxBackoffSeconds: Invalid value: 2: must be greater than or equal to PodInitialBackoffSeconds",
		},
		{"no name", "profiles:\n- schedulerName: a\n- plugins: {}\n", "f:5: profiles[1].schedulerName: Required value"},
		{
			"name twice", "profiles:\n- schedulerName: a\n- schedulerName: a\n",
			`f:5: profiles[1].schedulerName: Duplicate value: "a"`,
		},
		{
			"no such plugin", "profiles:\n- plugins:\n    filter:\n      enabled:\n      - name: Mine\n      - name: " +
				"Yours\n", `f:8: profiles[0].plugins.filter.enabled[1].name: Not found: "Yours"`,
		},
		{
			"two sorts", "profiles:\n- plugins:\n    queueSort:\n      enabled: [{name: Mine}, {name: " +
				"PrioritySort}]\n", "f:6: profiles[0].plugins.queueSort.enabled: Invalid value: 2: only one queue " +
				"sort plugin can be enabled",
		},
		{
			"args field", "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategi: " +
				"{}\n", "f:7: profiles[0].pluginConfig[0].args.scoringStrategi: unknown field",
		},
		{
			"args type", "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      " +
				"ignorePreferredTermsOfExistingPods: true\n      hardPodAffinityWeight: much\n",
			"f:8: profiles[0].pluginConfig[0].args.hardPodAffinityWeight: must be int32, not string",
		},
		{
			"args kind", "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      kind: " +
				"NodeAffinityArgs\n", "f:7: profiles[0].pluginConfig[0].args.kind: must be InterPodAffinityArgs, not " +
				"NodeAffinityArgs",
		},
		{
			"args value", "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      " +
				"hardPodAffinityWeight: 101\n", "f:7: profiles[0].pluginConfig[0].args.hardPodAffinityWeight: " +
				"Invalid value: 101: not in valid range [0, 100]",
		},
		{
			"shape", "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n    " +
				"    type: RequestedToCapacityRatio\n        requestedToCapacityRatio:\n          shape:\n          " +
				"- {utilization: 50, score: 1}\n          - {utilization: 0, score: 11}\n",
			"f:12: profiles[0].pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio.shape[1].utilization: " +
				"Invalid value: 0: values must be sorted in increasing order\n" +
				"f:12: profiles[0].pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio.shape[1].score: " +
				"Invalid " +
				"value: 11: not in valid range [0, 10]",
		},
		{
			"storage shape", "profiles:\n- pluginConfig:\n  - name: VolumeBinding\n    args:\n      shape:\n      - " +
				"{utilization: 0, score: 11}\n", "f:8: profiles[0].pluginConfig[0].args.shape[0].score: Invalid " +
				"value: 11: not in valid range [0, 10]",
		},
		{
			"selector", "profiles:\n- pluginConfig:\n  - name: PodTopologySpread\n    args:\n      defaultingType: " +
				"List\n      defaultConstraints:\n      - {maxSkew: 1, topologyKey: a, whenUnsatisfiable: " +
				"DoNotSchedule, labelSelector: {}}\n",
			"f:9: profiles[0].pluginConfig[0].args.defaultConstraints[0].labelSelector: Forbidden: constraint must " +
				"not define a selector, as they deduced for each pod",
		},
		{
			"extender", "extenders:\n- urlPrefix: http://x\n  prioritizeVerb: p\n- urlPrefix: ftp://x\n  weight: " +
				"3000000000\n", "f:4: extenders[0].weight: Invalid value: 0: must have a positive weight applied to " +
				"it\n" +
				"f:6: extenders[1].urlPrefix: Invalid value: \"ftp://x\": must be a URL with a host, http or " +
				"https\nf:7: " +
				"extenders[1].weight: Invalid value: 3000000000: must not be greater than 2147483647",
		},
		{
			"two binders", "extenders:\n- {urlPrefix: http://x, bindVerb: b}\n- {urlPrefix: http://y, bindVerb: b}\n",
			"f:3: extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can implement " +
				"bind",
		},
		{
			"managed", "extenders:\n- urlPrefix: http://x\n  managedResources:\n  - name: x.io/gpu\n  - name: " +
				"x.io/gpu\n  - name: cpu\n", "f:7: extenders[0].managedResources[1].name: Invalid value: " +
				"\"x.io/gpu\": duplicate extender managed resource name\n" +
				"f:8: extenders[0].managedResources[2].name: Invalid value: \"cpu\": is an invalid extended resource " +
				"name",
		},
		{
			"extender's certificates", "extenders:\n- urlPrefix: https://x\n  tlsConfig:\n    insecure: true\n    " +
				"caFile: a\n    keyFile: k\n", "f:5: extenders[0].tlsConfig: Invalid value: a client certificate and " +
				"its key must be set together\n" +
				"f:6: extenders[0].tlsConfig.insecure: Invalid value: true: must not be set together with a " +
				"certificate " +
				"authority",
		},
		{"alias", "profiles: &a []\nextenders: *a\n", "f:4: anchors and aliases are not supported"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read("f", []byte(head+tt.body), []string{"Mine"})
			if got := fmt.Sprint(err); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	for body, want := range map[string]string{
		"":                      "f: is empty, it must have a KubeSchedulerConfiguration",
		"a: [":                  "f:1: did not find expected node content",
		head + "profiles: [}\n": "f:3: did not find expected node content",
		"- a\n":                 "f:1: must be a KubeSchedulerConfiguration",
		head +
			"profiles:\n- plugins: {queueSort: {disabled: [{name: '*'}]}, bind: {disabled: [{name: '*'}]}}\n": "f:4: profiles[0].plugins.queueSort.enabled: Required value: a profile has a plugin here\n" +
			"f:4: profiles[0].plugins.bind.enabled: Required value: a profile has a plugin here",
		head +
			"profiles:\n- plugins:\n    score:\n      enabled:\n      - name: ImageLocality\n        weight: -3\n": "f:8: profiles[0].plugins.score.enabled[0].weight: Invalid value: -3: must not be negative",
		head + "leaderElection: {leaseDuration: 5}\nextenders:\n- urlPrefix: http://x\n  httpTimeout: 1s\n- " +
			"urlPrefix: http://y\n  httpTimeout: 3\n": "f:3: leaderElection.leaseDuration: must be string, not " +
			"number\n" +
			"f:8: extenders[1].httpTimeout: must be string, not number",
		"apiVersion: v1\nkind: KubeSchedulerConfiguration\n": `f:1: apiVersion: must be kubescheduler.config.k8s.io/v1, not "v1"`,
	} {
		if _, err := Read("f", []byte(body), nil); fmt.Sprint(err) != want {
			t.Errorf("%q: got %v, want %s", body, err, want)
		}
	}
}

// TestAllMistakes: mistakes of every kind are reported at once, with one error per mistake, in the order of their
// lines.
func TestAllMistakes(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"each kind", `apiVersion: v1
kind: KubeSchedulerConfiguration
noSuch: 1
parallelism: many
percentageOfNodesToScore: 101
podMaxBackoffSeconds: [1]
extenders:
- urlPrefix: http://x
  httpTimeout: soon
- urlPrefix: ftp://x
profiles:
- schedulerName: {}
  pluginConfig:
  - name: InterPodAffinity
    args:
      hardPodAffinityWeight: much
      ignorePreferredTermsOfExistingPods: 7
      noSuch: 2
  - name: NodeResourcesFit
    args: {ignoredResourceGroups: [a/b]}
  - name: NotThere
`, `f:1: apiVersion: must be kubescheduler.config.k8s.io/v1, not "v1"
f:3: noSuch: unknown field
f:4: parallelism: must be int32, not string
f:5: percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]
f:6: podMaxBackoffSeconds: must be int64, not array
f:9: time: invalid duration "soon"
f:10: extenders[1].urlPrefix: Invalid value: "ftp://x": must be a URL with a host, http or https
f:12: profiles.schedulerName: must be string, not object
f:16: profiles[0].pluginConfig[0].args.hardPodAffinityWeight: must be int32, not string
f:17: profiles[0].pluginConfig[0].args.ignorePreferredTermsOfExistingPods: must be bool, not number
f:18: profiles[0].pluginConfig[0].args.noSuch: unknown field
f:20: profiles[0].pluginConfig[1].args.ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/'
f:21: profiles[0].pluginConfig[2].name: Not found: "NotThere"`},
		{
			"what JSON cannot express",
			head + "profiles: &a []\nextenders: *a\n? [x]\n: 1\nparallelism: .nan\npercentageOfNodesToScore: 101\n",
			"f:4: anchors and aliases are not supported\nf:5: the key must be a plain string\nf:7: NaN is not " +
				"supported\n" +
				"f:8: percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
		},
		{
			"a file of another kind", "apiVersion: v1\nkind: Pod\nspec: {}\n",
			"f:1: apiVersion: must be kubescheduler.config.k8s.io/v1, not \"v1\"\nf:2: kind: must be " +
				"KubeSchedulerConfiguration, not \"Pod\"",
		},
		{"many", head + "profiles:\n" + strings.Repeat("- percentageOfNodesToScore: x\n", 30), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read("f", []byte(tt.file), nil)
			if got := fmt.Sprint(err); tt.want != "" && got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
			if n := strings.Count(fmt.Sprint(err), "must be int32"); tt.want == "" && n != maxUndecodable {
				t.Errorf("%d values that cannot be decoded are reported, want %d", n, maxUndecodable)
			}
		})
	}
}

func at(p Profile, point framework.Point) string {
	var out []string
	for _, pl := range p.Points[point] {
		if pl.Weight != 1 {
			out = append(out, fmt.Sprintf("%s=%d", pl.Name, pl.Weight))
		} else {
			out = append(out, pl.Name)
		}
	}
	return strings.Join(out, " ")
}

// TestProfiles: plugins of a point are those of multiPoint that the point also names, then the others of multiPoint,
// then its own.
func TestProfiles(t *testing.T) {
	all := at(Default().Profiles[0], framework.AtFilter)
	if want := "SchedulingGates PrioritySort NodeUnschedulable NodeName TaintToleration=3"; !strings.HasPrefix(all,
		want) {
		t.Errorf("default: %s", all)
	}
	const few = "profiles:\n- plugins:\n    multiPoint: {disabled: [{name: '*'}], enabled: [{name: " +
		"NodeResourcesFit}, {name: ImageLocality, weight: 7}, {name: Mine, weight: 2}]}\n"
	for _, tt := range []struct {
		name, body string
		point      framework.Point
		want       string
	}{
		{"multiPoint", few, framework.AtScore, "NodeResourcesFit ImageLocality=7 Mine=2"},
		{
			"another weight, and first", few + "    score: {enabled: [{name: Mine, weight: 9}]}\n", framework.AtScore,
			"Mine=9 NodeResourcesFit ImageLocality=7",
		},
		{
			"one disabled", few + "    score: {disabled: [{name: Mine}]}\n", framework.AtScore,
			"NodeResourcesFit ImageLocality=7",
		},
		{
			"elsewhere not", few + "    score: {disabled: [{name: Mine}]}\n", framework.AtFilter,
			"NodeResourcesFit ImageLocality=7 Mine=2",
		},
		{
			"all disabled", few + "    score: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity}]}\n",
			framework.AtScore, "NodeAffinity",
		},
		{
			"by preScore", few + "    preScore: {disabled: [{name: Mine}]}\n", framework.AtScore,
			"NodeResourcesFit ImageLocality=7",
		},
		{
			"absent", few + "    filter: {enabled: [{name: GangScheduling}]}\n", framework.AtFilter,
			"NodeResourcesFit ImageLocality=7 Mine=2",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := at(read(t, tt.body).Profiles[0], tt.point); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
	own := "profiles:\n- plugins:\n    multiPoint: {enabled: [{name: ImageLocality, weight: 7}]}\n"
	if got := at(read(t, own).Profiles[0], framework.AtScore); got != strings.Replace(all, "ImageLocality",
		"ImageLocality=7", 1) {
		t.Errorf("a default plugin with another weight: %s", got)
	}
}

// TestDefaults: fields that are left out have kube-scheduler's defaults.
func TestDefaults(t *testing.T) {
	configuration := read(t, "profiles:\n- schedulerName: a\n  percentageOfNodesToScore: 7\n  pluginConfig:\n  - "+
		"name: "+
		"NodeResourcesFit\n    args:\n      scoringStrategy:\n        type: MostAllocated\n        resources: "+
		"[{name: example.com/gpu}]\n  - name: Mine\n    args: {any: [thing]}\n- schedulerName: b\n")
	fit, ok := configuration.Profiles[0].Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs)
	if !ok || fit.ScoringStrategy.Resources[0].Weight != 1 {
		t.Errorf("fit: %+v", fit)
	}
	if got := fmt.Sprintf("%s", configuration.Profiles[0].Args["Mine"]); got != `{"any":["thing"]}` {
		t.Errorf("args of another plugin: %s", got)
	}
	fit, ok = configuration.Profiles[1].Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs)
	if !ok || fit.ScoringStrategy.Type != configv1.LeastAllocated || len(fit.ScoringStrategy.Resources) != 2 {
		t.Errorf("fit by default: %+v", fit)
	}
	if configuration.Profiles[0].PercentageOfNodesToScore != 7 ||
		configuration.Profiles[1].PercentageOfNodesToScore != 0 ||
		configuration.InitialBackoff().Seconds() != 1 || configuration.MaxBackoff().Seconds() != 10 ||
		*configuration.Parallelism != 16 || !*configuration.LeaderElection.LeaderElect ||
		configuration.LeaderElection.ResourceName != "kube-scheduler" {
		t.Errorf("got %+v", configuration)
	}
	if got := read(t, "profiles:\n- plugins: {multiPoint: {enabled: [{name: GangScheduling}]}}\n").Warnings; len(
		got) != 1 {
		t.Errorf("warnings: %q", got)
	}
}

// TestExtenders: no plugin of any profile counts what an extender manages alone; unsafe settings are reported.
func TestExtenders(t *testing.T) {
	configuration := read(t, "extenders:\n- urlPrefix: https://x\n  enableHTTPS: true\n  managedResources: [{name: "+
		"x.io/gpu, "+
		"ignoredByScheduler: true}, {name: x.io/fpga}]\nprofiles: [{schedulerName: a}, {schedulerName: b}]\n")
	for _, p := range configuration.Profiles {
		if fit, ok := p.Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs); !ok ||
			fmt.Sprint(fit.IgnoredResources) != "[x.io/gpu]" {
			t.Errorf("%s: %+v", p.SchedulerName, fit)
		}
	}
	want := "[extenders[0] has no verb: it is never called extenders[0].enableHTTPS without a certificate authority: " +
		"the server's certificate is not verified]"
	if got := fmt.Sprint(configuration.Warnings); got != want {
		t.Errorf("warnings: %s", got)
	}
	if d := configuration.Extenders[0].HTTPTimeout.Duration; d != defaultExtenderTimeout {
		t.Errorf("timeout: %v", d)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(head + "profiles:\n- pluginConfig:\n  - {name: NodeAffinity, args: {addedAffinity: {}}}\n"))
	f.Add([]byte(head + "parallelism: many\nextenders: [{httpTimeout: soon}]\nprofiles: [{schedulerName: {}, " +
		"pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: 5}}]}]\n"))
	f.Add([]byte("{"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = Read("f", b, nil) // must not panic
	})
}
