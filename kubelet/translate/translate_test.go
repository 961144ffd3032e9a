// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/podinfo"
)

func TestExpand(t *testing.T) {
	get := func(n string) (string, bool) {
		v, ok := map[string]string{"A": "1", "B": "$(A)", "E": ""}[n]
		return v, ok
	}
	for in, want := range map[string]string{
		"":            "",
		"x":           "x",
		"$(A)":        "1",
		"-$(A)-$(A)-": "-1-1-",
		"$(B)":        "$(A)",
		"$(E)":        "",
		"$(X)":        "$(X)",
		"$$(A)":       "$(A)",
		"$$$(A)":      "$1",
		"$":           "$",
		"$$":          "$",
		"$(A":         "$(A",
		"$A":          "$A",
		"a$":          "a$",
		"$(":          "$(",
		"$(A)$":       "1$",
		"$()":         "$()",
	} {
		if got, err := Expand(in, len(want), get); got != want || err != nil {
			t.Errorf("Expand(%q) = %q, %v, want %q", in, got, err, want)
		}
		if got, err := Expand(in, len(want)-1, get); err == nil {
			t.Errorf("Expand(%q) = %q, want an error: it has more than %d bytes", in, got, len(want)-1)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)$$(B)$", "http://$(HOST):$(PORT)/", "$((A))$(", "plain"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		same, err := Expand(s, len(s), func(string) (string, bool) { return "", false })
		if err != nil || !strings.Contains(s, "$") && same != s {
			t.Errorf("Expand(%q) = %q, %v", s, same, err)
		}
	})
}

type sources struct{}

func (sources) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: map[string]string{"k": "cv", "dotted.key": "d"}}, nil
}

func (sources) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name != "s" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	return &corev1.Secret{Data: map[string][]byte{"k": []byte("sv")}}, nil
}

func envPod(vars ...corev1.EnvVar) (*corev1.Pod, *corev1.Container) {
	c := corev1.Container{Name: "c", Env: vars}
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "p",
			Namespace: "ns",
			UID:       "u",
			Labels:    map[string]string{"l": "lv"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}},
	}
	return p, &p.Spec.Containers[0]
}

func field(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func TestEnv(t *testing.T) {
	yes := true
	pod, container := envPod(
		corev1.EnvVar{Name: "PLAIN", Value: "v"},
		corev1.EnvVar{Name: "COMPOSED", Value: "$(PLAIN)/$(P_k)/$(WEB_SERVICE_PORT)/$(LATER)"},
		corev1.EnvVar{Name: "LATER", Value: "x"},
		corev1.EnvVar{Name: "IP", ValueFrom: field("status.podIP")},
		corev1.EnvVar{Name: "LABEL", ValueFrom: field("metadata.labels['l']")},
		corev1.EnvVar{
			Name:      "CPU",
			ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
		},
		corev1.EnvVar{
			Name: "MEM",
			ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{
				Resource: "limits.memory",
				Divisor:  resource.MustParse("1Mi"),
			}},
		},
		corev1.EnvVar{
			Name: "SECRET",
			ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "s"},
				Key:                  "k",
			}},
		},
		corev1.EnvVar{
			Name: "NONE",
			ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "x"},
				Key:                  "k",
				Optional:             &yes,
			}},
		},
	)
	container.EnvFrom = []corev1.EnvFromSource{
		{
			Prefix:       "P_",
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
		},
	}
	svc := []*corev1.Service{
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.9",
				Ports:     []corev1.ServicePort{{Name: "http-x", Port: 80}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "headless"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "None",
				Ports:     []corev1.ServicePort{{Port: 80}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.1",
				Ports:     []corev1.ServicePort{{Name: "https", Port: 443, Protocol: "TCP"}},
			},
		},
	}
	got, err := Env(t.Context(), pod, container, EnvInput{
		Room:        NewRoom(pod),
		Sources:     sources{},
		Services:    svc,
		PodIPs:      []string{"10.0.0.2"},
		Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"PLAIN":                         "v",
		"COMPOSED":                      "v/cv/80/$(LATER)",
		"LATER":                         "x",
		"IP":                            "10.0.0.2",
		"LABEL":                         "lv",
		"CPU":                           "2",
		"MEM":                           "1024",
		"SECRET":                        "sv",
		"P_k":                           "cv",
		"P_dotted.key":                  "d",
		"WEB_SERVICE_HOST":              "10.96.0.9",
		"WEB_SERVICE_PORT":              "80",
		"WEB_SERVICE_PORT_HTTP_X":       "80",
		"WEB_PORT":                      "tcp://10.96.0.9:80",
		"WEB_PORT_80_TCP":               "tcp://10.96.0.9:80",
		"WEB_PORT_80_TCP_PROTO":         "tcp",
		"WEB_PORT_80_TCP_PORT":          "80",
		"WEB_PORT_80_TCP_ADDR":          "10.96.0.9",
		"KUBERNETES_SERVICE_HOST":       "10.96.0.1",
		"KUBERNETES_SERVICE_PORT":       "443",
		"KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT":               "tcp://10.96.0.1:443",
		"KUBERNETES_PORT_443_TCP":       "tcp://10.96.0.1:443",
		"KUBERNETES_PORT_443_TCP_PROTO": "tcp",
		"KUBERNETES_PORT_443_TCP_PORT":  "443",
		"KUBERNETES_PORT_443_TCP_ADDR":  "10.96.0.1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	no := false
	pod.Spec.EnableServiceLinks = &no
	if env, err := ServiceEnv(pod, svc, NewRoom(pod)); err != nil || env["WEB_SERVICE_HOST"] != "" ||
		env["KUBERNETES_SERVICE_HOST"] == "" {
		t.Errorf("without service links: got %v, %v, want the API server's alone", env, err)
	}
	container.Env = []corev1.EnvVar{
		{
			Name: "X",
			ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "none"},
				Key:                  "k",
			}},
		},
	}
	if _, err := Env(t.Context(), pod, container, EnvInput{Sources: sources{}, Room: NewRoom(pod)}); err == nil ||
		err.Error() != `configmap "none" not found` {
		t.Errorf("a missing config map: got %v", err)
	}
}

