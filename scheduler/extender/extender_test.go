// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/api/apitest"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// ext is an extender of a configuration, with a time-out that no test reaches by accident.
func ext(url string, change func(*configv1.Extender)) configv1.Extender {
	e := configv1.Extender{URLPrefix: url, HTTPTimeout: metav1.Duration{Duration: time.Minute}}
	if change != nil {
		change(&e)
	}
	return e
}

func filters(e *configv1.Extender) { e.FilterVerb = "filter" }

func set(t *testing.T, in ...configv1.Extender) *Set {
	t.Helper()
	s, err := New(in, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// answers serves what is to be said at each path, and keeps what it was asked.
func answers(t *testing.T, newStatus map[string]string) (url string, asked map[string]string) {
	t.Helper()
	asked = map[string]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v", r.Method, r.Header, err)
		}
		asked[r.URL.Path] = string(b)
		_, _ = io.WriteString(w, newStatus[r.URL.Path])
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

func podAsking(resources ...corev1.ResourceName) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c"}},
		},
	}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
	for _, r := range resources {
		p.Spec.Containers[0].Resources.Limits[r] = resource.MustParse("1")
	}
	return p
}

func nodes(names ...string) (out []*corev1.Node) {
	for _, n := range names {
		out = append(out, apitest.Node(n, apitest.NodeLabels("of", n)))
	}
	return out
}

// refusals writes an advice's refusals down.
func refusals(v *framework.ExtenderResults) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(v.Refused)) {
		st := v.Refused[name]
		out = append(out, fmt.Sprintf("%s %d %s", name, st.Code, st.Error()))
	}
	return strings.Join(out, "; ")
}

func TestFilter(t *testing.T) {
	long := strings.Repeat("\u00e9", 300)
	for _, tt := range []struct {
		name, result string
		cached       bool
		want         string // refusals, or the failure
	}{
		{
			"nodes",
			`{"Nodes":{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]},"FailedNodes":{"c":"too hot"}}`,
			false, "c 0 too hot",
		},
		{
			"names", `{"NodeNames":["b","a","a"],"FailedAndUnresolvableNodes":{"c":"no such card"}}`, true,
			"c 1 no such card",
		},
		{"lower case", `{"nodenames":["a","b"],"failednodes":{"c":"x"}}`, true, "c 0 x"},
		{
			"unresolvable counts first",
			`{"NodeNames":["a","b"],"FailedNodes":{"c":"x"},"FailedAndUnresolvableNodes":{"c":"y"}}`, true, "c 1 y",
		},
		{
			"names are not read where nodes were sent", `{"NodeNames":["a","b"]}`, false,
			"a 1 node(s) left out by extender URL; b 1 node(s) left out by extender URL; c 1 node(s) left out by " +
				"extender URL",
		},
		{"refusals of others", `{"NodeNames":["a","b","c"],"FailedNodes":{"x":"not yours"}}`, true, ""},
		{
			"reason", `{"NodeNames":["a","b"],"FailedNodes":{"c":"two\nlines\u0007` + long + `"}}`, true,
			"c 0 two lines " + strings.Repeat("\u00e9", 121) + "...",
		},
		{
			"error", `{"NodeNames":["a"],"Error":"its\nmind is not made up"}`, true,
			"extender URL: filter: the extender returned an error: its mind is not made up",
		},
		{
			"foreign node", `{"NodeNames":["a","z"],"FailedNodes":{"b":"x"}}`, true,
			`extender URL: filter: the answer has node "z", which was not sent`,
		},
		{
			"garbage", `<html>`, true,
			`extender URL: filter: cannot decode the answer: invalid character '<' looking for beginning of value`,
		},
		{
			"another type", `{"NodeNames":"a"}`, true,
			`extender URL: filter: cannot decode the answer: json: cannot unmarshal string into Go struct field filterResult.NodeNames of type []string`,
		},
		{"nothing", ``, true, `extender URL: filter: cannot decode the answer: unexpected end of JSON input`},
		{
			"giant", `{"NodeNames":["` + strings.Repeat("a", 2<<20) + `"]}`, true,
			`extender URL: filter: the answer is longer than N bytes`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, asked := answers(t, map[string]string{"/sub/filter": tt.result})
			s := set(t, ext(url+"/sub/", func(e *configv1.Extender) {
				filters(e)
				e.NodeCacheCapable = tt.cached
			}))
			v, st := s.FilterAndPrioritize(t.Context(), podAsking(), nodes("a", "b", "c"))
			var got string
			if st != nil {
				if st.Code != framework.Failed {
					t.Errorf("code %d", st.Code)
				}
				got = st.Plugin + ": " + st.Error()
			} else {
				got = refusals(v)
			}
			got = strings.ReplaceAll(got, url+"/sub", "URL")
			if i := strings.Index(got, "longer than "); i > 0 {
				got = got[:i] + "longer than N bytes"
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			want := `"Nodes":null,"NodeNames":["a","b","c"]}`
			if !tt.cached {
				want = `"labels":{"of":"a"}`
			}
			if q := asked["/sub/filter"]; !strings.HasPrefix(q, `{"Pod":{"metadata":{"name":"p"`) ||
				!strings.Contains(q, want) {
				t.Errorf("asked %s", q)
			}
		})
	}
}

