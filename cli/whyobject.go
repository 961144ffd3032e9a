// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/timeline/cause"
)

// explained is a kind that `why` explains from related objects. words are its names in kubectl: completion offers the
// first, messages use the second.
type explained struct {
	words      []string
	path, kind string // of its group and version, and resource
	cluster    bool   // cluster-scoped
	explain    func(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error)
}

var explainedKinds = []explained{
	{
		[]string{"pvc", "persistentvolumeclaim", "persistentvolumeclaims"},
		"/api/v1", "persistentvolumeclaims", false,
		whyClaim,
	},
	{
		[]string{"hpa", "horizontalpodautoscaler", "horizontalpodautoscalers"},
		"/apis/autoscaling/v2",
		"horizontalpodautoscalers", false, whyAutoscaler,
	},
	{[]string{"cronjob", "cronjob", "cronjobs", "cj"}, "/apis/batch/v1", "cronjobs", false, whyCronJob},
	{[]string{"ing", "ingress", "ingresses"}, "/apis/networking.k8s.io/v1", "ingresses", false, whyIngress},
	{
		[]string{"pdb", "poddisruptionbudget", "poddisruptionbudgets"},
		"/apis/policy/v1", "poddisruptionbudgets",
		false, whyBudget,
	},
	{[]string{"ns", "namespace", "namespaces"}, "/api/v1", "namespaces", true, whyNamespace},
	{[]string{"node", "node", "nodes", "no"}, "/api/v1", "nodes", true, whyNode},
	{
		[]string{"crd", "customresourcedefinition", "customresourcedefinitions"},
		"/apis/apiextensions.k8s.io/v1",
		"customresourcedefinitions", true, whyDefinition,
	},
}

// explainedAs is the kind of an argument TYPE/NAME; nil: another command path handles it, or none.
func explainedAs(arg string) (*explained, string) {
	word, name, ok := strings.Cut(arg, "/")
	i := slices.IndexFunc(explainedKinds, func(k explained) bool { return slices.Contains(k.words, word) })
	if !ok || name == "" || i < 0 {
		return nil, ""
	}
	return &explainedKinds[i], name
}

// whyObject explains one object of such a kind.
func (f *storyFlags) whyObject(ctx context.Context, k *explained, name string, std Stdio) error {
	if _, err := f.pod("pod/" + name); err != nil { // checks the output format
		return err
	}
	ns := "/namespaces/" + url.PathEscape(f.namespace)
	full := f.namespace + "/" + name
	if k.cluster {
		ns = ""
		full = name
	}
	var body json.RawMessage
	err := f.read(ctx, k.path+ns+"/"+k.kind+"/"+url.PathEscape(name), &body)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s does not exist", k.words[1], full)
	}
	if err != nil {
		return err
	}
	answer, err := k.explain(ctx, f, body)
	if err != nil {
		return err
	}
	var meta owning
	if json.Unmarshal(body, &meta) == nil && meta.Namespace != "" {
		answer.Recorded(f.warning(ctx, map[types.UID]bool{meta.UID: true}))
	}
	if f.output == "json" {
		return json.NewEncoder(std.Out).Encode(answer)
	}
	cause.Render(std.Out, answer, columnsOf(std.Out))
	return nil
}

// around reads related objects. The answer says which ones the user may not read.
type around struct {
	f      *storyFlags
	failed []func(*cause.Answer)
}

func (l *around) list(ctx context.Context, what, path string, into any) {
	if err := l.f.read(ctx, path, into); err != nil {
		l.failed = append(l.failed, func(a *cause.Answer) { a.Unreadable(what, err) })
	}
}

func (l *around) noted(a *cause.Answer) *cause.Answer {
	for _, note := range l.failed {
		note(a)
	}
	return a
}

func decoded[T any](body []byte) (*T, error) {
	o := new(T)
	if err := json.Unmarshal(body, o); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return o, nil
}

// inNamespace is the path of a core resource in the selected namespace.
func (f *storyFlags) inNamespace(resource string) string {
	return "/api/v1/namespaces/" + url.PathEscape(f.namespace) + "/" + resource
}

func whyClaim(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error) {
	claim, err := decoded[corev1.PersistentVolumeClaim](body)
	if err != nil {
		return nil, err
	}
	var volumes corev1.PersistentVolumeList
	var classes storagev1.StorageClassList
	var drivers metav1.PartialObjectMetadataList
	var pods corev1.PodList
	l := &around{f: f}
	l.list(ctx, "PersistentVolumes", "/api/v1/persistentvolumes", &volumes)
	l.list(ctx, "StorageClasses", "/apis/storage.k8s.io/v1/storageclasses", &classes)
	l.list(ctx, "CSIDrivers", "/apis/storage.k8s.io/v1/csidrivers", &drivers)
	l.list(ctx, "pods", f.inNamespace("pods"), &pods)
	c := cause.Claim{
		Claim:   claim,
		Volumes: volumes.Items,
		Classes: classes.Items,
		Pods:    pods.Items,
	}
	for i := range drivers.Items {
		c.Drivers = append(c.Drivers, drivers.Items[i].Name)
	}
	return l.noted(c.Explain()), nil
}

