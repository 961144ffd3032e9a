// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	minTokenSeconds  = 600
	minUpdateSeconds = 10
	maxNodeID        = 256
)

type driver = storagev1.CSIDriver

// CSIDriver describes storage.k8s.io/v1 CSIDriver.
func CSIDriver() *kind.Kind {
	boolean := func(name, description string) metav1.TableColumnDefinition {
		return metav1.TableColumnDefinition{Name: name, Type: "boolean", Description: description}
	}
	return kind.Spec[*driver]{
		Names:         names("CSIDriver", "csidrivers", "csidriver", false),
		New:           func() *driver { return &driver{} },
		NewList:       func() runtime.Object { return &storagev1.CSIDriverList{} },
		Default:       defaultDriver,
		PrepareCreate: func(d *driver) { d.Generation = 1 },
		PrepareUpdate: func(d, old *driver) {
			d.Generation = old.Generation
			if !equality.Semantic.DeepEqual(d.Spec, old.Spec) {
				d.Generation++
			}
		},
		Validate: validateDriver,
		ValidateUpdate: func(d, old *driver) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(validateDriver(d)...)
			// What volumes were attached by is decided once.
			l.Immutable("attachedRequired", d.Spec.AttachRequired, old.Spec.AttachRequired)
			l.Immutable("volumeLifecycleModes", d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, boolean("AttachRequired", "Whether volumes are attached to nodes first."),
			boolean("PodInfoOnMount", "Whether the driver is told of the pod."), boolean("StorageCapacity", "Whether the driver publishes its capacity."),
			text("TokenRequests", "For whom tokens of the pod's service account are handed over."),
			boolean("RequiresRepublish", "Whether the driver is asked again and again."), text("Modes", "How volumes live."), kind.AgeColumn,
		},
		Row: driverRow,
	}.Erase()
}

func defaultDriver(d *driver) {
	s := &d.Spec
	kind.Fill(&s.AttachRequired, true)
	kind.Fill(&s.PodInfoOnMount, false)
	kind.Fill(&s.StorageCapacity, false)
	kind.Fill(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	kind.Fill(&s.RequiresRepublish, false)
	kind.Fill(&s.SELinuxMount, false)
	kind.Fill(&s.PreventPodSchedulingIfMissing, false)
}

func driverRow(d *driver) []any {
	s := &d.Spec
	var modes, audiences []string
	for _, m := range s.VolumeLifecycleModes {
		modes = append(modes, string(m))
	}
	for _, t := range s.TokenRequests {
		audiences = append(audiences, t.Audience)
	}
	tokens, lives := "<unset>", "<none>"
	if s.TokenRequests != nil {
		tokens = strings.Join(audiences, ",")
	}
	if len(modes) > 0 {
		lives = strings.Join(modes, ",")
	}
	return []any{
		d.Name, s.AttachRequired == nil || *s.AttachRequired, kind.Value(s.PodInfoOnMount), kind.Value(s.StorageCapacity), tokens,
		kind.Value(s.RequiresRepublish), lives, kind.Age(d.CreationTimestamp),
	}
}

func validateDriver(d *driver) field.ErrorList {
	l, s := check.At(nil), &d.Spec
	l.Add(meta.Finalizers(d)...)
	podspec.DriverName(l, "metadata.name", d.Name)
	l.In("spec")
	for _, f := range []struct {
		child   string
		missing bool
	}{{"attachedRequired", s.AttachRequired == nil}, {"podInfoOnMount", s.PodInfoOnMount == nil}, {"storageCapacity", s.StorageCapacity == nil}} {
		if f.missing {
			l.Required(f.child, "")
		}
	}
	check.Pointer(l, "fsGroupPolicy", s.FSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	var audiences check.Set
	check.Each(l, "tokenRequests", s.TokenRequests, func(_ int, t *storagev1.TokenRequest) {
		if !audiences.Add(t.Audience) {
			l.Duplicate("audience", t.Audience)
		}
		switch e := t.ExpirationSeconds; {
		case e == nil:
		case *e < minTokenSeconds:
			l.Invalid("expirationSeconds", *e, "may not specify a duration less than 10 minutes")
		case *e > math.MaxUint32:
			l.Invalid("expirationSeconds", *e, "may not specify a duration larger than 2^32 seconds")
		}
	})
	check.Each(l, "volumeLifecycleModes", s.VolumeLifecycleModes, func(_ int, m *storagev1.VolumeLifecycleMode) {
		check.Pointer(l, "", m, storagev1.VolumeLifecycleEphemeral, storagev1.VolumeLifecyclePersistent)
	})
	if n := s.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < minUpdateSeconds {
		l.Invalid("nodeAllocatableUpdatePeriodSeconds", *n, fmt.Sprintf("must be greater than or equal to %d seconds", minUpdateSeconds))
	}
	return l.Errors()
}

// CSINode describes storage.k8s.io/v1 CSINode.
func CSINode() *kind.Kind {
	type node = storagev1.CSINode
	return kind.Spec[*node]{
		Names:         names("CSINode", "csinodes", "csinode", false),
		New:           func() *node { return &node{} },
		NewList:       func() runtime.Object { return &storagev1.CSINodeList{} },
		PrepareCreate: func(n *node) { n.Status = storagev1.CSINodeStatus{} }, // behind a gate that is off
		PrepareUpdate: func(n, old *node) { n.Status = old.Status },
		Validate:      validateNode,
		ValidateUpdate: func(n, old *node) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(validateNode(n)...)
			for _, was := range old.Spec.Drivers {
				at := slices.IndexFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == was.Name })
				if at < 0 {
					continue
				}
				now := n.Spec.Drivers[at]
				now.Allocatable = was.Allocatable // the driver may count again
				if !equality.Semantic.DeepEqual(now, was) {
					l.Add(field.Invalid(l.Path("drivers"), n.Spec.Drivers[at], "field is immutable"))
				}
			}
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Drivers", Type: "integer", Description: "Drivers indicates the number of CSI drivers registered on the node"},
			kind.AgeColumn,
		},
		Row: func(n *node) []any { return []any{n.Name, int64(len(n.Spec.Drivers)), kind.Age(n.CreationTimestamp)} },
	}.Erase()
}