func TestResources(t *testing.T) {
	list := func(cpu, mem string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if mem != "" {
			l[corev1.ResourceMemory] = resource.MustParse(mem)
		}
		return l
	}
	for name, tt := range map[string]struct {
		req, lim                  corev1.ResourceList
		shares, quota, limit, oom int64
	}{
		"best effort": {nil, nil, 2, 0, 0, 1000},
		"burstable":   {list("250m", "256Mi"), nil, 256, 0, 0, 750},
		"guaranteed":  {list("500m", "64Mi"), list("500m", "64Mi"), 512, 50000, 64 << 20, -997},
		"limit only":  {nil, list("1", ""), 1024, 100000, 0, 999},
		"tiny":        {list("1m", ""), list("1m", ""), 2, 1000, 0, 999},
	} {
		p := &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "c", Resources: corev1.ResourceRequirements{Requests: tt.req, Limits: tt.lim}},
			}},
		}
		r := Resources(p, &p.Spec.Containers[0], Machine{Memory: 1 << 30})
		if r.CpuShares != tt.shares || r.CpuQuota != tt.quota || r.MemoryLimitInBytes != tt.limit ||
			r.OomScoreAdj != tt.oom {
			t.Errorf("%s: got shares %d quota %d memory %d oom %d, want %d %d %d %d", name, r.CpuShares, r.CpuQuota,
				r.MemoryLimitInBytes, r.OomScoreAdj, tt.shares, tt.quota, tt.limit, tt.oom)
		}
	}
}

// TestHostnameOverride: a pod's own host name may be any domain name, whatever its name, hostname and subdomain are,
// also in the host's network.
func TestHostnameOverride(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       corev1.PodSpec{Hostname: "h", Subdomain: "sub"},
	}
	in := SandboxInput{NodeHostname: "node", Domain: "cluster.local"}
	for _, c := range []struct {
		override    *string
		hostNetwork bool
		want        string
	}{
		{nil, false, "h"},
		{nil, true, "node"},
		{new("db.example.com"), false, "db.example.com"},
		{new("db.example.com"), true, "db.example.com"},
	} {
		pod.Spec.HostnameOverride = c.override
		pod.Spec.HostNetwork = c.hostNetwork
		cfg, err := Sandbox(pod, in)
		if err != nil || cfg.GetHostname() != c.want {
			t.Errorf("override %v, host network %v: got %q, %v, want %q", c.override, c.hostNetwork, cfg.GetHostname(),
				err, c.want)
		}
	}
	if host, domain := Hostname(pod, "cluster.local"); host != "db.example.com" || domain != "" {
		t.Errorf("got %q in %q, want db.example.com alone", host, domain)
	}
}

