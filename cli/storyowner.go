// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/timeline/cause"
)

// owner is a workload kind whose pods have stories, with the names that kubectl knows.
type owner struct {
	words []string
	path  string // of its group and version
	kind  string // the resource
}

var owners = []owner{
	{[]string{"deploy", "deployment", "deployments"}, "/apis/apps/v1", "deployments"},
	{[]string{"rs", "replicaset", "replicasets"}, "/apis/apps/v1", "replicasets"},
	{[]string{"sts", "statefulset", "statefulsets"}, "/apis/apps/v1", "statefulsets"},
	{[]string{"ds", "daemonset", "daemonsets"}, "/apis/apps/v1", "daemonsets"},
	{[]string{"job", "jobs"}, "/apis/batch/v1", "jobs"},
	{[]string{"rc", "replicationcontroller", "replicationcontrollers"}, "/api/v1", "replicationcontrollers"},
}

// pods are those of an owner; the first is the one whose story is told.
type pods struct {
	of    string
	list  []corev1.Pod
	lacks string // why pods are missing; empty: none is missing, or the reason is unknown
	waits string // why a StatefulSet's update does not go on; empty: it does, or there is none
}

// target is the pod that an argument names. For an owner it is the pod in the worst state, else the newest.
func (f *storyFlags) target(ctx context.Context, arg string) (name string, all pods, err error) {
	word, of, _ := strings.Cut(arg, "/")
	i := slices.IndexFunc(owners, func(o owner) bool { return slices.Contains(o.words, word) })
	if i < 0 || of == "" {
		name, err = f.pod(arg)
		return name, pods{}, err
	}
	if _, err := f.pod(of); err != nil { // checks the output format
		return "", pods{}, err
	}
	o := owners[i]
	ns := "/namespaces/" + url.PathEscape(f.namespace)
	var meta owning
	var body json.RawMessage
	err = f.read(ctx, o.path+ns+"/"+o.kind+"/"+url.PathEscape(of), &body)
	if err == nil {
		err = json.Unmarshal(body, &meta)
	}
	if err != nil {
		if apierrors.IsNotFound(err) {
			return "", pods{}, fmt.Errorf("%s %s/%s does not exist", strings.TrimSuffix(o.kind, "s"), f.namespace, of)
		}
		return "", pods{}, err
	}
	uids := map[types.UID]bool{meta.UID: true}
	if o.kind == "deployments" {
		var sets appsv1.ReplicaSetList
		if err := f.read(ctx, "/apis/apps/v1"+ns+"/replicasets", &sets); err != nil {
			return "", pods{}, err
		}
		for i := range sets.Items {
			if by := metav1.GetControllerOf(&sets.Items[i]); by != nil && by.UID == meta.UID {
				uids[sets.Items[i].UID] = true
			}
		}
	}
	var list corev1.PodList
	if err := f.read(ctx, "/api/v1"+ns+"/pods", &list); err != nil {
		return "", pods{}, err
	}
	all = pods{of: arg, list: ownedBy(list.Items, uids)}
	if len(all.list) == 0 {
		return "", pods{}, f.noPods(ctx, arg, &meta, uids)
	}
	all.lacks = meta.CreateError()
	if o.kind == "statefulsets" {
		var set appsv1.StatefulSet
		if err := json.Unmarshal(body, &set); err != nil {
			return "", pods{}, err
		}
		all.waits, _ = cause.Update(&set, all.list)
	}
	return all.list[0].Name, all, nil
}

// owning is the part of an owner that all kinds share.
type owning struct{ cause.Workload }

// lacks is why the owner's controller cannot create pods now or is paused; empty: it can, or the kind does not report
// it.
func (o *owning) lacks() string { return cmp.Or(o.CreateError(), o.Inactive()) }

