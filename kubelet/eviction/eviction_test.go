// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/api/apitest"
)

const gi = 1 << 30

func TestThresholds(t *testing.T) {
	tests := map[string]struct {
		cfg  Config
		want string // of the error; empty: none
		n    int
	}{
		"defaults": {Config{}, "", 5},
		"own":      {Config{Hard: "memory.available<1Gi, pid.available<10%"}, "", 2},
		"off":      {Config{Hard: "memory.available<0%,nodefs.available<100%"}, "", 0},
		"soft":     {Config{Soft: "memory.available<1Gi", SoftGrace: "memory.available=1m"}, "", 6},
		"reclaim":  {Config{MinimumReclaim: "nodefs.available=1Gi,imagefs.available=5%"}, "", 5},
		"soft without grace": {Config{Soft: "memory.available<1Gi"}, "grace period must be specified for the soft " +
			"eviction threshold memory.available", 0},
		"unknown":      {Config{Hard: "disk.free<1Gi"}, "unsupported eviction signal disk.free", 0},
		"no sign":      {Config{Hard: "memory.available=1Gi"}, "is not of the form SIGNAL<VALUE", 0},
		"twice":        {Config{Hard: "memory.available<1Gi,memory.available<2Gi"}, "given twice", 0},
		"percentage":   {Config{Hard: "memory.available<101%"}, "not a percentage", 0},
		"not a number": {Config{Hard: "memory.available<NaN%"}, "not a percentage", 0},
		"zero":         {Config{Hard: "memory.available<0"}, "must be positive", 0},
		"negative":     {Config{Hard: "memory.available<-1"}, "negative", 0},
		"no quantity":  {Config{Hard: "memory.available<much"}, "much", 0},
		"grace not positive": {
			Config{Soft: "memory.available<1Gi", SoftGrace: "memory.available=-1s"}, "not a positive duration", 0,
		},
		"negative transition": {Config{Transition: -1}, "must not be negative", 0},
	}
	for name, tt := range tests {
		got, err := tt.cfg.Thresholds()
		if tt.want == "" && (err != nil || len(got) != tt.n) ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %+v: got %v, %v; want %d thresholds, error with %q", name, tt.cfg, got, err, tt.n, tt.want)
		}
	}
}

func FuzzThresholds(f *testing.F) {
	f.Add(DefaultHard, "memory.available<1Gi", "memory.available=1m")
	f.Add("nodefs.available<10%", "", "")
	f.Add("pid.available<1e3,", "imagefs.inodesFree<1.5%", "imagefs.inodesFree=1h")
	f.Add("memory.available<0.5", "<", "=")
	f.Fuzz(func(t *testing.T, hard, soft, grace string) {
		all, err := Config{Hard: hard, Soft: soft, SoftGrace: grace}.Thresholds()
		if err != nil {
			return
		}
		for _, th := range all {
			if q := th.Value.Resolve(resource.NewQuantity(100*gi, resource.BinarySI)); q.Sign() < 0 {
				t.Errorf("%q %q: threshold %+v is %v", hard, soft, th, q)
			}
		}
	})
}

func memory(available int64) Observations {
	return Observations{MemoryAvailable: {
		resource.NewQuantity(available, resource.BinarySI), resource.NewQuantity(10*gi, resource.BinarySI),
	}}
}

