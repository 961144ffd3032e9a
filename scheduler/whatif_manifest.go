// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"keelson/api/scheme"
)

// maxManifest is the limit for a manifest, in bytes.
const maxManifest = 8 << 20

// Manifest are the objects of a manifest whose pods `keelson whatif` places, with their claims and pod groups.
type Manifest struct {
	objects []runtime.Object
	// skipped counts the objects that lead to no pods, by kind ("ConfigMap", "Certificate.cert-manager.io").
	skipped map[string]int
}

// ReadManifest reads YAML or JSON documents. namespace is for objects that name none. It skips custom resources, and built-in kinds that lead
// to no pods. A manifest that has only such objects is an error.
func ReadManifest(r io.Reader, namespace string) (Manifest, error) {
	var w Manifest
	b, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return w, fmt.Errorf("read manifest: %w", err)
	}
	if len(b) > maxManifest {
		return w, fmt.Errorf("manifest of more than %d bytes", maxManifest)
	}
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return w, w.check()
		}
		if err != nil {
			return w, fmt.Errorf("document %d: %w", n, err)
		}
		if body, err := utilyaml.ToJSON(doc); err == nil && string(body) == "null" { // only comments
			continue
		}
		if err := w.read(doc, namespace); err != nil {
			return w, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// read reads one document.
func (w *Manifest) read(doc []byte, namespace string) error {
	obj, kind, err := scheme.Strict.UniversalDeserializer().Decode(doc, nil, nil)
	if err != nil {
		if custom := customKind(doc, err); custom != nil {
			w.skip(*custom)
			return nil
		}
		return err
	}
	switch obj.(type) {
	case *schedulingv1beta1.PodGroup, *corev1.Pod, *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet, *batchv1.Job, *corev1.PersistentVolumeClaim:
	default:
		if meta.IsListType(obj) {
			return fmt.Errorf("a %s is not supported: write its items as separate documents", kind.Kind)
		}
		w.skip(schema.GroupVersionKind{Kind: kind.Kind})
		return nil
	}
	if o, ok := obj.(metav1.Object); ok && o.GetNamespace() == "" {
		o.SetNamespace(cmp.Or(namespace, metav1.NamespaceDefault))
	}
	w.objects = append(w.objects, obj)
	return nil
}

// customKind returns the kind of a custom resource, which decoding refused with err; nil: the document is none. A kind that a built-in
// group does not have is a mistake, and no custom resource.
func customKind(doc []byte, err error) *schema.GroupVersionKind {
	var t metav1.TypeMeta
	if !runtime.IsNotRegisteredError(err) || utilyaml.Unmarshal(doc, &t) != nil {
		return nil
	}
	kind := t.GroupVersionKind()
	if kind.Kind == "" || kind.Group == "" || scheme.Scheme.IsGroupRegistered(kind.Group) {
		return nil
	}
	return &kind
}

func (w *Manifest) skip(kind schema.GroupVersionKind) {
	if w.skipped == nil {
		w.skipped = map[string]int{}
	}
	w.skipped[kind.GroupKind().String()]++
}

// check requires that something of the manifest is read, if anything is written there.
func (w *Manifest) check() error {
	if len(w.objects) > 0 || len(w.skipped) == 0 {
		return nil
	}
	return fmt.Errorf("the manifest leads to no pods, it has %s: write Pods, Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, and their claims and pod groups", w.listSkipped())
}

// listSkipped returns the numbers and kinds of the skipped objects: "1 ConfigMap, 2 Services".
func (w *Manifest) listSkipped() string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(w.skipped)) {
		n := w.skipped[kind]
		if n > 1 {
			kind = plural(kind)
		}
		out = append(out, fmt.Sprintf("%d %s", n, kind))
	}
	return strings.Join(out, ", ")
}

// plural returns the plural of a kind, which its group may follow after a dot.
func plural(kind string) string {
	name, group, _ := strings.Cut(kind, ".")
	resource, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: name})
	stem := len(name)
	if !strings.HasPrefix(resource.Resource, strings.ToLower(name)) { // Policy, policies
		stem--
	}
	return strings.TrimSuffix(name[:stem]+resource.Resource[stem:]+"."+group, ".")
}

// addManifest adds the pods that controllers would create for the objects.
func (t *simulation) addManifest(ctx context.Context, w *Manifest, list []schedulingv1.PriorityClass) error {
	if len(w.skipped) > 0 {
		t.note("not counted: " + w.listSkipped())
	}
	classes := map[string]*int32{}
	for i := range list {
		classes[list[i].Name] = &list[i].Value
		if list[i].GlobalDefault {
			classes[""] = &list[i].Value
		}
	}
	for _, obj := range w.objects {
		if o, ok := obj.(metav1.Object); ok {
			if err := t.readLimits(ctx, o.GetNamespace()); err != nil {
				return err
			}
		}
		if g, ok := obj.(*schedulingv1beta1.PodGroup); ok {
			if err := t.addGroup(g, classes); err != nil {
				return err
			}
			continue
		}
		if err := t.addClaims(obj); err != nil {
			return err
		}
		if _, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			continue
		}
		if err := t.addPodsOf(obj, classes); err != nil {
			return err
		}
	}
	return nil
}