// noPods explains why an owner has no pods, from conditions and events.
func (f *storyFlags) noPods(ctx context.Context, arg string, o *owning, uids map[types.UID]bool) error {
	if why := cmp.Or(o.lacks(), f.warning(ctx, uids)); why != "" {
		return fmt.Errorf("%s has no pods: %s", arg, why)
	}
	if why := o.NotObserved(); why != "" {
		return fmt.Errorf("%s has no pods: %s%s", arg, why,
			f.component(ctx, "controller-manager", "; the controllers do not work: "))
	}
	return fmt.Errorf("%s has no pods, and nobody has recorded why: `keelson kubectl describe %s -n %s` shows all "+
		"that is known of it", arg, arg, f.namespace)
}

// warning is the newest Warning event of an owner or of an object between it and its pods; empty: none, or events may
// not be read.
func (f *storyFlags) warning(ctx context.Context, uids map[types.UID]bool) string {
	var list corev1.EventList
	if f.read(ctx, "/api/v1/namespaces/"+url.PathEscape(f.namespace)+"/events?fieldSelector=type%3DWarning",
		&list) != nil {
		return ""
	}
	text := ""
	newest := time.Time{}
	for i := range list.Items {
		e := &list.Items[i]
		at := e.LastTimestamp.Time
		if e.Series != nil {
			at = e.Series.LastObservedTime.Time
		}
		if uids[e.InvolvedObject.UID] && (text == "" || at.After(newest)) {
			text = e.Reason + ": " + e.Message
			newest = at
		}
	}
	return text
}

// ownedBy are the pods of these owners: those in the worst state first, then the newest.
func ownedBy(list []corev1.Pod, uids map[types.UID]bool) []corev1.Pod {
	out := slices.DeleteFunc(slices.Clone(list), func(p corev1.Pod) bool {
		by := metav1.GetControllerOf(&p)
		return by == nil || !uids[by.UID]
	})
	slices.SortStableFunc(out, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(badness(&b), badness(&a)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return out
}

// badness ranks pods by how bad their state is.
func badness(p *corev1.Pod) int {
	switch status := statusOf(p); {
	case p.Status.Phase == corev1.PodFailed:
		return 4
	case status != string(p.Status.Phase) && status != "Terminating":
		return 3 // a container waits for a reason
	case p.Status.Phase == corev1.PodPending:
		return 2
	case p.Status.Phase == corev1.PodRunning && !readyPod(p):
		return 1
	}
	return 0
}

func readyPod(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// statusOf is the STATUS column of kubectl, without its rarer values.
func statusOf(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" &&
				w.Reason != "PodInitializing" {
				return w.Reason
			}
		}
	}
	return cmp.Or(pod.Status.Reason, string(pod.Status.Phase))
}

// print lists all pods of the owner and marks the one whose story is told. It prints nothing for a single pod or in
// JSON.
func (p pods) print(out io.Writer, form, told string) {
	if p.of == "" || form != "" {
		return
	}
	_, _ = fmt.Fprintf(out, "\npods of %s, those worst off first, then the newest:\n", p.of)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "   NAME\tREADY\tSTATUS\tNODE\tAGE\t") // an error means that the terminal is gone
	for i := range p.list {
		pod := &p.list[i]
		ready := "no"
		mark := ""
		if readyPod(pod) {
			ready = "yes"
		}
		if pod.Name == told {
			mark = "<- told above"
		}
		_, _ = fmt.Fprintf(table, "   %s\t%s\t%s\t%s\t%v\t%s\n", pod.Name, ready, statusOf(pod),
			cmp.Or(pod.Spec.NodeName, "-"),
			time.Since(pod.CreationTimestamp.Time).Round(time.Second), mark)
	}
	_ = table.Flush()
	if p.lacks != "" {
		_, _ = fmt.Fprintf(out, "   and more cannot be created: %s\n", p.lacks)
	}
	if p.waits != "" {
		_, _ = fmt.Fprintf(out, "   %s\n", p.waits)
	}
}