func validateNode(n *storagev1.CSINode) field.ErrorList {
	l := check.At(field.NewPath("spec"))
	l.Add(meta.Finalizers(n)...)
	var seen check.Set
	check.Each(l, "drivers", n.Spec.Drivers, func(_ int, d *storagev1.CSINodeDriver) {
		podspec.DriverName(l, "name", d.Name)
		if d.NodeID == "" {
			l.Required("nodeID", "")
		} else if len(d.NodeID) > maxNodeID {
			l.Invalid("nodeID", d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID))
		}
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			l.Within("allocatable", func() { l.NotNegative("count", int64(*d.Allocatable.Count)) })
		}
		if !seen.Add(d.Name) {
			l.Duplicate("name", d.Name)
		}
		var keys check.Set
		for _, k := range d.TopologyKeys {
			if k == "" {
				l.Required("topologyKeys", "")
				continue
			}
			if !keys.Add(k) {
				l.Duplicate("topologyKeys", k)
			}
			l.Qualified("topologyKeys", k)
		}
	})
	return l.Errors()
}

// VolumeAttachment describes storage.k8s.io/v1 VolumeAttachment.
func VolumeAttachment() *kind.Kind {
	type attachment = storagev1.VolumeAttachment
	return kind.Spec[*attachment]{
		Names:         names("VolumeAttachment", "volumeattachments", "volumeattachment", false),
		New:           func() *attachment { return &attachment{} },
		NewList:       func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		PrepareCreate: func(a *attachment) { a.Status = storagev1.VolumeAttachmentStatus{} },
		PrepareUpdate: func(a, old *attachment) { a.Status = old.Status },
		Validate:      validateAttachment,
		ValidateUpdate: func(a, old *attachment) field.ErrorList {
			l := check.At(nil)
			l.Immutable("spec", a.Spec, old.Spec)
			return append(validateAttachment(a), l.Errors()...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Attacher", Type: "string", Format: "name", Description: "The driver that attaches the volume."},
			text("PV", "The volume."), text("Node", "The node it is attached to."),
			{Name: "Attached", Type: "boolean", Description: "Whether it is attached."},
			kind.AgeColumn,
		},
		Row: func(a *attachment) []any {
			return []any{
				a.Name, a.Spec.Attacher, kind.Value(a.Spec.Source.PersistentVolumeName), a.Spec.NodeName, a.Status.Attached, kind.Age(a.CreationTimestamp),
			}
		},
		Status: &kind.Sub[*attachment]{
			PrepareUpdate: func(a, old *attachment) {
				a.Spec = old.Spec
				fields := a.ManagedFields
				a.ObjectMeta, a.ManagedFields = withVersion(old.ObjectMeta, a.ResourceVersion), fields
			},
			ValidateUpdate: func(a, _ *attachment) field.ErrorList { return validateAttachmentStatus(&a.Status) },
		},
	}.Erase()
}

func withVersion(m metav1.ObjectMeta, rv string) metav1.ObjectMeta {
	m.ResourceVersion = rv
	return m
}

func validateAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	l, s := check.At(field.NewPath("spec")), &a.Spec
	l.Add(meta.Finalizers(a)...)
	podspec.DriverName(l, "attacher", s.Attacher)
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	volume := s.Source.PersistentVolumeName
	switch {
	case volume == nil && s.Source.InlineVolumeSpec == nil:
		l.Required("source", one)
	case volume != nil && s.Source.InlineVolumeSpec != nil:
		l.Forbidden("source", one)
	case volume != nil && *volume == "":
		l.Required("source.persistentVolumeName", "must specify non empty persistentVolumeName")
	case volume != nil:
		l.Subdomain("source.persistentVolumeName", *volume)
	}
	l.Subdomain("nodeName", s.NodeName)
	return append(l.Errors(), validateAttachmentStatus(&a.Status)...)
}

func validateAttachmentStatus(s *storagev1.VolumeAttachmentStatus) field.ErrorList {
	l := check.At(field.NewPath("status"))
	const maxBytes, maxMessage = 256 * 1024, 1024
	size := 0
	for k, v := range s.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxBytes {
		l.TooLong("attachmentMetadata", maxBytes)
	}
	for _, f := range []struct {
		child string
		err   *storagev1.VolumeError
	}{{"attachError", s.AttachError}, {"detachError", s.DetachError}} {
		if f.err != nil && len(f.err.Message) > maxMessage {
			l.Within(f.child, func() { l.TooLong("message", maxMessage) })
		}
	}
	return l.Errors()
}