func TestHosts(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
		Spec: corev1.PodSpec{
			Subdomain:   "sub",
			HostAliases: []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}},
		},
	}
	got := string(Hosts(pod, []string{"10.0.0.2"}, "c.local", nil))
	for _, want := range []string{
		"# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n", "10.0.0.2\tp.sub.ns.svc.c.local\tp\n",
		"# Entries added by HostAliases.\n1.2.3.4\ta\tb\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("hosts file %q lacks %q", got, want)
		}
	}
	pod.Spec.HostNetwork = true
	if got := string(Hosts(pod, nil, "c.local", []byte("127.0.0.1 node\n"))); !strings.HasPrefix(got,
		"# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n") {
		t.Errorf("host network: got %q", got)
	}
}

func TestRunAsNonRoot(t *testing.T) {
	yes := true
	zero := int64(0)
	user := int64(1000)
	for name, tt := range map[string]struct {
		uid *int64
		img *runtimeapi.Image
		bad bool
	}{
		"root asked for":          {&zero, nil, true},
		"a user asked for":        {&user, nil, false},
		"image with root":         {nil, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{}}, true},
		"image with a user":       {nil, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 1000}}, false},
		"image with a name":       {nil, &runtimeapi.Image{Username: "app"}, true},
		"image that says nothing": {nil, &runtimeapi.Image{}, true},
	} {
		p := &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "c", SecurityContext: &corev1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: tt.uid}},
			}},
		}
		_, err := Container(p, &p.Spec.Containers[0], ContainerInput{Image: tt.img})
		if (err != nil) != tt.bad {
			t.Errorf("%s: got %v, want error %t", name, err, tt.bad)
		}
	}
}

func TestParseEnvFile(t *testing.T) {
	const invalid = "invalid environment variable format at line "
	for text, want := range map[string]struct {
		values map[string]string
		err    string
	}{
		"# comment\n\n  A='1'\nB='two words' # why\nC='first\nsecond'\nD= 'x'\nA='2'\nE=''\r\n": {
			values: map[string]string{"A": "1", "B": "two words", "C": "first\nsecond", "D": "", "E": ""},
		},
		"A='1'\nB=bare\nC='3'": {
			values: map[string]string{"A": "1"},
			err:    invalid + "2: value must be enclosed in single quotes",
		},
		"A='x\ny'\nB='never\nends": {
			values: map[string]string{"A": "x\ny"},
			err:    invalid + "3: unclosed single quote",
		},
		"A":          {err: invalid + "1: missing '='"},
		"A ='1'":     {err: invalid + "1: whitespace before '=' is not allowed"},
		"='1'":       {err: invalid + "1: empty variable name"},
		"A=\"1\"":    {err: invalid + "1: value must be enclosed in single quotes"},
		"A='1' junk": {err: invalid + "1: unexpected content after closing quote"},
		"A=":         {err: invalid + "1: value must be enclosed in single quotes"},
	} {
		got := parseEnvFile(text)
		if want.values == nil {
			want.values = map[string]string{}
		}
		message := ""
		if got.err != nil {
			message = got.err.Error()
		}
		if d := cmp.Diff(want.values, got.values); d != "" || message != want.err {
			t.Errorf("%q: error %q, want %q; values (-want +got):\n%s", text, message, want.err, d)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A='x\ny'\n")
	f.Add("# a comment\nexport B=\"1\"\nC='2' # more\n")
	f.Add("KEY = value\r\n=\nD\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, value := range parseEnvFile(text).values {
			if strings.Contains(name, "=") || strings.Contains(value, "'") || len(name)+len(value) > len(text) {
				t.Errorf("%q: %q is %q", text, name, value)
			}
		}
	})
}

func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a b\n")
	f.Add("# by hand\noptions ndots:5 timeout:1\nnameserver fe80::1%eth0\n")
	f.Add("domain x\nsearch\nnameserver\n;\n")
	f.Fuzz(func(_ *testing.T, s string) { _, _ = ParseResolvConf(strings.NewReader(s)) })
}