// TestManyReasons: an answer has only so many different ones.
func TestManyReasons(t *testing.T) {
	failed := map[string]string{}
	names := []string(nil)
	for i := range 100 {
		names = append(names, fmt.Sprint(i))
		failed[fmt.Sprint(i)] = fmt.Sprint("reason ", i)
	}
	b, err := json.Marshal(map[string]any{"FailedNodes": failed})
	if err != nil {
		t.Fatal(err)
	}
	url, _ := answers(t, map[string]string{"/filter": string(b)})
	v, st := set(t, ext(url, filters)).FilterAndPrioritize(t.Context(), podAsking(), nodes(names...))
	if st != nil {
		t.Fatal(st)
	}
	kinds := map[string]int{}
	for _, st := range v.Refused {
		kinds[st.Error()]++
	}
	if len(v.Refused) != 100 || len(kinds) != maxReasons+1 ||
		kinds["node(s) refused by extender "+url+" for more reasons"] != 100-maxReasons {
		t.Errorf("%d nodes refused for %d reasons: %v", len(v.Refused), len(kinds), kinds)
	}
}

// TestChain: each is asked about what those before it left; who may be ignored comes last, and its failure does not
// count.
func TestChain(t *testing.T) {
	url, asked := answers(t, map[string]string{
		"/one/filter":       `{"NodeNames":["a","b"]}`,
		"/two/filter":       `{"NodeNames":["b"],"FailedNodes":{"a":"full"}}`,
		"/ignorable/filter": `{"Error":"no"}`,
		"/gpu/filter":       `{}`,
	})
	cached := func(e *configv1.Extender) {
		filters(e)
		e.NodeCacheCapable = true
	}
	s := set(t,
		ext(url+"/ignorable", func(e *configv1.Extender) {
			cached(e)
			e.Ignorable = true
		}), ext(url+"/one", cached), ext(url+"/two", cached),
		ext(url+"/gpu", func(e *configv1.Extender) {
			cached(e)
			e.ManagedResources = []configv1.ExtenderManagedResource{{Name: "x.io/gpu"}}
		}),
		ext(url+"/binds", func(e *configv1.Extender) { e.BindVerb = "bind" }))
	results, st := s.FilterAndPrioritize(t.Context(), podAsking("cpu"), nodes("a", "b", "c"))
	if st != nil {
		t.Fatal(st)
	}
	if got := strings.ReplaceAll(refusals(results), url, ""); got != "a 0 full; c 1 node(s) left out by extender /one" {
		t.Error(got)
	}
	for path, want := range map[string]string{
		"/one/filter":       `["a","b","c"]`,
		"/two/filter":       `["a","b"]`,
		"/ignorable/filter": `["b"]`,
	} {
		if !strings.Contains(asked[path], `"NodeNames":`+want) {
			t.Errorf("%s was asked %s", path, asked[path])
		}
	}
	if _, was := asked["/gpu/filter"]; was || len(results.IgnoredErrors) != 1 ||
		strings.ReplaceAll(results.IgnoredErrors[0], url,
			"") != "extender /ignorable: filter: the extender returned an error: no" {
		t.Errorf("ignored %q; %v", results.IgnoredErrors, asked)
	}
	if v, st := s.FilterAndPrioritize(t.Context(), podAsking("x.io/gpu"), nodes("a", "b")); st != nil ||
		len(v.Refused) != 2 {
		t.Errorf("who manages what the pod asks for was not asked: %v %v", v, st)
	}
	only := set(t, ext(url, func(e *configv1.Extender) { e.BindVerb = "b" }), ext(url, func(e *configv1.Extender) {
		e.FilterVerb = "f"
		e.ManagedResources = []configv1.ExtenderManagedResource{{Name: "x.io/gpu"}}
	}))
	if only.Interested(podAsking("cpu")) || !only.Interested(podAsking("cpu", "x.io/gpu")) ||
		(*Set)(nil).Interested(podAsking()) {
		t.Error("which pods are asked about is not known")
	}
}