// TestNext follows one node through time.
func TestNext(t *testing.T) {
	cfg := Config{
		Hard:           "memory.available<1Gi,nodefs.available<10%",
		Soft:           "memory.available<2Gi",
		SoftGrace:      "memory.available=1m",
		MinimumReclaim: "memory.available=500Mi",
	}
	thresholds, err := cfg.Thresholds()
	if err != nil {
		t.Fatal(err)
	}
	var state State
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pressure := []corev1.NodeConditionType{corev1.NodeMemoryPressure}
	for _, step := range []struct {
		at      time.Duration
		figures Observations
		conds   []corev1.NodeConditionType
		starved []time.Duration // their graces
		why     string
	}{
		{0, memory(5 * gi), nil, nil, "enough"},
		{
			10 * time.Second, memory(3 * gi / 2), pressure, nil,
			"below the soft threshold: a condition, nothing is ended yet",
		},
		{60 * time.Second, memory(3 * gi / 2), pressure, nil, "50 s later not yet"},
		{70 * time.Second, memory(3 * gi / 2), pressure, []time.Duration{time.Minute}, "60 s later"},
		{
			80 * time.Second, memory(gi / 2), pressure,
			[]time.Duration{0, time.Minute},
			"below the hard threshold: at once",
		},
		{
			90 * time.Second, memory(5 * gi / 4), pressure,
			[]time.Duration{0, time.Minute},
			"above the hard one, not by the minimum to reclaim",
		},
		{
			100 * time.Second, memory(9 * gi / 4), pressure,
			[]time.Duration{time.Minute},
			"above the soft one, not by the minimum to reclaim",
		},
		{110 * time.Second, memory(3 * gi), pressure, nil, "resolved: the condition stays"},
		{399 * time.Second, memory(3 * gi), pressure, nil, "not yet 5 minutes after it was last met"},
		{400 * time.Second, memory(3 * gi), nil, nil, "5 minutes after it was last met"},
		{410 * time.Second, memory(3 * gi / 2), pressure, nil, "the grace period starts over"},
		{420 * time.Second, Observations{}, pressure, nil, "nothing could be measured"},
		{
			430 * time.Second,
			Observations{
				NodeFsAvailable: {
					resource.NewQuantity(9, resource.BinarySI), resource.NewQuantity(100, resource.BinarySI),
				},
				MemoryAvailable: memory(gi / 2)[MemoryAvailable],
			},
			[]corev1.NodeConditionType{corev1.NodeDiskPressure, corev1.NodeMemoryPressure},
			[]time.Duration{0, 0},
			"memory before disk",
		},
	} {
		var out Outcome
		state, out = state.Next(thresholds, step.figures, 5*time.Minute, begin.Add(step.at))
		var graces []time.Duration
		for _, th := range out.Met {
			graces = append(graces, th.Grace)
		}
		if !slices.Equal(out.Conditions, step.conds) || !slices.Equal(graces, step.starved) {
			t.Errorf("%v (%s): got %v, starved %v; want %v, %v", step.at, step.why, out.Conditions, out.Met,
				step.conds, step.starved)
		}
		if len(out.Met) > 0 && step.at > 0 && step.figures[NodeFsAvailable].Available != nil &&
			out.Met[0].Signal != MemoryAvailable {
			t.Errorf("%v: %s comes first, want memory", step.at, out.Met[0].Signal)
		}
	}
}

// pod requests memory, has a priority, and as many bytes of limits as given.
func pod(name string, request string, priority int32) *corev1.Pod {
	return apitest.Pod(name, apitest.Containers("c"), apitest.Requests("memory", request, "ephemeral-storage", request),
		func(p *corev1.Pod) { p.Spec.Priority = &priority })
}

func TestRank(t *testing.T) {
	mem := func(n int64) Usage { return Usage{Memory: &n, Processes: &n} }
	disk := func(rootfs, logs, volume int64) Usage {
		return Usage{
			Containers: []ContainerUsage{{Name: "c", Rootfs: &Disk{rootfs, 1}, Logs: &Disk{logs, 2}}},
			Volumes:    map[string]Disk{"v": {volume, volume}},
		}
	}
	withVolume := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		return p
	}
	tests := map[string]struct {
		signal Signal
		split  bool
		pods   []*corev1.Pod
		usage  Usages
		want   string
	}{
		"over its request before priority": {
			MemoryAvailable, false,
			[]*corev1.Pod{pod("within", "1Gi", 0), pod("over", "100", 1000)},
			Usages{
				"within": mem(gi - 1),
				"over":   mem(200),
			},
			"over within",
		},
		"lower priority": {
			MemoryAvailable, false,
			[]*corev1.Pod{pod("high", "", 10), pod("low", "", 1)},
			Usages{"high": mem(900), "low": mem(1)},
			"low high",
		},
		"more beyond its request": {
			MemoryAvailable, false,
			[]*corev1.Pod{pod("a", "1000", 0), pod("b", "10", 0)},
			Usages{"a": mem(1500), "b": mem(600)},
			"b a",
		},
		"unknown first": {
			MemoryAvailable, false,
			[]*corev1.Pod{pod("a", "", 0), pod("b", "", 5)},
			Usages{"a": mem(1500)},
			"b a",
		},
		"nothing known: priority": {
			MemoryAvailable, false,
			[]*corev1.Pod{pod("a", "", 5), pod("b", "", 0)},
			nil, "b a",
		},
		"process ids": {
			PIDAvailable, false,
			[]*corev1.Pod{pod("a", "", 5), pod("b", "", 0), pod("c", "", 0)},
			Usages{
				"a": mem(900),
				"b": mem(5),
				"c": mem(50),
			},
			"c b a",
		},
		"all of the disk": {
			NodeFsAvailable, false,
			[]*corev1.Pod{pod("root", "", 0), withVolume(pod("volume", "", 0))},
			Usages{
				"root":   disk(100, 100, 0),
				"volume": disk(0, 0, 300),
			},
			"volume root",
		},
		"node's disk without layers": {
			NodeFsAvailable, true,
			[]*corev1.Pod{pod("root", "", 0), pod("logs", "", 0)},
			Usages{
				"root": disk(900, 1, 0),
				"logs": disk(0, 100, 0),
			},
			"logs root",
		},
		"images' disk with layers alone": {
			ImageFsAvailable, true,
			[]*corev1.Pod{pod("logs", "", 0), pod("root", "", 0)},
			Usages{
				"root": disk(9, 0, 0),
				"logs": disk(1, 100, 0),
			},
			"root logs",
		},
		"inodes": {
			NodeFsInodesFree, false,
			[]*corev1.Pod{pod("few", "", 0), withVolume(pod("many", "", 0))},
			Usages{
				"few":  disk(gi, 0, 0),
				"many": disk(0, 0, 50),
			},
			"many few",
		},
	}
	for name, tt := range tests {
		Rank(tt.signal, tt.split, tt.pods, tt.usage)
		var got []string
		for _, p := range tt.pods {
			got = append(got, p.Name)
		}
		if g := strings.Join(got, " "); g != tt.want {
			t.Errorf("%s: got %s, want %s", name, g, tt.want)
		}
	}
}

