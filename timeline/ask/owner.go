// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podkind "keelson/api/core/pod"
	"keelson/timeline/cause"
)

// Owner is a workload kind whose pods have stories, with the names that kubectl knows.
type Owner struct {
	Words    []string
	Path     string // of its group and version
	Resource string
}

// Owners are all whose pods Owned finds.
var Owners = []Owner{
	{[]string{"deploy", "deployment", "deployments"}, "/apis/apps/v1", "deployments"},
	{[]string{"rs", "replicaset", "replicasets"}, "/apis/apps/v1", "replicasets"},
	{[]string{"sts", "statefulset", "statefulsets"}, "/apis/apps/v1", "statefulsets"},
	{[]string{"ds", "daemonset", "daemonsets"}, "/apis/apps/v1", "daemonsets"},
	{[]string{"job", "jobs"}, "/apis/batch/v1", "jobs"},
	{[]string{"rc", "replicationcontroller", "replicationcontrollers"}, "/api/v1", "replicationcontrollers"},
}

// Pods are those of an owner, the pod in the worst state first, then the newest: its story is the one to show.
type Pods struct {
	List  []corev1.Pod
	Lacks string // why pods are missing; empty: none is missing, or the reason is unknown
	Waits string // why a StatefulSet's update does not go on; empty: it does, or there is none
}

// Owned finds the pods of an owner; arg is how the user named it.
func (c *Caller) Owned(ctx context.Context, o *Owner, name, arg string) (*Pods, error) {
	ns := "/namespaces/" + url.PathEscape(c.Namespace)
	var meta owning
	var body json.RawMessage
	err := c.read(ctx, o.Path+ns+"/"+o.Resource+"/"+url.PathEscape(name), &body)
	if err == nil {
		err = json.Unmarshal(body, &meta)
	}
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%s %s/%s %w", strings.TrimSuffix(o.Resource, "s"), c.Namespace, name, ErrNoObject)
		}
		return nil, err
	}
	uids := map[types.UID]bool{meta.UID: true}
	if o.Resource == "deployments" {
		var sets appsv1.ReplicaSetList
		if err := c.read(ctx, "/apis/apps/v1"+ns+"/replicasets", &sets); err != nil {
			return nil, err
		}
		for i := range sets.Items {
			if by := metav1.GetControllerOf(&sets.Items[i]); by != nil && by.UID == meta.UID {
				uids[sets.Items[i].UID] = true
			}
		}
	}
	var list corev1.PodList
	if err := c.read(ctx, "/api/v1"+ns+"/pods", &list); err != nil {
		return nil, err
	}
	all := &Pods{List: ownedBy(list.Items, uids)}
	if len(all.List) == 0 {
		return nil, c.noPods(ctx, arg, &meta, uids)
	}
	all.Lacks = meta.CreateError()
	if o.Resource == "statefulsets" {
		var set appsv1.StatefulSet
		if err := json.Unmarshal(body, &set); err != nil {
			return nil, err
		}
		all.Waits, _ = cause.Update(&set, all.List)
	}
	return all, nil
}

// owning is the part of an owner that all kinds share.
type owning struct{ cause.Workload }

// lacks is why the owner's controller cannot create pods now or is paused; empty: it can, or the kind does not report
// it.
func (o *owning) lacks() string { return cmp.Or(o.CreateError(), o.Inactive()) }

// noPods explains why an owner has no pods, from conditions and events.
func (c *Caller) noPods(ctx context.Context, arg string, o *owning, uids map[types.UID]bool) error {
	if why := cmp.Or(o.lacks(), c.warning(ctx, uids).String()); why != "" {
		return fmt.Errorf("%s has no pods: %s", arg, why)
	}
	if why := o.NotObserved(); why != "" {
		return fmt.Errorf("%s has no pods: %s%s", arg, why,
			c.component(ctx, "controller-manager", "; the controllers do not work: "))
	}
	return fmt.Errorf("%s has no pods, and no event says why: `keelson kubectl describe %s -n %s` shows all "+
		"that is known of it", arg, arg, c.Namespace)
}

// warning is the newest Warning event of an owner or of an object between it and its pods; zero: none, or events may
// not be read.
func (c *Caller) warning(ctx context.Context, uids map[types.UID]bool) (warning cause.Message) {
	var list corev1.EventList
	if c.read(ctx, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/events?fieldSelector=type%3DWarning",
		&list) != nil {
		return warning
	}
	newest := time.Time{}
	for i := range list.Items {
		e := &list.Items[i]
		at := e.LastTimestamp.Time
		if e.Series != nil {
			at = e.Series.LastObservedTime.Time
		}
		if uids[e.InvolvedObject.UID] && (warning == cause.Message{} || at.After(newest)) {
			warning = cause.Message{Reason: e.Reason, Text: e.Message}
			newest = at
		}
	}
	return warning
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
	switch status := StatusOf(p); {
	case p.Status.Phase == corev1.PodFailed:
		return 4
	case status != string(p.Status.Phase) && status != "Terminating":
		return 3 // a container waits for a reason
	case p.Status.Phase == corev1.PodPending:
		return 2
	case p.Status.Phase == corev1.PodRunning && !podkind.Ready(p):
		return 1
	}
	return 0
}

// StatusOf is the STATUS column of kubectl, without its rarer values.
func StatusOf(pod *corev1.Pod) string {
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