// TestOOMScores: sidecars, priorities, and what a pod requests beyond its containers.
func TestOOMScores(t *testing.T) {
	const node = 1 << 30
	ctr := func(name, memory string) corev1.Container {
		c := corev1.Container{Name: name}
		if memory != "" {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
		return c
	}
	side := func(memory string) corev1.Container {
		c := ctr("side", memory)
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		return c
	}
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want []int64 // init containers first
	}{
		"a small sidecar": {corev1.PodSpec{
			InitContainers: []corev1.Container{side("64Mi"), ctr("init", "64Mi")},
			Containers:     []corev1.Container{ctr("a", "256Mi"), ctr("b", "512Mi")},
		}, []int64{750, 938, 750, 500}},
		"a large sidecar": {corev1.PodSpec{
			InitContainers: []corev1.Container{side("512Mi")},
			Containers:     []corev1.Container{ctr("a", "256Mi")},
		}, []int64{500, 750}},
		"a high priority of one's own": {corev1.PodSpec{
			Priority:   new(int32(2_000_000_000)),
			Containers: []corev1.Container{ctr("a", "256Mi")},
		}, []int64{750}},
		"system-cluster-critical": {corev1.PodSpec{
			Priority:          new(int32(2_000_000_000)),
			PriorityClassName: "system-cluster-critical",
			Containers:        []corev1.Container{ctr("a", "")},
		}, []int64{1000}},
		"system-node-critical": {corev1.PodSpec{
			Priority:          new(int32(2_000_001_000)),
			PriorityClassName: "system-node-critical",
			Containers:        []corev1.Container{ctr("a", "")},
		}, []int64{-997}},
		"requests of the pod": {corev1.PodSpec{
			Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("768Mi"),
			}},
			Containers: []corev1.Container{ctr("a", "256Mi"), ctr("b", "")},
		}, []int64{500, 750}},
	} {
		pod := &corev1.Pod{Spec: tt.spec}
		var got []int64
		for c := range podinfo.All(pod) {
			got = append(got, Resources(pod, c, Machine{Memory: node}).OomScoreAdj)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// TestHugePages: a container has a limit for each size of huge pages: its own one, or that of its pod, else zero.
func TestHugePages(t *testing.T) {
	pages := func(list ...string) corev1.ResourceRequirements {
		limits := corev1.ResourceList{}
		for i := 0; i < len(list); i += 2 {
			limits[corev1.ResourceName(corev1.ResourceHugePagesPrefix+list[i])] = resource.MustParse(list[i+1])
		}
		return corev1.ResourceRequirements{Limits: limits}
	}
	whole := pages("2Mi", "8Mi")
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Resources:  &whole,
		Containers: []corev1.Container{{Resources: pages("2Mi", "4Mi", "64Ki", "128Ki")}, {}},
	}}
	machine := Machine{PageSizes: []string{"1Gi", "2Mi", "64Ki"}}
	for i, want := range []map[string]uint64{
		{"1GB": 0, "2MB": 4 << 20, "64KB": 128 << 10},
		{"1GB": 0, "2MB": 8 << 20, "64KB": 0},
	} {
		got := map[string]uint64{}
		for _, limit := range Resources(pod, &pod.Spec.Containers[i], machine).HugepageLimits {
			got[limit.PageSize] = limit.Limit
		}
		if !maps.Equal(got, want) {
			t.Errorf("container %d: got %v, want %v", i, got, want)
		}
	}
}

// TestGroupKill: where the machine can, a container without memory loses all its processes.
func TestGroupKill(t *testing.T) {
	for _, can := range []bool{false, true} {
		got := Resources(&corev1.Pod{}, &corev1.Container{}, Machine{GroupKill: can}).Unified
		if (got["memory.oom.group"] == "1") != can {
			t.Errorf("the machine can: %v; got %v", can, got)
		}
	}
}

// TestSandboxResources: the pod's own resources count, also where its containers have none.
func TestSandboxResources(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Resources: &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
			Limits: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("1"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			},
		},
		Containers: []corev1.Container{{Name: "a"}},
	}}
	got := PodResources(pod)
	if got.CpuShares != 512 || got.CpuQuota != 100_000 || got.MemoryLimitInBytes != 64<<20 {
		t.Errorf("got %v, want shares 512, quota 100000, memory 64Mi", got)
	}
}
