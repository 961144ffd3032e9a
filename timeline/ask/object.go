// SPDX-License-Identifier: Apache-2.0

package ask

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

// Kind is a kind that is explained from related objects. Words are its names in kubectl: completion offers the first,
// messages use the second.
type Kind struct {
	Words          []string
	Path, Resource string // of its group and version, and the resource
	Cluster        bool   // cluster-scoped
	explain        func(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error)
}

// PodWords and ServiceWords are kubectl's names of the types pod and Service.
var (
	PodWords     = []string{"pod", "pods", "po"}
	ServiceWords = []string{"svc", "service", "services"}
)

// Kinds are all that Object explains.
var Kinds = []Kind{
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

// Object explains one object of such a kind.
func (c *Caller) Object(ctx context.Context, k *Kind, name string) (*cause.Answer, error) {
	ns := "/namespaces/" + url.PathEscape(c.Namespace)
	full := c.Namespace + "/" + name
	if k.Cluster {
		ns = ""
		full = name
	}
	var body json.RawMessage
	err := c.read(ctx, k.Path+ns+"/"+k.Resource+"/"+url.PathEscape(name), &body)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s %s %w", k.Words[1], full, ErrNoObject)
	}
	if err != nil {
		return nil, err
	}
	answer, err := k.explain(ctx, c, body)
	if err != nil {
		return nil, err
	}
	var meta owning
	if json.Unmarshal(body, &meta) == nil && meta.Namespace != "" {
		answer.Recorded(c.warning(ctx, map[types.UID]bool{meta.UID: true}))
	}
	return answer, nil
}

// around reads related objects. The answer says which ones the user may not read.
type around struct {
	c      *Caller
	failed []func(*cause.Answer)
}

func (l *around) list(ctx context.Context, what, path string, into any) {
	if err := l.c.read(ctx, path, into); err != nil {
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
func (c *Caller) inNamespace(resource string) string {
	return "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/" + resource
}

func whyClaim(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error) {
	claim, err := decoded[corev1.PersistentVolumeClaim](body)
	if err != nil {
		return nil, err
	}
	var volumes corev1.PersistentVolumeList
	var classes storagev1.StorageClassList
	var drivers metav1.PartialObjectMetadataList
	var pods corev1.PodList
	l := &around{c: c}
	l.list(ctx, "PersistentVolumes", "/api/v1/persistentvolumes", &volumes)
	l.list(ctx, "StorageClasses", "/apis/storage.k8s.io/v1/storageclasses", &classes)
	l.list(ctx, "CSIDrivers", "/apis/storage.k8s.io/v1/csidrivers", &drivers)
	l.list(ctx, "pods", c.inNamespace("pods"), &pods)
	question := cause.Claim{
		Claim:   claim,
		Volumes: volumes.Items,
		Classes: classes.Items,
		Pods:    pods.Items,
	}
	for i := range drivers.Items {
		question.Drivers = append(question.Drivers, drivers.Items[i].Name)
	}
	return l.noted(question.Explain()), nil
}

func whyAutoscaler(_ context.Context, _ *Caller, body []byte) (*cause.Answer, error) {
	h, err := decoded[autoscalingv2.HorizontalPodAutoscaler](body)
	if err != nil {
		return nil, err
	}
	return cause.Autoscaler(h), nil
}

func whyCronJob(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error) {
	cj, err := decoded[batchv1.CronJob](body)
	if err != nil {
		return nil, err
	}
	var jobs batchv1.JobList
	l := &around{c: c}
	l.list(ctx, "jobs", "/apis/batch/v1/namespaces/"+url.PathEscape(c.Namespace)+"/jobs", &jobs)
	question := cause.Cron{CronJob: cj, Jobs: jobs.Items, Controllers: c.component(ctx, "controller-manager", "")}
	return l.noted(question.Explain(time.Now())), nil
}

func whyIngress(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error) {
	i, err := decoded[networkingv1.Ingress](body)
	if err != nil {
		return nil, err
	}
	var classes networkingv1.IngressClassList
	var services corev1.ServiceList
	l := &around{c: c}
	l.list(ctx, "IngressClasses", "/apis/networking.k8s.io/v1/ingressclasses", &classes)
	l.list(ctx, "services", c.inNamespace("services"), &services)
	return l.noted(cause.Ingress(i, classes.Items, services.Items)), nil
}

func whyBudget(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error) {
	b, err := decoded[policyv1.PodDisruptionBudget](body)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := c.read(ctx, c.inNamespace("pods"), &pods); err != nil {
		return nil, err
	}
	return cause.Budget(b, pods.Items), nil
}

func whyNode(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error) {
	n, err := decoded[corev1.Node](body)
	if err != nil {
		return nil, err
	}
	return c.node(ctx, n), nil
}

func (c *Caller) node(ctx context.Context, n *corev1.Node) *cause.Answer {
	var lease *coordinationv1.Lease
	got := &coordinationv1.Lease{}
	if c.read(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+url.PathEscape(n.Name),
		got) == nil {
		lease = got
	}
	return cause.Node(n, lease, time.Now())
}

func whyDefinition(_ context.Context, _ *Caller, body []byte) (*cause.Answer, error) {
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
func whyNamespace(ctx context.Context, c *Caller, body []byte) (*cause.Answer, error) {
	namespace, err := decoded[corev1.Namespace](body)
	if err != nil {
		return nil, err
	}
	if namespace.DeletionTimestamp == nil {
		return cause.Namespace(namespace, nil), nil
	}
	l := &around{c: c}
	var left []cause.Remaining
	for _, r := range c.listable(ctx, l) {
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
func (c *Caller) listable(ctx context.Context, l *around) []resource {
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
