// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/api/core/localvolume"
	"keelson/api/storage"
)

// Claim is a PersistentVolumeClaim with the objects that decide about it. Drivers are the names of CSIDrivers.
type Claim struct {
	Claim   *corev1.PersistentVolumeClaim
	Volumes []corev1.PersistentVolume
	Classes []storagev1.StorageClass
	Drivers []string
	// Pods are those in its namespace.
	Pods []corev1.Pod
}

// Annotations, provisioners and finalizers of the volume controllers.
const (
	selectedNode   = "volume.kubernetes.io/selected-node"
	provisionedBy  = "volume.kubernetes.io/storage-provisioner"
	noProvisioner  = "kubernetes.io/no-provisioner"
	inTreePrefix   = "kubernetes.io/"
	claimProtected = "kubernetes.io/pvc-protection"
)

// Explain explains why the claim has no volume, or names its volume.
func (c *Claim) Explain() *Answer {
	answer := of("persistentvolumeclaim", c.Claim)
	answer.State = string(c.Claim.Status.Phase)
	if c.Claim.DeletionTimestamp != nil {
		answer.State = "Terminating"
		c.leaving(answer)
		return answer
	}
	name := c.Claim.Spec.VolumeName
	switch c.Claim.Status.Phase {
	case corev1.ClaimBound:
		answer.because("it has the volume %s", name)
	case corev1.ClaimLost:
		answer.because("it had the volume %s, which does not exist any more: what was in it is lost to this claim",
			name)
		answer.do("delete and recreate the claim, or restore the PersistentVolume %s", name)
	default:
		switch {
		case name != "":
			c.named(answer, name)
		default:
			c.classed(answer)
		}
	}
	return answer
}

// leaving explains what blocks the deletion of a claim.
func (c *Claim) leaving(a *Answer) {
	for _, f := range c.Claim.Finalizers {
		if f != claimProtected {
			a.because("the finalizer %s holds it", f)
			continue
		}
		if users := c.users(); len(users) > 0 {
			a.because("pods use it: %s", some(users))
			a.do("delete them, or wait for their end; the claim goes then")
		} else {
			a.because("the finalizer %s holds it, and no pod uses it: its controller is about to take it away, or "+
				"does not run", f)
		}
	}
}

// users are the running pods that use the claim.
func (c *Claim) users() []string {
	var out []string
	for i := range c.Pods {
		p := &c.Pods[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !ended && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Claim.Name ||
				v.Ephemeral != nil && p.Name+"-"+v.Name == c.Claim.Name
		}) {
			out = append(out, p.Name)
		}
	}
	return out
}

// named explains a claim with spec.volumeName.
func (c *Claim) named(a *Answer, name string) {
	i := slices.IndexFunc(c.Volumes, func(v corev1.PersistentVolume) bool { return v.Name == name })
	switch {
	case i < 0:
		a.because("its spec.volumeName asks for the PersistentVolume %s, which does not exist", name)
		a.do("create that volume, or make the claim without a volumeName")
	case c.unfit(&c.Volumes[i]) != "":
		a.because("its spec.volumeName asks for the PersistentVolume %s, which %s", name, c.unfit(&c.Volumes[i]))
	default:
		a.because("the PersistentVolume %s is there and fits: the controller is about to bind it, or does not run",
			name)
	}
}

// classed explains a claim by its StorageClass.
func (c *Claim) classed(answer *Answer) {
	want := c.Claim.Spec.StorageClassName
	if want == nil {
		answer.because("it names no StorageClass, and none is the default one")
		answer.do("name one in spec.storageClassName (there are: %s), or annotate one with %s=true",
			or(some(c.classNames()), "none"), storage.DefaultClassAnnotation)
		c.static(answer)
		return
	}
	if *want == "" {
		answer.because(
			`its storageClassName is "": it waits for a PersistentVolume without a class, and nothing is provisioned for it`)
		c.static(answer)
		answer.do("create a PersistentVolume that fits")
		return
	}
	i := slices.IndexFunc(c.Classes, func(s storagev1.StorageClass) bool { return s.Name == *want })
	if i < 0 {
		answer.because("there is no StorageClass %s", *want)
		answer.do("create it, or name another one in a new claim (there are: %s)", or(some(c.classNames()), "none"))
		c.static(answer)
		return
	}
	class := &c.Classes[i]
	if class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		c.Claim.Annotations[selectedNode] == "" {
		c.late(answer, class)
		return
	}
	c.provisioned(answer, class)
}

// late explains a WaitForFirstConsumer claim.
func (c *Claim) late(answer *Answer, class *storagev1.StorageClass) {
	users := c.users()
	if len(users) == 0 {
		answer.because("its StorageClass %s has the binding mode WaitForFirstConsumer, and no pod uses the claim yet",
			class.Name)
		answer.do("create a pod that uses it: the volume is made on the node that the scheduler chooses for the pod")
		return
	}
	answer.because("its StorageClass %s has the binding mode WaitForFirstConsumer, and the scheduler has not found a "+
		"node "+
		"for the pod that uses it: %s", class.Name, some(users))
	answer.do("`keelson why pod/%s -n %s` says what that pod waits for", users[0], c.Claim.Namespace)
	if class.Provisioner == noProvisioner {
		c.static(answer)
	}
}