// addPodsOf adds the pods of one object, except those that the limits or quotas of the namespace refuse.
func (t *simulation) addPodsOf(obj runtime.Object, classes map[string]*int32) error {
	pods, of, daemon := t.podsOf(obj)
	if len(t.work)+len(pods) > MaxWhatIf {
		return fmt.Errorf("more than %d pods are too many for one what-if", MaxWhatIf)
	}
	for _, pod := range pods {
		if err := t.complete(pod, classes); err != nil {
			return err
		}
		why := t.applyLimitRanges(pod)
		if why == "" && !daemon { // the nodes of a DaemonSet are not known yet
			why = t.useQuota(pod, "pods")
		}
		if why != "" {
			t.answer.Outcomes = append(t.answer.Outcomes, Outcome{Namespace: pod.Namespace, Name: pod.Name, Workload: of, Why: "new", Reason: why})
			continue
		}
		t.add(pod, "new", of)
		t.work[len(t.work)-1].daemon = daemon
	}
	return nil
}

// addClaims adds the claim that an object is, or the claims that its controller would create, unless they exist.
func (t *simulation) addClaims(obj runtime.Object) error {
	var claims []*corev1.PersistentVolumeClaim
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		claims = append(claims, o.DeepCopy())
	case *appsv1.StatefulSet:
		for i := range min(replicas(o.Spec.Replicas), MaxWhatIf) {
			for j := range o.Spec.VolumeClaimTemplates {
				c := o.Spec.VolumeClaimTemplates[j].DeepCopy()
				c.Name, c.Namespace = fmt.Sprintf("%s-%s-%d", c.Name, o.Name, i), o.Namespace
				claims = append(claims, c)
			}
		}
	}
	store := t.s.informers.Core().V1().PersistentVolumeClaims().Informer().GetStore()
	for _, c := range claims {
		if c.Spec.StorageClassName == nil {
			c.Spec.StorageClassName = t.defaultClass()
		}
		c.UID = types.UID("new-" + c.Namespace + "-" + c.Name)
		if _, exists, _ := store.GetByKey(c.Namespace + "/" + c.Name); exists { // GetByKey of an informer's store returns no error
			continue
		}
		if why := cmp.Or(t.applyLimitRanges(c), t.useQuota(c, "persistentvolumeclaims")); why != "" {
			t.note(fmt.Sprintf("claim %s/%s %s", c.Namespace, c.Name, why))
			continue
		}
		if err := store.Add(c); err != nil {
			return fmt.Errorf("claim %s: %w", c.Name, err)
		}
	}
	return nil
}

// defaultClass returns the default storage class; nil: there is none.
func (t *simulation) defaultClass() *string {
	for _, o := range t.s.informers.Storage().V1().StorageClasses().Informer().GetStore().List() {
		if c, ok := o.(*storagev1.StorageClass); ok && c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return &c.Name
		}
	}
	return nil
}

// podsOf returns the pods that the controller of an object would create.
func (t *simulation) podsOf(obj runtime.Object) (pods []*corev1.Pod, of string, daemon bool) {
	var meta *metav1.ObjectMeta
	var template *corev1.PodTemplateSpec
	var kind string
	count, claims := 0, []corev1.PersistentVolumeClaim(nil)
	switch o := obj.(type) {
	case *corev1.Pod:
		return []*corev1.Pod{o.DeepCopy()}, "", false
	case *appsv1.Deployment:
		kind, meta, template, count = "Deployment", &o.ObjectMeta, &o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.ReplicaSet:
		kind, meta, template, count = "ReplicaSet", &o.ObjectMeta, &o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.StatefulSet:
		kind, meta, template, count, claims = "StatefulSet", &o.ObjectMeta, &o.Spec.Template, replicas(o.Spec.Replicas), o.Spec.VolumeClaimTemplates
	case *batchv1.Job:
		kind, meta, template, count = "Job", &o.ObjectMeta, &o.Spec.Template, replicas(o.Spec.Parallelism)
		if o.Spec.Completions != nil {
			count = min(count, int(*o.Spec.Completions))
		}
	case *appsv1.DaemonSet:
		kind, meta, template = "DaemonSet", &o.ObjectMeta, &o.Spec.Template
	}
	of = kind + "/" + meta.Name
	if kind == "DaemonSet" {
		for _, n := range t.s.cache.Refresh().Nodes {
			pod := fromTemplate(kind, meta, template, n.Name)
			pin(&pod.Spec, n.Name)
			pods = append(pods, pod)
		}
		return pods, of, true
	}
	for i := range min(count, MaxWhatIf+1) {
		pod := fromTemplate(kind, meta, template, fmt.Sprint(i))
		for _, c := range claims {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("%s-%s-%d", c.Name, meta.Name, i)},
			}})
		}
		pods = append(pods, pod)
	}
	return pods, of, false
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return max(int(*n), 0)
}

func fromTemplate(kind string, meta *metav1.ObjectMeta, t *corev1.PodTemplateSpec, suffix string) *corev1.Pod {
	c := t.DeepCopy()
	c.Name, c.Namespace = meta.Name+"-"+suffix, meta.Namespace
	c.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: meta.Name, Controller: new(true)}}
	return &corev1.Pod{ObjectMeta: c.ObjectMeta, Spec: c.Spec}
}

// pin sets the node affinity for one node, and the tolerations of a DaemonSet's pods.
func pin(s *corev1.PodSpec, node string) {
	field := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	if s.Affinity == nil {
		s.Affinity = &corev1.Affinity{}
	}
	if s.Affinity.NodeAffinity == nil {
		s.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		required = &corev1.NodeSelector{NodeSelectorTerms: make([]corev1.NodeSelectorTerm, 1)}
	}
	for i := range required.NodeSelectorTerms {
		t := &required.NodeSelectorTerms[i]
		t.MatchFields = append(t.MatchFields, field)
	}
	s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	for _, key := range []string{corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable} {
		s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	}
}
