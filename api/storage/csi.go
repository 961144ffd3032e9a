// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	volumeapi "keelson/api/core/volume"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	minTokenSeconds  = 600
	minUpdateSeconds = 10
	maxNodeID        = 256
	maxAttacher      = 63
)

type driver = storagev1.CSIDriver

// CSIDriver describes storage.k8s.io/v1 CSIDriver.
func CSIDriver() *kind.Kind {
	boolean := func(name, description string) metav1.TableColumnDefinition {
		return metav1.TableColumnDefinition{Name: name, Type: "boolean", Description: description}
	}
	return kind.Spec[*driver]{
		Names:   names("CSIDriver", "csidrivers", "csidriver", false),
		New:     func() *driver { return &driver{} },
		NewList: func() runtime.Object { return &storagev1.CSIDriverList{} },
		Default: defaultDriver,
		PrepareUpdate: func(d, old *driver) {
			d.Generation = old.Generation
			if !equality.Semantic.DeepEqual(d.Spec, old.Spec) {
				d.Generation++
			}
		},
		NoUnconditionalUpdate: true,
		Validate:              validateDriver,
		ValidateUpdate: func(d, old *driver) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(validateDriver(d)...)
			// What volumes were attached by is decided once.
			l.Immutable("attachedRequired", d.Spec.AttachRequired, old.Spec.AttachRequired)
			l.Fixed("volumeLifecycleModes", equality.Semantic.DeepEqual(d.Spec.VolumeLifecycleModes,
				old.Spec.VolumeLifecycleModes))
			return l.Errors()
		},
		Warnings: driverWarnings,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, boolean("AttachRequired", "Whether volumes are attached to nodes first."),
			boolean("PodInfoOnMount", "Whether the driver is told of the pod."),
			boolean("StorageCapacity", "Whether the driver publishes its capacity."),
			text("TokenRequests", "For whom tokens of the pod's service account are handed over."),
			boolean("RequiresRepublish", "Whether the driver is asked again and again."),
			text("Modes", "How volumes live."), kind.AgeColumn,
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

// driverWarnings tell of a new or changed list of tokens that nothing says where to put.
func driverWarnings(d, old *driver) []string {
	s := &d.Spec
	if len(s.TokenRequests) == 0 || s.ServiceAccountTokenInSecrets != nil {
		return nil
	}
	if old != nil && equality.Semantic.DeepEqual(old.Spec.TokenRequests, s.TokenRequests) {
		return nil
	}
	return []string{
		"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent " +
			"possible logging of tokens in volume attributes",
	}
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
	tokens := "<unset>"
	lives := "<none>"
	if s.TokenRequests != nil {
		tokens = strings.Join(audiences, ",")
	}
	if len(modes) > 0 {
		lives = strings.Join(modes, ",")
	}
	return []any{
		d.Name, s.AttachRequired == nil || *s.AttachRequired, kind.Value(s.PodInfoOnMount),
		kind.Value(s.StorageCapacity), tokens,
		kind.Value(s.RequiresRepublish), lives, kind.Age(d.CreationTimestamp),
	}
}

func validateDriver(d *driver) field.ErrorList {
	l := check.At(nil)
	s := &d.Spec
	l.Add(meta.Finalizers(d)...)
	l.In("spec")
	for _, f := range []struct {
		child   string
		missing bool
	}{{"attachedRequired", s.AttachRequired == nil}, {"podInfoOnMount", s.PodInfoOnMount == nil}, {
		"storageCapacity", s.StorageCapacity == nil,
	}} {
		if f.missing {
			l.Required(f.child, "")
		}
	}
	check.Pointer(l, "fsGroupPolicy", s.FSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy,
		storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	var audiences check.Set
	check.Each(l, "tokenRequests", s.TokenRequests, func(_ int, t *storagev1.TokenRequest) {
		if !audiences.Add(t.Audience) {
			l.Duplicate("audience", t.Audience)
			return
		}
		switch e := t.ExpirationSeconds; {
		case e == nil:
		case *e < minTokenSeconds:
			l.Invalid("expirationSeconds", *e, "may not specify a duration less than 10 minutes")
		case *e > 1<<32:
			l.Invalid("expirationSeconds", *e, "may not specify a duration larger than 2^32 seconds")
		}
	})
	for i := range s.VolumeLifecycleModes {
		check.Pointer(l, "volumeLifecycleModes", &s.VolumeLifecycleModes[i], storagev1.VolumeLifecyclePersistent,
			storagev1.VolumeLifecycleEphemeral)
	}
	if n := s.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < minUpdateSeconds {
		l.Invalid("nodeAllocatableUpdatePeriodSeconds", *n, fmt.Sprintf("must be greater than or equal to %d seconds",
			minUpdateSeconds))
	}
	if in := s.ServiceAccountTokenInSecrets; in != nil && len(s.TokenRequests) == 0 {
		l.Invalid("serviceAccountTokenInSecrets", in,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified")
	}
	return l.Errors()
}

// CSINode describes storage.k8s.io/v1 CSINode.
func CSINode() *kind.Kind {
	type node = storagev1.CSINode
	return kind.Spec[*node]{
		Names:                 names("CSINode", "csinodes", "csinode", false),
		New:                   func() *node { return &node{} },
		NewList:               func() runtime.Object { return &storagev1.CSINodeList{} },
		PrepareCreate:         func(n *node) { n.Status = storagev1.CSINodeStatus{} }, // behind a gate that is off
		PrepareUpdate:         func(n, old *node) { n.Status = old.Status },
		NoUnconditionalUpdate: true,
		Validate:              validateNode,
		ValidateUpdate: func(n, old *node) field.ErrorList {
			l := check.At(field.NewPath("spec"))
			l.Add(validateNode(n)...)
			for _, was := range old.Spec.Drivers {
				at := slices.IndexFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
					return d.Name == was.Name
				})
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
			{
				Name:        "Drivers",
				Type:        "integer",
				Description: "Drivers indicates the number of CSI drivers registered on the node",
			},
			kind.AgeColumn,
		},
		Row: func(n *node) []any { return []any{n.Name, int64(len(n.Spec.Drivers)), kind.Age(n.CreationTimestamp)} },
		Status: &kind.Sub[*node]{
			PrepareUpdate: func(n, old *node) {
				n.Spec = old.Spec
				n.Status = old.Status
				meta.KeepForStatus(n, old)
			},
		},
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
				l.Required("", "")
			}
			if !keys.Add(k) {
				l.Duplicate("", k)
			}
			l.Qualified("", k)
		}
	})
	return l.Errors()
}