func TestPrioritize(t *testing.T) {
	for result, want := range map[string]string{
		`[{"Host":"a","Score":10},{"Host":"b","Score":3}]`: "map[a:100 b:30] map[a:10 b:3] 7",
		`[]`:                        "map[] map[] 7",
		`null`:                      "map[] map[] 7",
		`[{"Host":"a","Score":11}]`: `extender : score: node "a" has score 11, which is not in the range 0 to 10: the scores are ignored`,
		`[{"Host":"a","Score":-1}]`: `extender : score: node "a" has score -1, which is not in the range 0 to 10: the scores are ignored`,
		`[{"Host":"z","Score":1}]`:  `extender : score: a score is for node "z", which was not sent: the scores are ignored`,
		`[{"Host":"a","Score":1},{"Host":"a","Score":1}]`: `extender : score: node "a" has two scores: the scores are ignored`,
		`{"Host":"a"}`: `extender : score: cannot decode the answer: json: cannot unmarshal object into Go value of type v1.HostPriorityList`,
	} {
		url, _ := answers(t, map[string]string{"/score": result})
		s := set(t, ext(url, func(e *configv1.Extender) {
			e.PrioritizeVerb = "score"
			e.Weight = 7
		}))
		v, st := s.FilterAndPrioritize(t.Context(), podAsking(), nodes("a", "b"))
		if st != nil {
			t.Fatal(st)
		}
		got := strings.ReplaceAll(strings.Join(v.IgnoredErrors, ""), url, "")
		for _, s := range v.Scores {
			got += fmt.Sprintf("%v %v %d", s.Scores, s.Raw, s.By.Weight)
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", result, got, want)
		}
	}
}

// TestHangs: a call waits no longer than the time-out, and for a while no other call is made.
func TestHangs(t *testing.T) {
	release := make(chan struct{})
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		<-release
	}))
	defer srv.Close()
	defer close(release)
	s := set(t, ext(srv.URL, func(e *configv1.Extender) {
		filters(e)
		e.HTTPTimeout.Duration = 50 * time.Millisecond
	}))
	_, st := s.FilterAndPrioritize(t.Context(), podAsking(), nodes("a"))
	if st == nil || st.Error() != "filter: no answer within 50ms" {
		t.Fatalf("got %v", st)
	}
	r := &s.all[0].cooldown
	r.mu.Lock()
	rests := time.Until(r.until)
	r.until = time.Now().Add(time.Hour)
	r.mu.Unlock()
	if rests > time.Minute {
		t.Errorf("it rests for %v", rests)
	}
	for range 3 {
		if _, st = s.FilterAndPrioritize(t.Context(), podAsking(), nodes("a")); st == nil ||
			!strings.HasPrefix(st.Error(), "filter: no answer within 50ms; it is not called again before ") {
			t.Fatalf("got %v", st)
		}
	}
	if n := calls.Load(); n > 1 { // on a busy machine the first may not have arrived in its 50 ms
		t.Errorf("it was asked %d times", n)
	}
}

