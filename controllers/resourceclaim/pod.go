// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"keelson/controllers/framework"
	"keelson/event"
)

// fieldManager owns the claim names in pods' status.
const fieldManager = "ResourceClaimController"

// syncPod creates the missing claims of a pod and writes their names to its status. A pod with a node that the
// scheduler did not choose also gets its reservations here.
func (c *Controller) syncPod(ctx context.Context, k key) error {
	pod, err := c.pods.Pods(k.Namespace).Get(k.Name)
	if apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || podDone(pod)) {
		return nil
	}
	if err != nil {
		return err
	}
	names := map[string]string{}
	var failed error
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		name, err := c.ensureClaim(ctx, k, pod, of)
		if err != nil {
			c.env.Events.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v",
				of.Name, err)
			if !errors.Is(err, errNoTemplate) { // else the template's creation triggers a retry
				failed = errors.Join(failed, fmt.Errorf("pod %s, PodResourceClaim %s: %w", k.Key, of.Name, err))
			}
		} else if name != "" {
			names[of.Name] = name
		}
	}
	if len(names) > 0 {
		if err := c.writeClaimNames(ctx, pod, names); err != nil {
			return errors.Join(failed, err)
		}
	}
	if failed != nil || pod.Spec.NodeName == "" {
		return failed
	}
	return c.reserve(ctx, pod)
}

// errNoTemplate: the template does not exist.
var errNoTemplate = errors.New("not found")

// ensureClaim returns the name of a claim generated for a pod and not yet in its status; "": none.
func (c *Controller) ensureClaim(
	ctx context.Context, k key, pod *corev1.Pod, of *corev1.PodResourceClaim,
) (string, error) {
	name, _, err := resourceclaim.Name(pod, of)
	lost := ""
	switch {
	case errors.Is(err, resourceclaim.ErrClaimNotFound):
	case err != nil:
		return "", fmt.Errorf("checking for claim before creating it: %w", err)
	case name == nil || of.ResourceClaimTemplateName == nil:
		return "", nil
	default:
		there, err := c.exists(ctx, pod, *name)
		if there || err != nil {
			return "", err
		}
		lost = *name
	}
	if claim := c.findGenerated(pod, of.Name, lost); claim != nil {
		return claim.Name, nil
	}
	template, err := c.templates.ResourceClaimTemplates(pod.Namespace).Get(*of.ResourceClaimTemplateName)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("resource claim template %q: %w", *of.ResourceClaimTemplateName, errNoTemplate)
	}
	if err != nil {
		return "", err
	}
	begin := time.Now()
	claim, err := c.creator.Create(ctx, c.env.Client.ResourceV1().ResourceClaims(pod.Namespace),
		claimFor(pod, of.Name, template))
	if err != nil {
		err = fmt.Errorf("create ResourceClaim: %w", err)
		claim = &resourcev1.ResourceClaim{}
	} else {
		c.mu.Lock()
		c.created[claim.UID] = claim
		c.mu.Unlock()
		// the cache shows it already
		if _, known := c.claims.ResourceClaims(pod.Namespace).Get(claim.Name); known == nil {
			c.forgetCreated(claim.UID)
		}
	}
	c.env.Reconciled(event.Subject{
		Resource:  "pods",
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
	}, begin,
		&event.Reconcile{EventSeen: c.loop.QueuedAt(k), Creates: []string{claim.Name}}, err)
	return claim.Name, err
}

// exists reports whether the claim in a pod's status exists and belongs to the pod.
func (c *Controller) exists(ctx context.Context, pod *corev1.Pod, name string) (bool, error) {
	claim, err := c.claims.ResourceClaims(pod.Namespace).Get(name)
	if apierrors.IsNotFound(err) {
		claim, err = c.env.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("checking claim existence: %w", err)
	}
	return metav1.IsControlledBy(claim, pod), nil
}

// findGenerated is the claim generated for an entry of a pod's spec, or nil. The claim lost was deleted, even if the
// cache never had it.
func (c *Controller) findGenerated(pod *corev1.Pod, entry, lost string) *resourcev1.ResourceClaim {
	mine := func(claim *resourcev1.ResourceClaim) bool {
		return claim.Namespace == pod.Namespace && claim.Name != lost && claim.DeletionTimestamp == nil &&
			metav1.IsControlledBy(claim, pod) &&
			claim.Annotations[resourcev1.PodResourceClaimAnnotation] == entry
	}
	objs, err := c.owned.ByIndex(framework.ByController, string(pod.UID))
	if err == nil { // an indexed cache returns no error
		for _, o := range objs {
			if claim, ok := o.(*resourcev1.ResourceClaim); ok && mine(claim) {
				return claim
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, claim := range c.created {
		if mine(claim) {
			return claim
		}
		if claim.Namespace == pod.Namespace && claim.Name == lost {
			delete(c.created, uid)
		}
	}
	return nil
}

// claimFor is the claim of one entry of a pod's spec, from its template.
func claimFor(pod *corev1.Pod, entry string, template *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	m := template.Spec.ObjectMeta.DeepCopy()
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[resourcev1.PodResourceClaimAnnotation] = entry
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: nameBase(pod.Name, entry),
			Namespace:    pod.Namespace,
			Labels:       m.Labels,
			Annotations:  m.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Pod",
				Name:       pod.Name,
				UID:        pod.UID,
				Controller: new(true),
			}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// maxBaseLength is the maximum length of the base of a 63-character name, without a hyphen and five random letters.
const maxBaseLength = 57

// nameBase is the prefix of the claim's name. Two long names are shortened in proportion.
func nameBase(pod, entry string) string {
	whole := pod + "-" + entry + "-"
	if n := len(whole); n > maxBaseLength {
		return strings.TrimRight(pod[:len(pod)*maxBaseLength/n], ".") + "-" + // a name part must not end with a dot
			entry[:len(entry)*maxBaseLength/n]
	}
	return whole
}

// writeClaimNames writes the names of a pod's claims to its status, by entry of its spec.
func (c *Controller) writeClaimNames(ctx context.Context, pod *corev1.Pod, made map[string]string) error {
	names := map[string]string{}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	maps.Copy(names, made)
	status := corev1apply.PodStatus()
	for _, entry := range slices.Sorted(maps.Keys(names)) {
		status.WithResourceClaimStatuses(corev1apply.PodResourceClaimStatus().WithName(entry).WithResourceClaimName(
			names[entry]))
	}
	apply := corev1apply.Pod(pod.Name, pod.Namespace).WithUID(pod.UID).WithStatus(status)
	_, err := c.env.Client.CoreV1().Pods(pod.Namespace).ApplyStatus(ctx, apply, metav1.ApplyOptions{
		FieldManager: fieldManager,
		Force:        true,
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it was deleted; its claims are deleted with it
		return nil
	}
	if err != nil {
		return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// reserve reserves allocated claims for a pod with a node.
func (c *Controller) reserve(ctx context.Context, pod *corev1.Pod) error {
	for name, generated := range resourceclaim.PodClaims(pod) {
		claim, err := c.claims.ResourceClaims(pod.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if generated && !metav1.IsControlledBy(claim, pod) || claim.Status.Allocation == nil ||
			claim.DeletionTimestamp != nil ||
			resourceclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods",
			Name:     pod.Name,
			UID:      pod.UID,
		})
		if _, err := c.env.Client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("reserve claim %s: %w", framework.KeyOf(claim), err)
		}
	}
	return nil
}