// VolumeAttachment describes storage.k8s.io/v1 VolumeAttachment.
func VolumeAttachment() *kind.Kind {
	type attachment = storagev1.VolumeAttachment
	return kind.Spec[*attachment]{
		Names:                 names("VolumeAttachment", "volumeattachments", "volumeattachment", false),
		New:                   func() *attachment { return &attachment{} },
		NewList:               func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		PrepareCreate:         func(a *attachment) { a.Status = storagev1.VolumeAttachmentStatus{} },
		PrepareUpdate:         func(a, old *attachment) { a.Status = old.Status },
		NoUnconditionalUpdate: true,
		Validate:              validateAttachment,
		ValidateUpdate: func(a, old *attachment) field.ErrorList {
			l := check.At(nil)
			l.Fixed("spec", equality.Semantic.DeepEqual(a.Spec, old.Spec))
			return append(validateAttachment(a), l.Errors()...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{
				Name:        "Attacher",
				Type:        "string",
				Format:      "name",
				Description: "The driver that attaches the volume.",
			},
			text("PV", "The volume."), text("Node", "The node it is attached to."),
			{Name: "Attached", Type: "boolean", Description: "Whether it is attached."},
			kind.AgeColumn,
		},
		Row: func(a *attachment) []any {
			return []any{
				a.Name, a.Spec.Attacher, kind.Value(a.Spec.Source.PersistentVolumeName), a.Spec.NodeName,
				a.Status.Attached, kind.Age(a.CreationTimestamp),
			}
		},
		Status: &kind.Sub[*attachment]{
			PrepareUpdate: func(a, old *attachment) {
				a.Spec = old.Spec
				fields := a.ManagedFields
				a.ObjectMeta = withVersion(old.ObjectMeta, a.ResourceVersion)
				a.ManagedFields = fields
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
	l := check.At(field.NewPath("spec"))
	s := &a.Spec
	l.Add(meta.Finalizers(a)...)
	if s.Attacher == "" {
		l.Missing("attacher")
	} else {
		check.Format(l, "attacher", s.Attacher,
			validate.LongNameCaseless) //nolint:staticcheck // what Kubernetes checks here
		if len(s.Attacher) > maxAttacher {
			l.Declared(field.TooLongCharacters(l.Path("attacher"), "", maxAttacher))
		}
	}
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	volume := s.Source.PersistentVolumeName
	switch {
	case volume == nil && s.Source.InlineVolumeSpec == nil:
		l.Required("source", one)
	case volume != nil && s.Source.InlineVolumeSpec != nil:
		l.Forbidden("source", one)
	case volume != nil && *volume == "":
		l.Required("source.persistentVolumeName", "must specify non empty persistentVolumeName")
	case volume == nil:
		l.Add(volumeapi.ValidateInline(s.Source.InlineVolumeSpec, l.Path("source.inlineVolumeSpec"))...)
	}
	l.Subdomain("nodeName", s.NodeName)
	l.Add(validateAttachmentStatus(&a.Status)...)
	if volume != nil {
		l.Subdomain("source.persistentVolumeName", *volume)
	}
	return l.Errors()
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
		if f.err == nil {
			continue
		}
		l.In(f.child)
		if len(f.err.Message) > maxMessage {
			l.TooLong("message", maxMessage)
		}
		if code := f.err.ErrorCode; code != nil && *code < 0 {
			l.Invalid("errorCode", *code, validation.InclusiveRangeError(0, math.MaxInt32))
		}
		l.Out()
	}
	return l.Errors()
}
