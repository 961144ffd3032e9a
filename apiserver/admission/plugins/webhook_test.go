// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// hookServer is a webhook server that remembers what it was asked.
type hookServer struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*admissionv1.AdmissionRequest
	auth  []string // Authorization headers
	spoke []string // the reviews' versions
}

// hookAt starts a webhook server whose answers come from judge.
func hookAt(
	t *testing.T, judge func(path string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse,
) *hookServer {
	t.Helper()
	h := &hookServer{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.asked = append(h.asked, review.Request)
		h.auth = append(h.auth, r.Header.Get("Authorization"))
		h.spoke = append(h.spoke, review.APIVersion)
		h.mu.Unlock()
		review.Response = judge(r.URL.Path, review.Request)
		if review.Response == nil {
			http.Error(w, "the judge is out", http.StatusTeapot)
			return
		}
		review.Response.UID = review.Request.UID
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(h.Close)
	return h
}

// take returns what was asked since the last call.
func (h *hookServer) take() []*admissionv1.AdmissionRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.asked
	h.asked = nil
	return out
}

func (h *hookServer) client(path string) registrationv1.WebhookClientConfig {
	u := h.URL + path
	return registrationv1.WebhookClientConfig{
		URL:      &u,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
	}
}

var (
	noEffects = registrationv1.SideEffectClassNone
	marked    = &metav1.LabelSelector{MatchLabels: map[string]string{"hooked": "yes"}}
)

func rule(ops string, resources ...string) []registrationv1.RuleWithOperations {
	r := registrationv1.RuleWithOperations{
		Rule: registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: resources},
	}
	for op := range strings.SplitSeq(ops, ",") {
		r.Operations = append(r.Operations, registrationv1.OperationType(op))
	}
	return []registrationv1.RuleWithOperations{r}
}

func validating(
	name string, client registrationv1.WebhookClientConfig, rules []registrationv1.RuleWithOperations,
) registrationv1.ValidatingWebhook {
	return registrationv1.ValidatingWebhook{
		Name:                    name,
		ClientConfig:            client,
		Rules:                   rules,
		SideEffects:             &noEffects,
		AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector:       marked,
	}
}

func mutating(
	name string, client registrationv1.WebhookClientConfig, rules []registrationv1.RuleWithOperations,
) registrationv1.MutatingWebhook {
	return registrationv1.MutatingWebhook{
		Name:                    name,
		ClientConfig:            client,
		Rules:                   rules,
		SideEffects:             &noEffects,
		AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector:       marked,
	}
}

// validate stores a configuration and waits until it is in force.
func validate(t *testing.T, cs kubernetes.Interface, name string, hooks ...registrationv1.ValidatingWebhook) {
	t.Helper()
	conf := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}
	probe := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "in force"}}
	})
	p := validating("probe.example.com", probe.client("/"), rule("CREATE", "configmaps"))
	p.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"probe": name}}
	conf.Webhooks = append(conf.Webhooks, p)
	if _, err := cs.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), conf,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitProbe(t, cs, name)
}

func mutate(t *testing.T, cs kubernetes.Interface, name string, hooks ...registrationv1.MutatingWebhook) {
	t.Helper()
	probe := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "in force"}}
	})
	p := mutating("probe.example.com", probe.client("/"), rule("CREATE", "configmaps"))
	p.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"probe": name}}
	conf := &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks:   append(hooks, p),
	}
	if _, err := cs.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), conf,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitProbe(t, cs, name)
}

func awaitProbe(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	waittest.Right(t, "webhook configuration "+name, func() string {
		_, err := c.CoreV1().ConfigMaps("hooked").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Labels: map[string]string{"probe": name}},
		}, metav1.CreateOptions{DryRun: []string{"All"}})
		if err != nil && strings.Contains(err.Error(), "in force") {
			return ""
		}
		return "not in force"
	})
}

func config(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: "hooked",
			Labels:    labels,
		},
		Data: map[string]string{"start": "yes"},
	}
}

func allow(warnings ...string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true, Warnings: warnings}
}

func patchOf(text string) *admissionv1.AdmissionResponse {
	json := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(text), PatchType: &json}
}

