// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"keelson/api/kind"
)

// addClaims adds the claim that an object is, or the claims that its controller would create, unless they exist.
func (t *simulation) addClaims(obj kind.Object) error {
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return t.addClaim(o)
	case *appsv1.StatefulSet:
		for i := range min(replicas(o.Spec.Replicas), Max) {
			for j := range o.Spec.VolumeClaimTemplates {
				c := o.Spec.VolumeClaimTemplates[j].DeepCopy()
				c.Name = fmt.Sprintf("%s-%s-%d", c.Name, o.Name, firstOrdinal(o)+i)
				c.Namespace = o.Namespace
				if err := t.addClaim(c); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// addClaim adds a claim, unless it exists or is refused. The simulation owns claim.
func (t *simulation) addClaim(claim *corev1.PersistentVolumeClaim) error {
	if err := t.count(claim); err != nil {
		return err
	}
	claim.UID = types.UID("new-" + claim.Namespace + "-" + claim.Name)
	if claim.Spec.StorageClassName == nil {
		claim.Spec.StorageClassName = t.defaultClass()
	}
	informer := t.source.Informers.Core().V1().PersistentVolumeClaims().Informer()
	// GetByKey of an informer's store returns no error
	if _, exists, _ := informer.GetStore().GetByKey(claim.Namespace + "/" + claim.Name); exists {
		return nil
	}
	limits := t.limits[claim.Namespace]
	if why := cmp.Or(limits.applyRanges(claim), limits.useQuota(claim, "persistentvolumeclaims")); why != "" {
		t.note(fmt.Sprintf("claim %s/%s %s", claim.Namespace, claim.Name, why))
		return nil
	}
	_, err := addNew(informer, claim)
	return err
}

// defaultClass returns the default storage class; nil: there is none.
func (t *simulation) defaultClass() *string {
	for _, o := range t.source.Informers.Storage().V1().StorageClasses().Informer().GetStore().List() {
		if c, ok := o.(*storagev1.StorageClass); ok &&
			c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return &c.Name
		}
	}
	return nil
}

// addGeneratedClaims adds the claims that controllers create for a new pod: of its generic ephemeral volumes and its
// claim templates.
func (t *simulation) addGeneratedClaims(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
		c := &corev1.PersistentVolumeClaim{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		c.Name = pod.Name + "-" + v.Name
		c.Namespace = pod.Namespace
		c.OwnerReferences = ownedBy(pod)
		if err := t.addClaim(c); err != nil {
			return err
		}
	}
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		if of.ResourceClaimTemplateName == nil {
			continue
		}
		template, err := t.claimTemplate(ctx, pod.Namespace, *of.ResourceClaimTemplateName)
		if err != nil || template == nil {
			return err
		}
		resourceClaim := &resourcev1.ResourceClaim{
			ObjectMeta: *template.Spec.ObjectMeta.DeepCopy(),
			Spec:       *template.Spec.Spec.DeepCopy(),
		}
		resourceClaim.Name = pod.Name + "-" + of.Name
		resourceClaim.Namespace = pod.Namespace
		resourceClaim.OwnerReferences = ownedBy(pod)
		resourceClaim.UID = types.UID("new-" + resourceClaim.Namespace + "-" + resourceClaim.Name)
		if err := t.addDeviceClaim(resourceClaim); err != nil {
			return err
		}
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
			Name:              of.Name,
			ResourceClaimName: &resourceClaim.Name,
		})
	}
	return nil
}

func ownedBy(pod *corev1.Pod) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
}

// claimTemplate returns a claim template of the manifest or the cluster; nil: there is none, or it may not be read,
// which a note says.
func (t *simulation) claimTemplate(
	ctx context.Context, namespace, name string,
) (*resourcev1.ResourceClaimTemplate, error) {
	key := namespace + "/" + name
	if template, known := t.claimTemplates[key]; known {
		return template, nil
	}
	template, err := t.client.ResourceV1().ResourceClaimTemplates(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		t.note("no claims are made by the template " + key + ": " + err.Error())
		template = nil
	case err != nil:
		return nil, fmt.Errorf("get claim template %s: %w", key, err)
	}
	t.claimTemplates[key] = template
	return template, nil
}