// provisioned explains a claim that waits for a provisioner.
func (c *Claim) provisioned(answer *Answer, class *storagev1.StorageClass) {
	by := or(c.Claim.Annotations[provisionedBy], class.Provisioner)
	on := ""
	if node := c.Claim.Annotations[selectedNode]; node != "" {
		on = " on node " + node
	}
	switch {
	case class.Provisioner == noProvisioner:
		answer.because("its StorageClass %s provisions nothing (%s): it waits for a PersistentVolume of that class",
			class.Name, noProvisioner)
		c.static(answer)
		answer.do("create a PersistentVolume that fits")
	case by == localvolume.Provisioner:
		answer.because("the provisioner %s has not made its volume%s yet", by, on)
	case strings.HasPrefix(by, inTreePrefix):
		answer.because("its StorageClass %s names the provisioner %s, which was part of older Kubernetes releases and "+
			"serves nothing any more", class.Name, by)
		answer.do("name a class of a CSI driver")
	default:
		answer.because("it waits for the provisioner %s%s, which is a program outside the cluster's own", by, on)
		if slices.Contains(c.Drivers, by) {
			answer.do("look at the log of the driver's external-provisioner")
		} else {
			answer.because("there is no CSIDriver %s: that driver does not seem to be installed", by)
			answer.do("install the driver, or name another class (there are: %s)", or(some(c.classNames()), "none"))
		}
		answer.cannot("whether a provisioner runs that never wrote an event about the claim")
	}
}

// static explains why no existing volume fits.
func (c *Claim) static(answer *Answer) {
	if len(c.Volumes) == 0 {
		answer.because("there are no PersistentVolumes")
		return
	}
	var reasons []string
	for i := range c.Volumes {
		v := &c.Volumes[i]
		wrong := c.unfit(v)
		if wrong == "" {
			answer.because("the PersistentVolume %s fits: the controller is about to bind it, or does not run", v.Name)
			return
		}
		if v.Spec.StorageClassName == c.class() {
			reasons = append(reasons, v.Name+" "+wrong)
		}
	}
	if len(reasons) == 0 {
		answer.because("no PersistentVolume is of its class %q", c.class())
		return
	}
	answer.because("no PersistentVolume fits: %s", some(reasons))
}

func (c *Claim) class() string {
	if c.Claim.Spec.StorageClassName == nil {
		return ""
	}
	return *c.Claim.Spec.StorageClassName
}

// classNames are the other StorageClasses.
func (c *Claim) classNames() []string {
	out := make([]string, len(c.Classes))
	for i := range c.Classes {
		out[i] = c.Classes[i].Name
	}
	return slices.DeleteFunc(out, func(name string) bool { return name == c.class() })
}

// unfit is why a volume does not fit the claim; empty: it does.
func (c *Claim) unfit(pv *corev1.PersistentVolume) string {
	spec := &c.Claim.Spec
	if ref := pv.Spec.ClaimRef; ref != nil && (ref.Namespace != c.Claim.Namespace || ref.Name != c.Claim.Name ||
		ref.UID != "" && ref.UID != c.Claim.UID) {
		if pv.Status.Phase == corev1.VolumeReleased {
			return fmt.Sprintf("was %s/%s's and is Released: its claimRef has to be removed first", ref.Namespace,
				ref.Name)
		}
		return fmt.Sprintf("is bound to the claim %s/%s", ref.Namespace, ref.Name)
	}
	mode := func(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
		if m == nil {
			return corev1.PersistentVolumeFilesystem
		}
		return *m
	}
	has := pv.Spec.Capacity[corev1.ResourceStorage]
	wants := spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case pv.DeletionTimestamp != nil:
		return "is being deleted"
	case pv.Spec.StorageClassName != c.class():
		return fmt.Sprintf("is of class %q and not %q", pv.Spec.StorageClassName, c.class())
	case has.Cmp(wants) < 0:
		return fmt.Sprintf("has %s of %s", has.String(), wants.String())
	case mode(pv.Spec.VolumeMode) != mode(spec.VolumeMode):
		return fmt.Sprintf("has volumeMode %s and not %s", mode(pv.Spec.VolumeMode), mode(spec.VolumeMode))
	}
	for _, m := range spec.AccessModes {
		if !slices.Contains(pv.Spec.AccessModes, m) {
			return fmt.Sprintf("has no accessMode %s", m)
		}
	}
	if sel, err := metav1.LabelSelectorAsSelector(spec.Selector); spec.Selector != nil &&
		(err != nil || !sel.Matches(labels.Set(pv.Labels))) {
		return "has not the labels of the claim's selector"
	}
	return ""
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