func TestValidatingWebhook(t *testing.T) {
	_, clientset, warned := servertest.StartHooked(t)
	hookServer := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		switch {
		case strings.HasPrefix(q.Name, "bad"):
			return &admissionv1.AdmissionResponse{
				Result: &metav1.Status{Message: "bad names are not wanted", Reason: "Forbidden", Code: 403},
			}
		case q.Name == "mute":
			return &admissionv1.AdmissionResponse{}
		}
		return allow("looked at " + q.Name)
	})
	skipping := validating("judge.example.com", hookServer.client("/validate"),
		rule("CREATE,UPDATE,DELETE", "configmaps"))
	skipping.MatchConditions = []registrationv1.MatchCondition{
		{Name: "not-skipped", Expression: "!has(request.name) || !request.name.startsWith('skip')"},
	}
	validate(t, clientset, "v", skipping)
	ctx := t.Context()
	maps := clientset.CoreV1().ConfigMaps("hooked")

	_, err := maps.Create(ctx, config("bad", nil), metav1.CreateOptions{})
	if want := `admission webhook "judge.example.com" denied the request: bad names are not wanted`; !apierrors.IsForbidden(
		err) ||
		err.Error() != want {
		t.Errorf("denied: got %v, want %s", err, want)
	}
	_, err = maps.Create(ctx, config("mute", nil), metav1.CreateOptions{})
	if want := `admission webhook "judge.example.com" denied the request without explanation`; err == nil ||
		err.Error() != want {
		t.Errorf("denied without a word: got %v, want %s", err, want)
	}
	if _, err := clientset.CoreV1().ConfigMaps("free").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("in a namespace that is not selected: %v", err)
	}
	hookServer.take()
	if _, err := maps.Create(ctx, config("skip-me", nil), metav1.CreateOptions{}); err != nil ||
		len(hookServer.take()) != 0 {
		t.Errorf("match condition: %v, or the webhook was asked", err)
	}
	warned.Take()
	made, err := maps.Create(ctx, config("good", nil), metav1.CreateOptions{FieldManager: "me"})
	if err != nil {
		t.Fatal(err)
	}
	if got := warned.Take(); !slices.Equal(got, []string{"looked at good"}) {
		t.Errorf("warnings: got %q", got)
	}
	made.Data["more"] = "1"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "good", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	asked := hookServer.take()
	if len(asked) != 3 {
		t.Fatalf("asked %d times, want 3", len(asked))
	}
	create := asked[0]
	update := asked[1]
	del := asked[2]
	if create.Operation != "CREATE" || create.Namespace != "hooked" || create.UserInfo.Username != "admin" ||
		*create.DryRun || create.RequestKind.Kind != "ConfigMap" ||
		!strings.Contains(string(create.Object.Raw), `"apiVersion":"v1"`) ||
		!strings.Contains(string(create.Options.Raw), `"fieldManager":"me"`) || len(create.OldObject.Raw) != 0 {
		t.Errorf("create: got %+v", create)
	}
	if update.Operation != "UPDATE" || !strings.Contains(string(update.Object.Raw), `"more"`) ||
		strings.Contains(string(update.OldObject.Raw), `"more"`) {
		t.Errorf("update: got %+v", update)
	}
	if del.Operation != "DELETE" || del.Name != "good" || len(del.Object.Raw) != 0 ||
		!strings.Contains(string(del.OldObject.Raw), `"more"`) ||
		!strings.Contains(string(del.Options.Raw), "DeleteOptions") {
		t.Errorf("delete: got %+v", del)
	}
	for _, name := range []string{"one", "two"} {
		if _, err := maps.Create(ctx, config(name, map[string]string{"group": "x"}),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	hookServer.take()
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "group=x"}); err != nil {
		t.Fatal(err)
	}
	if asked := hookServer.take(); len(asked) != 2 || len(asked[0].OldObject.Raw) == 0 {
		t.Errorf("deletecollection: asked %d times, want 2 with the old objects", len(asked))
	}
}