// addDeviceClaim adds a ResourceClaim, unless it exists.
func (t *simulation) addDeviceClaim(c *resourcev1.ResourceClaim) error {
	if err := t.count(c); err != nil {
		return err
	}
	isNew, err := addNew(t.source.Informers.Resource().V1().ResourceClaims().Informer(), c)
	if isNew && t.source.UsesDevices() {
		t.source.Devices.ClaimChanged(nil, c)
	}
	return err
}

// allocateClaims gives the claims of a pod that has a node the devices that Reserve has assumed, as PreBind would write
// it: other pods may share them.
func (t *simulation) allocateClaims(pod *corev1.Pod) {
	store := t.source.Informers.Resource().V1().ResourceClaims().Informer().GetStore()
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil || !t.source.UsesDevices() {
			continue
		}
		o, _, _ := store.GetByKey(pod.Namespace + "/" + *name) // GetByKey of an informer's store returns no error
		resourceClaim, ok := o.(*resourcev1.ResourceClaim)
		if !ok {
			continue
		}
		if allocation := t.source.Devices.Assumed(resourceClaim.UID); allocation != nil {
			resourceClaim = resourceClaim.DeepCopy()
			resourceClaim.Status.Allocation = allocation
			resourceClaim.Status.ReservedFor = append(
				resourceClaim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
					Resource: "pods",
					Name:     pod.Name,
					UID:      pod.UID,
				})
			t.source.Devices.RecordWritten(resourceClaim)
		}
	}
}

// renewClaims gives a pod that is created again claims of its own in place of those that were generated for the one
// before: that end with it.
func (t *simulation) renewClaims(old, again *corev1.Pod) error {
	volumes := t.source.Informers.Core().V1().PersistentVolumeClaims().Informer().GetStore()
	for i := range again.Spec.Volumes {
		if again.Spec.Volumes[i].Ephemeral == nil {
			continue
		}
		// GetByKey of an informer's store returns no error
		o, _, _ := volumes.GetByKey(again.Namespace + "/" + again.Name + "-" + again.Spec.Volumes[i].Name)
		claim, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok || !metav1.IsControlledBy(claim, old) {
			continue
		}
		claim = claim.DeepCopy()
		claim.UID = "again-" + claim.UID
		claim.OwnerReferences = ownedBy(again)
		if t.bindsLate(claim) { // else its volume would be found or made by now, without regard to the pod
			claim.Spec.VolumeName = ""
			claim.Status = corev1.PersistentVolumeClaimStatus{}
			delete(claim.Annotations, volume.AnnBindCompleted)
			delete(claim.Annotations, volume.AnnSelectedNode)
		}
		if err := volumes.Update(claim); err != nil {
			return fmt.Errorf("renew claim %s: %w", claim.Name, err)
		}
	}
	devices := t.source.Informers.Resource().V1().ResourceClaims().Informer().GetStore()
	for _, s := range old.Status.ResourceClaimStatuses {
		again.Status.ResourceClaimStatuses = append(again.Status.ResourceClaimStatuses, s)
		if s.ResourceClaimName == nil || !t.source.UsesDevices() {
			continue
		}
		// GetByKey of an informer's store returns no error
		o, _, _ := devices.GetByKey(again.Namespace + "/" + *s.ResourceClaimName)
		was, ok := o.(*resourcev1.ResourceClaim)
		if !ok || !metav1.IsControlledBy(was, old) {
			continue
		}
		c := &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: was.Name, Namespace: was.Namespace, Labels: was.Labels},
			Spec:       was.Spec,
		}
		c.UID = "again-" + was.UID
		c.OwnerReferences = ownedBy(again)
		if err := devices.Update(c); err != nil {
			return fmt.Errorf("renew claim %s: %w", c.Name, err)
		}
		t.source.Devices.ClaimChanged(was, c)
	}
	return nil
}

// bindsLate reports whether a claim waits for a pod before it gets a volume.
func (t *simulation) bindsLate(c *corev1.PersistentVolumeClaim) bool {
	if c.Spec.StorageClassName == nil {
		return false
	}
	classes := t.source.Informers.Storage().V1().StorageClasses().Informer().GetStore()
	o, _, _ := classes.GetByKey(*c.Spec.StorageClassName) // it returns no error
	class, ok := o.(*storagev1.StorageClass)
	return ok && class.VolumeBindingMode != nil &&
		*class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}