func TestMessage(t *testing.T) {
	p := pod("web", "100Mi", 0)
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
		Name:      "small",
		Resources: p.Spec.Containers[0].Resources,
	})
	thresholds, err := Config{Hard: "memory.available<1Gi,nodefs.available<10%,pid.available<5%"}.Thresholds()
	if err != nil {
		t.Fatal(err)
	}
	of := func(s Signal) Threshold {
		return thresholds[slices.IndexFunc(thresholds, func(t Threshold) bool { return t.Signal == s })]
	}
	observations := memory(gi / 2)
	observations[NodeFsAvailable] = Observation{
		resource.NewQuantity(5*gi, resource.BinarySI), resource.NewQuantity(100*gi, resource.BinarySI),
	}
	observations[PIDAvailable] = Observation{
		resource.NewQuantity(100, resource.DecimalSI), resource.NewQuantity(32768, resource.DecimalSI),
	}
	usages := Usages{"web": {Containers: []ContainerUsage{
		{Name: "c", Memory: new(int64(200 << 20)), Rootfs: &Disk{300 << 20, 1}, Logs: &Disk{1 << 20, 1}},
		{Name: "small", Memory: new(int64(1 << 20)), Rootfs: &Disk{1, 1}, Logs: &Disk{1, 1}},
		{Name: "unknown", Memory: new(int64(gi))},
	}}}
	for signal, want := range map[Signal]string{
		MemoryAvailable: "The node was low on resource: memory. Threshold quantity: 1Gi, available: 512Mi. " +
			"Container c was using 200Mi, request is 100Mi, has larger consumption of memory. ",
		// a percentage has the precision that it has in Kubernetes
		NodeFsAvailable: "The node was low on resource: ephemeral-storage. Threshold quantity: 10737418400, " +
			"available: 5Gi. " +
			"Container c was using 301Mi, request is 100Mi, has larger consumption of ephemeral-storage. ",
		PIDAvailable: "The node was low on resource: pids. Threshold quantity: 1638, available: 100. ",
	} {
		got, notes := Message(of(signal), thresholds, observations, p, usages)
		if got != want {
			t.Errorf("%s: got %q\nwant %q", signal, got, want)
		}
		if signal == MemoryAvailable && (notes[keyContainers] != "c" || notes[keyUsage] != "200Mi" ||
			notes[keyStarved] != "memory") {
			t.Errorf("annotations: %v", notes)
		}
	}
	p.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("150Mi")},
	}
	usages["web"] = Usage{Memory: new(int64(200 << 20))}
	want := "The node was low on resource: memory. Threshold quantity: 1Gi, available: 512Mi. Pod web was using " +
		"200Mi, request is 150Mi, has larger consumption of memory. "
	if got, _ := Message(of(MemoryAvailable), thresholds, observations, p, usages); got != want {
		t.Errorf("pod's own request: got %q\nwant %q", got, want)
	}
}

