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
			boolean("PodInfoOnMount", "Whether the driver receives the pod's name and UID."),
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

// driverWarnings warn of a new or changed list of tokens for which the driver has no place.
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

func driverRow(csiDriver *driver) []any {
	csiDriverSpec := &csiDriver.Spec
	var modes, audiences []string
	for _, m := range csiDriverSpec.VolumeLifecycleModes {
		modes = append(modes, string(m))
	}
	for _, t := range csiDriverSpec.TokenRequests {
		audiences = append(audiences, t.Audience)
	}
	tokens := "<unset>"
	lives := "<none>"
	if csiDriverSpec.TokenRequests != nil {
		tokens = strings.Join(audiences, ",")
	}
	if len(modes) > 0 {
		lives = strings.Join(modes, ",")
	}
	return []any{
		csiDriver.Name, csiDriverSpec.AttachRequired == nil || *csiDriverSpec.AttachRequired,
		kind.Value(csiDriverSpec.PodInfoOnMount),
		kind.Value(csiDriverSpec.StorageCapacity), tokens,
		kind.Value(csiDriverSpec.RequiresRepublish), lives, kind.Age(csiDriver.CreationTimestamp),
	}
}

func validateDriver(d *driver) field.ErrorList {
	errs := check.At(nil)
	csiDriverSpec := &d.Spec
	errs.Add(meta.Finalizers(d)...)
	errs.In("spec")
	for _, f := range []struct {
		child   string
		missing bool
	}{{"attachedRequired", csiDriverSpec.AttachRequired == nil}, {
		"podInfoOnMount", csiDriverSpec.PodInfoOnMount == nil,
	}, {
		"storageCapacity", csiDriverSpec.StorageCapacity == nil,
	}} {
		if f.missing {
			errs.Required(f.child, "")
		}
	}
	check.Pointer(errs, "fsGroupPolicy", csiDriverSpec.FSGroupPolicy, storagev1.FileFSGroupPolicy,
		storagev1.NoneFSGroupPolicy,
		storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	var audiences check.Set
	check.Each(errs, "tokenRequests", csiDriverSpec.TokenRequests, func(_ int, t *storagev1.TokenRequest) {
		if !audiences.Add(t.Audience) {
			errs.Duplicate("audience", t.Audience)
			return
		}
		switch e := t.ExpirationSeconds; {
		case e == nil:
		case *e < minTokenSeconds:
			errs.Invalid("expirationSeconds", *e, "may not specify a duration less than 10 minutes")
		case *e > 1<<32:
			errs.Invalid("expirationSeconds", *e, "may not specify a duration larger than 2^32 seconds")
		}
	})
	for i := range csiDriverSpec.VolumeLifecycleModes {
		check.Pointer(errs, "volumeLifecycleModes", &csiDriverSpec.VolumeLifecycleModes[i],
			storagev1.VolumeLifecyclePersistent,
			storagev1.VolumeLifecycleEphemeral)
	}
	if n := csiDriverSpec.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < minUpdateSeconds {
		errs.Invalid("nodeAllocatableUpdatePeriodSeconds", *n,
			fmt.Sprintf("must be greater than or equal to %d seconds",
				minUpdateSeconds))
	}
	if in := csiDriverSpec.ServiceAccountTokenInSecrets; in != nil && len(csiDriverSpec.TokenRequests) == 0 {
		errs.Invalid("serviceAccountTokenInSecrets", in,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified")
	}
	return errs.Errors()
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
		ValidateUpdate: func(csiNode, old *node) field.ErrorList {
			errs := check.At(field.NewPath("spec"))
			errs.Add(validateNode(csiNode)...)
			for _, was := range old.Spec.Drivers {
				at := slices.IndexFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
					return d.Name == was.Name
				})
				if at < 0 {
					continue
				}
				now := csiNode.Spec.Drivers[at]
				now.Allocatable = was.Allocatable // the driver may count again
				if !equality.Semantic.DeepEqual(now, was) {
					errs.Add(field.Invalid(errs.Path("drivers"), csiNode.Spec.Drivers[at], "field is immutable"))
				}
			}
			return errs.Errors()
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
	errs := check.At(field.NewPath("spec"))
	errs.Add(meta.Finalizers(n)...)
	var seen check.Set
	check.Each(errs, "drivers", n.Spec.Drivers, func(_ int, csiNodeDriver *storagev1.CSINodeDriver) {
		podspec.DriverName(errs, "name", csiNodeDriver.Name)
		if csiNodeDriver.NodeID == "" {
			errs.Required("nodeID", "")
		} else if len(csiNodeDriver.NodeID) > maxNodeID {
			errs.Invalid("nodeID", csiNodeDriver.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID))
		}
		if csiNodeDriver.Allocatable != nil && csiNodeDriver.Allocatable.Count != nil {
			errs.Within("allocatable", func() { errs.NotNegative("count", int64(*csiNodeDriver.Allocatable.Count)) })
		}
		if !seen.Add(csiNodeDriver.Name) {
			errs.Duplicate("name", csiNodeDriver.Name)
		}
		var keys check.Set
		for _, k := range csiNodeDriver.TopologyKeys {
			check.Needs(errs, "", k)
			if !keys.Add(k) {
				errs.Duplicate("", k)
			}
			errs.Qualified("", k)
		}
	})
	return errs.Errors()
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

func validateAttachment(attachment *storagev1.VolumeAttachment) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	spec := &attachment.Spec
	errs.Add(meta.Finalizers(attachment)...)
	if spec.Attacher == "" {
		errs.Missing("attacher")
	} else {
		check.Format(errs, "attacher", spec.Attacher,
			validate.LongNameCaseless) //nolint:staticcheck // what Kubernetes checks here
		if len(spec.Attacher) > maxAttacher {
			errs.Declared(field.TooLongCharacters(errs.Path("attacher"), "", maxAttacher))
		}
	}
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	volume := spec.Source.PersistentVolumeName
	switch {
	case volume == nil && spec.Source.InlineVolumeSpec == nil:
		errs.Required("source", one)
	case volume != nil && spec.Source.InlineVolumeSpec != nil:
		errs.Forbidden("source", one)
	case volume != nil && *volume == "":
		errs.Required("source.persistentVolumeName", "must specify non empty persistentVolumeName")
	case volume == nil:
		errs.Add(volumeapi.ValidateInline(spec.Source.InlineVolumeSpec, errs.Path("source.inlineVolumeSpec"))...)
	}
	errs.Subdomain("nodeName", spec.NodeName)
	errs.Add(validateAttachmentStatus(&attachment.Status)...)
	if volume != nil {
		errs.Subdomain("source.persistentVolumeName", *volume)
	}
	return errs.Errors()
}

func validateAttachmentStatus(status *storagev1.VolumeAttachmentStatus) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	const maxBytes, maxMessage = 256 * 1024, 1024
	size := 0
	for k, v := range status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxBytes {
		errs.TooLong("attachmentMetadata", maxBytes)
	}
	for _, f := range []struct {
		child string
		err   *storagev1.VolumeError
	}{{"attachError", status.AttachError}, {"detachError", status.DetachError}} {
		if f.err == nil {
			continue
		}
		errs.In(f.child)
		if len(f.err.Message) > maxMessage {
			errs.TooLong("message", maxMessage)
		}
		if code := f.err.ErrorCode; code != nil && *code < 0 {
			errs.Invalid("errorCode", *code, validation.InclusiveRangeError(0, math.MaxInt32))
		}
		errs.Out()
	}
	return errs.Errors()
}
