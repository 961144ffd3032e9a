// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"keelson/controllers/framework"
)

// Annotations for kubectl rollout and other control planes.
const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	historyAnnotation  = "deployment.kubernetes.io/revision-history" // earlier revisions of a set after a rollback
	desiredAnnotation  = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation      = "deployment.kubernetes.io/max-replicas"
)

// maxHistoryLength limits the history annotation; the oldest revisions are dropped.
const maxHistoryLength = 2000

// notCopied are annotations of a Deployment that are not copied to its sets.
var notCopied = []string{
	corev1.LastAppliedConfigAnnotation, revisionAnnotation, historyAnnotation, desiredAnnotation, maxAnnotation,
	appsv1.DeprecatedRollbackTo,
}

func intAnnotation(rs *appsv1.ReplicaSet, annotation string) (int64, bool) {
	n, err := strconv.ParseInt(rs.Annotations[annotation], 10, 64)
	return n, err == nil
}

// revision is the set's revision, 0: none.
func revision(rs *appsv1.ReplicaSet) int64 {
	n, _ := intAnnotation(rs, revisionAnnotation)
	return n
}

func maxRevision(sets []*appsv1.ReplicaSet) int64 {
	most := int64(0)
	for _, rs := range sets {
		most = max(most, revision(rs))
	}
	return most
}

// setSizeAnnotations annotates a set with the Deployment's size, for later proportional scaling.
func setSizeAnnotations(d *appsv1.Deployment, annotations map[string]string) {
	surge, _ := limits(d)
	annotations[desiredAnnotation] = strconv.Itoa(int(desiredReplicas(d)))
	annotations[maxAnnotation] = strconv.Itoa(int(desiredReplicas(d) + surge))
}

// hasSizeAnnotations reports whether setSizeAnnotations would change nothing.
func hasSizeAnnotations(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	want := map[string]string{}
	setSizeAnnotations(d, want)
	return rs.Annotations[desiredAnnotation] == want[desiredAnnotation] &&
		rs.Annotations[maxAnnotation] == want[maxAnnotation]
}

// copyAnnotations copies the Deployment's annotations to rs (which must have a map) and reports whether that changed
// anything.
func copyAnnotations(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	changed := false
	for k, v := range d.Annotations {
		if old, ok := rs.Annotations[k]; ok && old == v || slices.Contains(notCopied, k) {
			continue
		}
		rs.Annotations[k] = v
		changed = true
	}
	return changed
}

// setRevision raises the set's revision to n and adds the old one to its history.
func setRevision(rs *appsv1.ReplicaSet, n int64) bool {
	was, had := rs.Annotations[revisionAnnotation]
	if revision(rs) >= n {
		return false
	}
	rs.Annotations[revisionAnnotation] = strconv.FormatInt(n, 10)
	if !had {
		return true
	}
	var past []string
	if h := rs.Annotations[historyAnnotation]; h != "" {
		past = strings.Split(h, ",")
	}
	if !slices.Contains(past, was) {
		past = append(past, was)
	}
	for len(strings.Join(past, ",")) > maxHistoryLength {
		past = past[1:]
	}
	rs.Annotations[historyAnnotation] = strings.Join(past, ",")
	return true
}

// refreshCurrent plans updates of the current set: annotations, revision, minReadySeconds.
func (p *plan) refreshCurrent(snap snapshot) {
	if p.current == nil {
		return
	}
	n := len(p.changes)
	next := p.editable(p.current)
	changed := copyAnnotations(snap.d, next)
	changed = setRevision(next, maxRevision(p.old)+1) || changed
	if next.Spec.MinReadySeconds != snap.d.Spec.MinReadySeconds {
		next.Spec.MinReadySeconds = snap.d.Spec.MinReadySeconds
		changed = true
	}
	if !changed {
		p.changes = p.changes[:n]
	}
	p.revision = next.Annotations[revisionAnnotation]
	if hasDeadline(snap.d) && framework.ConditionOf(p.conditions, appsv1.DeploymentProgressing) == nil {
		p.setCondition(snap, appsv1.DeploymentProgressing, corev1.ConditionTrue, foundNewSet,
			fmt.Sprintf("Found new replica set %q", p.current.Name))
	}
}