func TestWebhookFailures(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	release := make(chan struct{})
	hookServer := hookAt(t, func(path string, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if path == "/slow" {
			<-release
		}
		if path == "/patch" {
			return patchOf(`[]`)
		}
		return nil
	})
	t.Cleanup(func() { close(release) })
	ignore := registrationv1.Ignore
	second := int32(1)
	hook := func(label, path string, edit func(*registrationv1.ValidatingWebhook)) registrationv1.ValidatingWebhook {
		w := validating(label+".example.com", hookServer.client(path), rule("*", "configmaps"))
		w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"case": label}}
		if edit != nil {
			edit(&w)
		}
		return w
	}
	nowhere := "https://127.0.0.1:1/"
	validate(t, clientset, "v",
		hook("error", "/", nil), hook("patching", "/patch", nil), hook("ignored", "/",
			func(w *registrationv1.ValidatingWebhook) { w.FailurePolicy = &ignore }),
		hook("slow", "/slow", func(w *registrationv1.ValidatingWebhook) { w.TimeoutSeconds = &second }),
		hook("absent", "/", func(w *registrationv1.ValidatingWebhook) {
			w.ClientConfig = registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{
				Namespace: "hooked",
				Name:      "absent",
			}}
		}),
		hook("refused", "/", func(w *registrationv1.ValidatingWebhook) { w.ClientConfig.URL = &nowhere }),
		hook("condition", "/", func(w *registrationv1.ValidatingWebhook) {
			w.MatchConditions = []registrationv1.MatchCondition{
				{Name: "broken", Expression: "object.data.missing == 'x'"},
			}
		}))
	for _, tt := range []struct {
		label, want string
	}{
		{
			label: "error",
			want:  `Internal error occurred: failed calling webhook "error.example.com": failed to call webhook: `,
		},
		{label: "patching", want: `failed calling webhook "patching.example.com": received invalid webhook response: `},
		{label: "ignored"},
		{
			label: "slow",
			want: `failed calling webhook "slow.example.com": failed to call webhook: Post "` + hookServer.URL +
				`/slow?timeout=1s": context deadline exceeded`,
		},
		{
			label: "absent",
			want:  `failed calling webhook "absent.example.com": failed to call webhook: Post "https://absent.hooked.svc:443?timeout=10s": `,
		},
		{label: "refused", want: `connection refused`},
		{
			label: "condition",
			want:  `is forbidden: expression 'object.data.missing == 'x'' resulted in error: no such key: missing`,
		},
	} {
		_, err := clientset.CoreV1().ConfigMaps("hooked").Create(t.Context(),
			config("c-"+tt.label, map[string]string{"case": tt.label}), metav1.CreateOptions{})
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.label, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: got %v, want %q", tt.label, err, tt.want)
		}
	}
	// Whatever the webhooks say, their configuration can be changed and taken away.
	lock := validating("lock.example.com", hookServer.client("/"), rule("*", "*/*"))
	lock.NamespaceSelector = nil
	conf := &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "w"},
		Webhooks:   []registrationv1.ValidatingWebhook{lock},
	}
	if _, err := clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), conf,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the lock", func() string {
		if _, err := clientset.CoreV1().ConfigMaps("free").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x"}}, metav1.CreateOptions{}); err == nil {
			return "writes pass"
		}
		return ""
	})
	for _, name := range []string{"w", "v"} {
		if err := clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), name,
			metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}
	waittest.Right(t, "writes after the webhooks went", func() string {
		if _, err := clientset.CoreV1().ConfigMaps("hooked").Create(t.Context(),
			config("free", map[string]string{"case": "error"}), metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestMutatingWebhook(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(path string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		raw := string(q.Object.Raw)
		has := func(key string) bool { return strings.Contains(raw, `"`+key+`":`) }
		switch {
		case path == "/one" && has("start") && !has("one"):
			return patchOf(`[{"op":"add","path":"/data/one","value":"1"}]`)
		case path == "/one" && has("two") && !has("again"):
			return patchOf(`[{"op":"add","path":"/data/again","value":"1"}]`)
		case path == "/two" && has("one") && !has("two"):
			return patchOf(`[{"op":"add","path":"/data/two","value":"2"}]`)
		case path == "/pods":
			return patchOf(
				`[{"op":"add","path":"/spec/containers/-","value":{"name":"side","image":"side"}},{"op":"add","path":"/metadata/labels/side","value":"car"}]`)
		case path == "/broken":
			return patchOf(`[{"op":"replace","path":"/spec/nowhere/at/all","value":1}]`)
		}
		return allow()
	})
	ifNeeded := registrationv1.IfNeededReinvocationPolicy
	one := mutating("one.example.com", hookServer.client("/one"), rule("CREATE", "configmaps"))
	one.ReinvocationPolicy = &ifNeeded
	two := mutating("two.example.com", hookServer.client("/two"), rule("CREATE", "configmaps"))
	pods := mutating("pods.example.com", hookServer.client("/pods"), rule("CREATE", "pods"))
	broken := mutating("broken.example.com", hookServer.client("/broken"), rule("CREATE", "secrets"))
	mutate(t, clientset, "b", two, pods, broken)
	mutate(t, clientset, "a", one)
	ctx := t.Context()
	hookServer.take()
	got, err := clientset.CoreV1().ConfigMaps("hooked").Create(ctx, config("c", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Data["one"] != "1" || got.Data["two"] != "2" || got.Data["again"] != "1" {
		t.Errorf("both webhooks, the first again: got %v", got.Data)
	}
	if asked := hookServer.take(); len(asked) != 3 {
		t.Errorf("asked %d times, want 3: one, two, one", len(asked))
	}
	p, err := clientset.CoreV1().Pods("hooked").Create(ctx, servertest.PodIn("hooked", "p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.Spec.Containers); n != 2 || p.Labels["side"] != "car" ||
		p.Spec.Containers[1].TerminationMessagePath == "" {
		t.Errorf("a container added by a webhook gets defaults: got %+v", p.Spec.Containers)
	}
	_, err = clientset.CoreV1().Secrets("hooked").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		metav1.CreateOptions{})
	if !apierrors.IsInternalError(err) {
		t.Errorf("a patch that does not apply: got %v", err)
	}
}

// TestWebhookBehindService reaches a webhook by a service's endpoint slice, under the service's name.
func TestWebhookBehindService(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no"}}
	})
	ctx := t.Context()
	address, port := servertest.Elsewhere(t, hookServer.Listener.Addr().String())
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 443}},
		},
	}
	if _, err := clientset.CoreV1().Services("free").Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := true
	name := ""
	if _, err := clientset.DiscoveryV1().EndpointSlices("free").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "hook-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := hookServer.client("/")
	client.URL = nil
	client.Service = &registrationv1.ServiceReference{Namespace: "free", Name: "hook"}
	validate(t, clientset, "v", validating("s.example.com", client, rule("CREATE", "secrets")))
	_, err := clientset.CoreV1().Secrets("hooked").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		metav1.CreateOptions{})
	// The test server's certificate is not the service's: that it is asked for by the service's name is what shows.
	if err == nil || !strings.Contains(err.Error(), "not hook.free.svc") {
		t.Errorf("got %v, want a complaint that the certificate is not valid for hook.free.svc", err)
	}
}

