// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/plugins"
	"keelson/auth/authz"
)

// admitting starts a server with all default plugins, less those that need a controller's help.
func admitting(t testing.TB) *running {
	t.Helper()
	return start(t, func(c *setup) { withPlugins(c, "ServiceAccount") })
}

func withPlugins(c *setup, without ...string) {
	withChain(c, func(p *plugins.Config) { p.Disable = without })
}

// withChain gives a server the plugins that edit asks for.
func withChain(c *setup, edit func(*plugins.Config)) {
	parts := c.Parts
	c.Parts = func(r *access.Reader) (apiserver.Parts, error) {
		p, err := parts(r)
		if err != nil {
			return p, err
		}
		conf := plugins.Config{
			Objects:    r,
			Writer:     c.Data.Writer,
			Outbound:   c.Outbound,
			NodeName:   authz.NodeName,
			Authorizer: p.Authorizer,
			Metrics:    admission.NewMetrics(),
		}
		edit(&conf)
		p.Metrics = conf.Metrics.Collectors()
		chain, follow, err := plugins.New(conf)
		for _, f := range follow {
			p.EventHandlers = append(p.EventHandlers, apiserver.EventHandler{
				Resource: f.Resource,
				Set:      f.Set,
				Remove:   f.Remove,
			})
		}
		p.Admission = chain
		return p, err
	}
}

// warnings keeps the warning headers of a client's answers.
type warnings struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader keeps a warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// take returns what came since the last call.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.all
	w.all = nil
	return out
}

func (r *running) warned(t testing.TB) (*kubernetes.Clientset, *warnings) {
	t.Helper()
	w := &warnings{}
	cfg := rest.CopyConfig(r.rest)
	cfg.WarningHandler = w
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

func makeNamespace(t testing.TB, c kubernetes.Interface, name string, labels map[string]string) *corev1.Namespace {
	t.Helper()
	ns, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: labels,
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func podIn(ns, name string) *corev1.Pod {
	p := pod(name)
	p.Namespace = ns
	return p
}

func TestPodSecurity(t *testing.T) {
	r := admitting(t)
	clientset, warned := r.warned(t)
	ctx := t.Context()
	makeNamespace(t, clientset, "strict", map[string]string{
		"pod-security.kubernetes.io/enforce": "baseline",
		"pod-security.kubernetes.io/warn":    "restricted",
	})
	plain := makeNamespace(t, clientset, "plain", nil)

	host := podIn("strict", "host")
	host.Spec.HostNetwork = true
	_, err := clientset.CoreV1().Pods("strict").Create(ctx, host, metav1.CreateOptions{})
	want := `pods "host" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true), hostPort (container "main" uses hostPort 80)`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("host network: got %v, want %s", err, want)
	}
	if got := warned.take(); len(got) != 0 {
		t.Errorf("a refused pod also warned: %q", got)
	}
	if _, err := clientset.CoreV1().Pods("strict").Create(ctx, podIn("strict", "usual"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := warned.take()
	if len(got) != 1 ||
		!strings.HasPrefix(got[0],
			`would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "main" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "main" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true`) {
		t.Errorf("usual pod: got warnings %q", got)
	}
	labels := map[string]string{"a": "b"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: host.Spec},
		},
	}
	if _, err := clientset.AppsV1().Deployments("strict").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatalf("deployments are warned of, never refused: %v", err)
	}
	if got := warned.take(); len(got) != 1 || !strings.HasPrefix(got[0],
		`would violate PodSecurity "restricted:latest": host namespaces (hostNetwork=true)`) {
		t.Errorf("deployment: got warnings %q", got)
	}

	for _, name := range []string{"b", "a"} {
		p := podIn("plain", name)
		p.Spec.HostPID = true
		if _, err := clientset.CoreV1().Pods("plain").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	plain.Labels["pod-security.kubernetes.io/enforce"] = "baseline"
	if _, err := clientset.CoreV1().Namespaces().Update(ctx, plain,
		metav1.UpdateOptions{DryRun: []string{"All"}}); err != nil {
		t.Fatal(err)
	}
	wantAll := []string{
		`existing pods in namespace "plain" violate the new PodSecurity enforce level "baseline:latest"`,
		`a (and 1 other pod): host namespaces`,
	}
	if got := warned.take(); !slices.Equal(got, wantAll) {
		t.Errorf("stricter level: got warnings %q, want %q", got, wantAll)
	}
	plain.Labels["pod-security.kubernetes.io/enforce"] = "cosy"
	_, err = clientset.CoreV1().Namespaces().Update(ctx, plain, metav1.UpdateOptions{})
	want = `Namespace "plain" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "cosy": must be one of privileged, baseline, restricted`
	if !apierrors.IsInvalid(err) || err.Error() != want {
		t.Errorf("unknown level: got %v, want %s", err, want)
	}
}