func TestOverLimit(t *testing.T) {
	limited := func(storage, volume string, medium corev1.StorageMedium) *corev1.Pod {
		p := pod("web", "", 0)
		e := &corev1.EmptyDirVolumeSource{Medium: medium}
		if volume != "" {
			e.SizeLimit = new(resource.MustParse(volume))
		}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: e}}}
		if storage != "" {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceEphemeralStorage: resource.MustParse(storage),
			}
		}
		return p
	}
	use := func(rootfs, logs, volume int64) Usage {
		return Usage{
			Containers: []ContainerUsage{
				{Name: "c", Rootfs: &Disk{Bytes: rootfs << 20}, Logs: &Disk{Bytes: logs << 20}},
			},
			Volumes: map[string]Disk{"v": {Bytes: volume << 20}},
		}
	}
	disk := corev1.StorageMediumDefault
	ram := corev1.StorageMediumMemory
	two := limited("10Mi", "", disk)
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{
		Name: "d",
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("100Mi")},
		},
	})
	sidecar := two.DeepCopy()
	sidecar.Spec.InitContainers = []corev1.Container{{
		Name:          "s",
		Resources:     *sidecar.Spec.Containers[0].Resources.DeepCopy(),
		RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
	}}
	sidecarUse := Usage{Containers: []ContainerUsage{{Name: "s", Rootfs: &Disk{Bytes: 11 << 20}}}}
	ended := sidecar.DeepCopy()
	ended.Spec.InitContainers[0].RestartPolicy = nil
	tests := map[string]struct {
		p     *corev1.Pod
		u     Usage
		split bool
		want  string
	}{
		"volume": {
			limited("", "10Mi", disk), use(0, 0, 11), false, `Usage of EmptyDir volume "v" exceeds the limit "10Mi". `,
		},
		"volume in memory": {
			limited("", "10Mi", ram), use(0, 0, 11), false, `Usage of EmptyDir volume "v" exceeds the limit "10Mi". `,
		},
		"volume at its size": {limited("", "10Mi", disk), use(0, 0, 10), false, ""},
		"no limit":           {limited("", "", disk), use(1000, 1000, 1000), false, ""},
		"zero is no limit":   {limited("", "0", disk), use(0, 0, 11), false, ""},
		"layer": {limited("10Mi", "", disk), use(11, 0, 0), false, "Pod ephemeral local storage usage " +
			"exceeds the total limit of containers 10Mi. "},
		"layer, logs, volume": {
			limited("10Mi", "", disk), use(4, 4, 4), false,
			"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
		},
		"memory is no storage": {limited("10Mi", "", ram), use(4, 4, 400), false, ""},
		"one of two": {
			two, use(6, 5, 0), false, `Container c exceeded its local ephemeral storage limit "10Mi". `,
		},
		"one of two, split":         {two, use(20, 5, 0), true, ""},
		"its volumes are the pod's": {two, use(1, 1, 50), false, ""},
		"a sidecar of two": {
			sidecar, sidecarUse, false, `Container s exceeded its local ephemeral storage limit "10Mi". `,
		},
		"an init container that has ended, of two": {ended, sidecarUse, false, ""},
	}
	for name, tt := range tests {
		if _, got := OverLimit(tt.p, tt.u, tt.split); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
		if want := tt.want != "" || strings.HasPrefix(name, "volume at") || strings.Contains(name, "two") ||
			name == "its volumes are the pod's" ||
			name == "memory is no storage"; HasLimits(tt.p) != want {
			t.Errorf("%s: Limited is %t", name, !want)
		}
	}
}

func TestRefuse(t *testing.T) {
	tolerant := pod("t", "", 0)
	tolerant.Spec.Tolerations = []corev1.Toleration{{
		Key:      corev1.TaintNodeMemoryPressure,
		Operator: corev1.TolerationOpExists,
		Effect:   corev1.TaintEffectNoSchedule,
	}}
	all := pod("all", "", 0)
	all.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	other := pod("o", "", 0)
	other.Spec.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists},
	}
	mem := corev1.NodeMemoryPressure
	disk := corev1.NodeDiskPressure
	tests := map[string]struct {
		conds    []corev1.NodeConditionType
		p        *corev1.Pod
		critical bool
		qos      corev1.PodQOSClass
		want     string
	}{
		"no pressure": {nil, other, false, corev1.PodQOSBestEffort, ""},
		"best effort": {
			[]corev1.NodeConditionType{mem},
			other, false, corev1.PodQOSBestEffort,
			"The node had condition: [MemoryPressure]. ",
		},
		"burstable": {[]corev1.NodeConditionType{mem}, other, false, corev1.PodQOSBurstable, ""},
		"best effort that tolerates": {
			[]corev1.NodeConditionType{mem}, tolerant, false, corev1.PodQOSBestEffort, "",
		},
		"best effort tolerates all": {[]corev1.NodeConditionType{mem}, all, false, corev1.PodQOSBestEffort, ""},
		"critical":                  {[]corev1.NodeConditionType{disk}, other, true, corev1.PodQOSBestEffort, ""},
		"disk": {
			[]corev1.NodeConditionType{disk},
			tolerant, false, corev1.PodQOSGuaranteed,
			"The node had condition: [DiskPressure]. ",
		},
		"both, whatever the pod asks for": {
			[]corev1.NodeConditionType{disk, mem},
			all, false, corev1.PodQOSGuaranteed,
			"The node had condition: [DiskPressure MemoryPressure]. ",
		},
	}
	for name, tt := range tests {
		if got := Refuse(tt.conds, tt.p, tt.critical, tt.qos); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