func whyAutoscaler(_ context.Context, _ *storyFlags, body []byte) (*cause.Answer, error) {
	h, err := decoded[autoscalingv2.HorizontalPodAutoscaler](body)
	if err != nil {
		return nil, err
	}
	return cause.Autoscaler(h), nil
}

func whyCronJob(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error) {
	cj, err := decoded[batchv1.CronJob](body)
	if err != nil {
		return nil, err
	}
	var jobs batchv1.JobList
	l := &around{f: f}
	l.list(ctx, "jobs", "/apis/batch/v1/namespaces/"+url.PathEscape(f.namespace)+"/jobs", &jobs)
	c := cause.Cron{CronJob: cj, Jobs: jobs.Items, Controllers: f.component(ctx, "controller-manager", "")}
	return l.noted(c.Explain(time.Now())), nil
}

func whyIngress(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error) {
	i, err := decoded[networkingv1.Ingress](body)
	if err != nil {
		return nil, err
	}
	var classes networkingv1.IngressClassList
	var services corev1.ServiceList
	l := &around{f: f}
	l.list(ctx, "IngressClasses", "/apis/networking.k8s.io/v1/ingressclasses", &classes)
	l.list(ctx, "services", f.inNamespace("services"), &services)
	return l.noted(cause.Ingress(i, classes.Items, services.Items)), nil
}

func whyBudget(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error) {
	b, err := decoded[policyv1.PodDisruptionBudget](body)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := f.read(ctx, f.inNamespace("pods"), &pods); err != nil {
		return nil, err
	}
	return cause.Budget(b, pods.Items), nil
}

func whyNode(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error) {
	n, err := decoded[corev1.Node](body)
	if err != nil {
		return nil, err
	}
	var lease *coordinationv1.Lease
	got := &coordinationv1.Lease{}
	if f.read(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+url.PathEscape(n.Name),
		got) == nil {
		lease = got
	}
	return cause.Node(n, lease, time.Now()), nil
}

func whyDefinition(_ context.Context, _ *storyFlags, body []byte) (*cause.Answer, error) {
	d, err := decoded[cause.Definition](body)
	if err != nil {
		return nil, err
	}
	return d.Explain(), nil
}

// Limits for the search in a namespace that is being deleted.
const (
	mostResources = 500
	mostLeft      = 100 // per resource
)

// whyNamespace lists what is left in a namespace that is being deleted, for every resource that can be listed.
func whyNamespace(ctx context.Context, f *storyFlags, body []byte) (*cause.Answer, error) {
	namespace, err := decoded[corev1.Namespace](body)
	if err != nil {
		return nil, err
	}
	if namespace.DeletionTimestamp == nil {
		return cause.Namespace(namespace, nil), nil
	}
	l := &around{f: f}
	var left []cause.Remaining
	for _, r := range f.listable(ctx, l) {
		var objects metav1.PartialObjectMetadataList
		l.list(ctx, r.name, fmt.Sprintf("%s/namespaces/%s/%s?limit=%d", r.path, url.PathEscape(namespace.Name), r.name,
			mostLeft), &objects)
		for i := range objects.Items {
			o := &objects.Items[i]
			left = append(left, cause.Remaining{Resource: r.name, Name: o.Name, Finalizers: o.Finalizers})
		}
	}
	return l.noted(cause.Namespace(namespace, left)), nil
}

// resource is a namespaced resource.
type resource struct{ path, name string }

// listable are the namespaced resources, each in its group's preferred version.
func (f *storyFlags) listable(ctx context.Context, l *around) []resource {
	var groups metav1.APIGroupList
	l.list(ctx, "API groups", "/apis", &groups)
	paths := []string{"/api/v1"}
	for _, g := range groups.Groups {
		paths = append(paths, "/apis/"+g.PreferredVersion.GroupVersion)
	}
	var out []resource
	for _, path := range paths {
		var list metav1.APIResourceList
		l.list(ctx, path, path, &list)
		for _, r := range list.APIResources {
			made := r.Name == "events" && path != "/api/v1" || strings.Contains(path, "metrics.k8s.io") ||
				strings.Contains(path, "keelson.io")
			if r.Namespaced && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") &&
				slices.Contains(r.Verbs, "delete") && !made && len(out) < mostResources {
				out = append(out, resource{path, r.Name})
			}
		}
	}
	return out
}