// TestStatus: a response that is not an answer is reported, and redirects are not followed.
func TestStatus(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/filter" {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		http.Error(w, "out\nof order"+strings.Repeat(".", 10000), http.StatusInternalServerError)
	}))
	defer srv.Close()
	for verb, want := range map[string]string{
		"filter": "filter: answered 307 Temporary Redirect",
		"broken": "broken: answered 500 Internal Server Error: out of order" + strings.Repeat(".", 244),
	} {
		s := set(t, ext(srv.URL, func(e *configv1.Extender) { e.FilterVerb = verb }))
		if _, st := s.FilterAndPrioritize(t.Context(), podAsking(), nodes("a")); st == nil || st.Error() != want {
			t.Errorf("got %v, want %s", st, want)
		}
		if s.all[0].cooldown.check() != nil {
			t.Error("who answers does not rest")
		}
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"NodeNames":["a"],"Error":%q}`, r.Header.Get("Authorization"))
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	srv.StartTLS()
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	withUser := strings.Replace(srv.URL, "https://", "https://me:secret@", 1)
	for _, tt := range []struct {
		name, url string
		change    func(*configv1.Extender)
		want      string
	}{
		{
			"unknown authority", srv.URL, nil,
			"filter: tls: failed to verify certificate: x509: certificate signed by unknown authority",
		},
		{
			"known", srv.URL, func(e *configv1.Extender) { e.TLSConfig = &configv1.ExtenderTLSConfig{CAData: ca} },
			"<nil>",
		},
		{"unchecked", srv.URL, func(e *configv1.Extender) { e.EnableHTTPS = true }, "<nil>"},
		{"checked", srv.URL, func(e *configv1.Extender) {
			e.EnableHTTPS = true
			e.TLSConfig = &configv1.ExtenderTLSConfig{CAData: ca, ServerName: "other.test"}
		}, "filter: tls: failed to verify certificate: x509: certificate is valid for example.com, *.example.com, " +
			"not other.test"},
		{
			"user", withUser, func(e *configv1.Extender) { e.EnableHTTPS = true },
			"filter: the extender returned an error: Basic bWU6c2VjcmV0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := set(t, ext(tt.url, func(e *configv1.Extender) {
				filters(e)
				e.NodeCacheCapable = true
				if tt.change != nil {
					tt.change(e)
				}
			}))
			_, st := s.FilterAndPrioritize(t.Context(), podAsking(), nodes("a"))
			got := "<nil>"
			if st != nil {
				got = st.Error()
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if name := s.all[0].name; strings.Contains(name, "secret") {
				t.Errorf("its name is %s", name)
			}
		})
	}
	_, err := New([]configv1.Extender{ext(srv.URL, func(e *configv1.Extender) {
		e.TLSConfig = &configv1.ExtenderTLSConfig{CAFile: "/nowhere"}
	})}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "extenders[0]: tlsConfig: ") {
		t.Errorf("got %v", err)
	}
}

// TestPreempt: the extender keeps some of the nodes where preemption helps, with victims of its own choice.
func TestPreempt(t *testing.T) {
	info := func(uid string, priority int32) *state.PodInfo {
		return state.NewPodInfo(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default",
				Name:      "p-" + uid,
				UID:       types.UID(uid),
			},
			Spec: corev1.PodSpec{Priority: &priority},
		})
	}
	cache := state.NewCache()
	low := info("low", 1)
	other := info("other", 2)
	high := info("high", 100)
	for _, n := range nodes("a", "b") {
		cache.SetNode(n)
	}
	for i, p := range []*state.PodInfo{low, other, high} {
		p.Pod.Spec.NodeName = []string{"a", "a", "b"}[i]
		cache.SetPod(p.Pod)
	}
	snapshot := cache.Refresh()
	on := func(i int) *state.PodInfo { return snapshot.Node("a").Pods[i] }
	found := []*framework.Preemption{
		{Node: "a", Victims: []*state.PodInfo{on(0)}, Reprieved: 1},
		{Node: "b", Victims: []*state.PodInfo{info("gone", 0)}},
	}
	for _, tt := range []struct {
		name, result      string
		cached, ignorable bool
		want              string
	}{
		{
			"other victims",
			`{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"other"},{"UID":"low"},{"UID":"low"}],"NumPDBViolations":7}}}`,
			true, false, "a default/p-other default/p-low, 2 violations, 0 reprieved",
		},
		{
			"full form", `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"low"}],"NumPDBViolations":-1}}}`, false,
			false, "a default/p-low, 0 violations, 1 reprieved",
		},
		{"none", `{}`, true, false, ""},
		{
			"no victims", `{"NodeNameToMetaVictims":{"a":{},"b":null}}`, true, false,
			`extender : preempt: node "a": the answer has no victim`,
		},
		{
			"no victims, ignorable", `{"NodeNameToMetaVictims":{"b":null,"a":{"Pods":[{"UID":"low"}]}}}`, true, true,
			"a default/p-low, 0 violations, 1 reprieved",
		},
		{
			"null victim", `{"NodeNameToMetaVictims":{"a":{"Pods":[null]}}}`, true, false,
			`extender : preempt: node "a": the answer has no victim`,
		},
		{
			"ghost", `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"ghost"}]}}}`, true, false,
			`extender : preempt: node "a": victim "ghost" is not on the node`,
		},
		{
			"important", `{"NodeNameToMetaVictims":{"b":{"Pods":[{"UID":"high"}]}}}`, true, false,
			`extender : preempt: node "b": victim default/p-high does not have a lower priority`,
		},
		{
			"foreign node", `{"NodeNameToMetaVictims":{"z":{"Pods":[{"UID":"low"}]}}}`, true, false,
			`extender : preempt: the answer has node "z", which was not sent`,
		},
		{
			"lies, ignorable", `{"NodeNameToMetaVictims":{"z":{}}}`, true, true,
			"a default/p-low, 0 violations, 1 reprieved; b default/p-gone, 0 violations, 0 reprieved",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, asked := answers(t, map[string]string{"/preempt": tt.result})
			s := set(t, ext(url, func(e *configv1.Extender) {
				e.PreemptVerb = "preempt"
				e.NodeCacheCapable = tt.cached
				e.Ignorable = tt.ignorable
			}), ext(url, filters))
			a := &framework.Attempt{Pod: info("new", 50), Snapshot: snapshot}
			a.CallExtenders = func(run func()) { run() }
			left, err := s.ProcessPreemption(t.Context(), a, found)
			var got []string
			for _, c := range left {
				text := c.Node
				for _, v := range c.Victims {
					text += " " + v.Key
				}
				got = append(got, fmt.Sprintf("%s, %d violations, %d reprieved", text, c.PDBViolations, c.Reprieved))
			}
			all := strings.Join(got, "; ")
			if err != nil {
				all = strings.ReplaceAll(err.Error(), url, "")
			}
			if all != tt.want {
				t.Errorf("got  %s\nwant %s", all, tt.want)
			}
			want := `"NodeNameToVictims":null,"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"low"}],"NumPDBViolations":0},"b"`
			if !tt.cached {
				want = `"NodeNameToVictims":{"a":{"Pods":[{"metadata":{"name":"p-low"`
			}
			if !strings.Contains(asked["/preempt"], want) {
				t.Errorf("asked %s", asked["/preempt"])
			}
		})
	}
}