func TestWebhookSeesSubresources(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	hookServer := hookAt(t, func(_ string, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if q.Operation == admissionv1.Connect {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "attaching is forbidden here"}}
		}
		return allow()
	})
	validate(t, clientset, "v", validating("attach.example.com", hookServer.client("/"),
		rule("*", "pods/*", "replicasets/scale")))
	ctx := t.Context()
	if _, err := clientset.CoreV1().Pods("hooked").Create(ctx, servertest.PodIn("hooked", "p"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	hookServer.take()
	res := clientset.CoreV1().RESTClient().Post().Namespace("hooked").Resource("pods").Name("p").SubResource("attach").
		Param(
			"container", "main").Do(ctx)
	if err := res.Error(); err == nil || !strings.Contains(err.Error(),
		`admission webhook "attach.example.com" denied the request: attaching is forbidden here`) {
		t.Errorf("attach: got %v", err)
	}
	if asked := hookServer.take(); len(asked) != 1 || asked[0].Kind.Kind != "PodAttachOptions" ||
		asked[0].SubResource != "attach" || asked[0].Name != "p" {
		t.Errorf("attach: asked %+v", asked)
	}
	_, err := clientset.CoreV1().Pods("hooked").Patch(ctx, "p", types.MergePatchType,
		[]byte(`{"status":{"message":"x"}}`),
		metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if asked := hookServer.take(); len(asked) != 1 || asked[0].Operation != "UPDATE" ||
		asked[0].SubResource != "status" ||
		asked[0].Kind.Kind != "Pod" {
		t.Errorf("status: asked %+v", asked)
	}
	d, err := clientset.AppsV1().ReplicaSets("hooked").Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec:       appsv1.ReplicaSetSpec{Selector: replicated(1).Spec.Selector, Template: replicated(1).Spec.Template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hookServer.take()
	if _, err := clientset.AppsV1().ReplicaSets("hooked").UpdateScale(ctx, d.Name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: "hooked"},
		Spec:       autoscalingv1.ScaleSpec{Replicas: 3},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if asked := hookServer.take(); len(asked) != 1 || asked[0].Kind.Kind != "Scale" ||
		!strings.Contains(string(asked[0].Object.Raw), `"replicas":3`) {
		t.Errorf("scale: asked %+v", asked)
	}
}