func TestBind(t *testing.T) {
	url, asked := answers(t, map[string]string{"/bind": `{}`, "/no/bind": `{"Error":"no\nroom"}`})
	binder := func(at string, ignorable bool, resources ...string) *Binder {
		return set(t, ext(url, filters), ext(url+at, func(e *configv1.Extender) {
			e.BindVerb = "bind"
			e.Ignorable = ignorable
			for _, r := range resources {
				e.ManagedResources = append(e.ManagedResources, configv1.ExtenderManagedResource{Name: r})
			}
		})).Binder()
	}
	pod := state.NewPodInfo(podAsking("x.io/gpu"))
	for _, tt := range []struct {
		b    *Binder
		want string
	}{
		{binder("", false), "<nil>"},
		{binder("", false, "x.io/gpu"), "<nil>"},
		{binder("", false, "x.io/fpga"), framework.ErrSkip.Error()},
		{binder("/no", false), "extender /no: bind: the extender returned an error: no room"},
		{binder("/no", true), framework.ErrSkip.Error()},
	} {
		if got := strings.ReplaceAll(fmt.Sprint(tt.b.Bind(t.Context(), nil, pod, "a")), url, ""); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	if want := `{"PodName":"p","PodNamespace":"default","PodUID":"u","Node":"a"}`; asked["/bind"] != want {
		t.Errorf("asked %s", asked["/bind"])
	}
	if b := binder("", false, "x.io/fpga"); b.PreBindPreFlight(nil, pod, "a") ||
		set(t, ext(url, filters)).Binder() != nil {
		t.Error("who is bound by an extender is not known")
	}
}
