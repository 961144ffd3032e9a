// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/apiextensions"
	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// retryDelay is the first back-off after a failure; it doubles up to maxRetryDelay.
const (
	retryDelay    = 100 * time.Millisecond
	maxRetryDelay = 5 * time.Second
)

// Run accepts names, establishes definitions, and deletes the objects of deleted ones, until ctx ends.
func (d *Definitions) Run(ctx context.Context) error { return d.loop.Run(ctx) }

// errStale ends a sync whose definition has changed meanwhile; the change is in the queue.
var errStale = errors.New("the definition has changed")

// sync advances one definition; keyed.ErrAgain requests another sync without an error.
func (d *Definitions) sync(ctx context.Context, name string) error {
	d.mu.Lock()
	crd := d.known[name]
	if crd == nil {
		d.mu.Unlock()
		return nil
	}
	if crd.DeletionTimestamp != nil && slices.Contains(crd.Finalizers, v1.CustomResourceCleanupFinalizer) {
		s := d.serving[name]
		d.mu.Unlock()
		return d.cleanUp(ctx, crd, s)
	}
	next := withOwnStatus(crd)
	d.acceptNamesLocked(next)
	setAPIApproval(next)
	if apiequality.Semantic.DeepEqual(next.Status, crd.Status) {
		d.mu.Unlock()
		return nil
	}
	if apiextensions.Is(next, v1.NamesAccepted) && d.servable(next) {
		if err := d.serveStoredLocked(ctx, next); err != nil { // invariant 3
			d.mu.Unlock()
			if errors.Is(err, errStale) {
				return nil
			}
			return err
		}
	}
	d.mu.Unlock()
	return d.writeStatus(ctx, crd, func(out *v1.CustomResourceDefinition) { out.Status = next.Status })
}

// servable reports whether crd's resource can be served. A definition with the name of a built-in resource becomes
// established, but the built-in resource keeps serving.
func (d *Definitions) servable(crd *v1.CustomResourceDefinition) bool {
	for i := range crd.Spec.Versions {
		gvr := schema.GroupVersionResource{
			Group:    crd.Spec.Group,
			Version:  crd.Spec.Versions[i].Name,
			Resource: crd.Spec.Names.Plural,
		}
		if d.config.Served.BuiltIn(gvr) != nil {
			return false
		}
	}
	return hasValidCABundle(crd)
}

// withOwnStatus is a copy of crd whose metadata and status may be modified. Its specification is crd's: the schemas are
// too large to be copied for a condition.
func withOwnStatus(crd *v1.CustomResourceDefinition) *v1.CustomResourceDefinition {
	out := *crd
	crd.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	crd.Status.DeepCopyInto(&out.Status)
	return &out
}

// writeStatus updates the status of the definition, unless there is a newer version.
func (d *Definitions) writeStatus(ctx context.Context, crd *v1.CustomResourceDefinition, change func(
	*v1.CustomResourceDefinition,
),
) error {
	_, _, _, err := d.config.Stored.Update(ctx, "", crd.Name, false, objects.Replace(func(
		_ context.Context, current kind.Object,
	) (kind.Object, error) {
		if current.GetUID() != crd.UID || current.GetResourceVersion() != crd.ResourceVersion {
			return nil, errStale
		}
		stored, ok := current.(*v1.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("definition %s is a %T", crd.Name, current)
		}
		out := withOwnStatus(stored)
		change(out)
		return out, d.config.Owners.Update(current, out, "kube-apiserver")
	}))
	if errors.Is(err, errStale) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// acceptNamesLocked accepts the names of crd that no other definition in its group has, and sets the condition
// NamesAccepted.
func (d *Definitions) acceptNamesLocked(crd *v1.CustomResourceDefinition) {
	resources := map[string]bool{}
	kinds := map[string]bool{}
	for _, other := range d.known {
		if other.Spec.Group != crd.Spec.Group || other.Name == crd.Name {
			continue
		}
		held := []*v1.CustomResourceDefinitionNames{&other.Status.AcceptedNames}
		if s := d.serving[other.Name]; s != nil {
			held = append(held, &s.crd.Status.AcceptedNames) // not yet in the store, perhaps
		}
		for _, n := range held {
			for _, name := range append([]string{n.Plural, n.Singular}, n.ShortNames...) {
				resources[name] = true
			}
			kinds[n.Kind] = true
			kinds[n.ListKind] = true
		}
	}
	want := &crd.Spec.Names
	have := &crd.Status.AcceptedNames
	accepted := v1.CustomResourceDefinitionCondition{
		Type:    v1.NamesAccepted,
		Status:  v1.ConditionTrue,
		Reason:  "NoConflicts",
		Message: "no conflicts found",
	}
	conflict := func(what string, taken []string) {
		texts := make([]string, len(taken))
		for i, name := range taken {
			texts[i] = fmt.Sprintf("%q is already in use", name)
		}
		accepted.Status = v1.ConditionFalse
		accepted.Reason = what + "Conflict"
		accepted.Message = texts[0]
		if len(texts) > 1 {
			accepted.Message = "[" + strings.Join(texts, ", ") + "]"
		}
	}
	accept := func(what, wanted string, held *string, used map[string]bool) {
		if wanted != *held && used[wanted] {
			conflict(what, []string{wanted})
			return
		}
		*held = wanted
	}
	accept("Plural", want.Plural, &have.Plural, resources)
	accept("Singular", want.Singular, &have.Singular, resources)
	var taken []string
	for _, short := range want.ShortNames {
		if resources[short] && !slices.Contains(have.ShortNames, short) {
			taken = append(taken, short)
		}
	}
	if len(taken) > 0 {
		conflict("ShortNames", taken)
	} else {
		have.ShortNames = want.ShortNames
	}
	accept("Kind", want.Kind, &have.Kind, kinds)
	accept("ListKind", want.ListKind, &have.ListKind, kinds)
	have.Categories = want.Categories
	setCondition(crd, accepted)
	establish(crd, accepted.Status == v1.ConditionTrue)
}

// establish sets the condition Established; once true it stays true.
func establish(crd *v1.CustomResourceDefinition, accepted bool) {
	switch {
	case accepted && !apiextensions.Is(crd, v1.Established) && !hasValidCABundle(crd):
		setCondition(crd, v1.CustomResourceDefinitionCondition{
			Type:    v1.Established,
			Status:  v1.ConditionFalse,
			Reason:  "InvalidCABundle",
			Message: "The conversion webhook CABundle is invalid",
		})
	case accepted && !apiextensions.Is(crd, v1.Established):
		setCondition(crd, v1.CustomResourceDefinitionCondition{
			Type:    v1.Established,
			Status:  v1.ConditionTrue,
			Reason:  "InitialNamesAccepted",
			Message: "the initial names have been accepted",
		})
	case !accepted && apiextensions.Condition(crd, v1.Established) == nil:
		setCondition(crd, v1.CustomResourceDefinitionCondition{
			Type:    v1.Established,
			Status:  v1.ConditionFalse,
			Reason:  "NotAccepted",
			Message: "not all names are accepted",
		})
	}
}

// hasValidCABundle reports whether the CA bundle of a definition's conversion webhook is valid.
func hasValidCABundle(crd *v1.CustomResourceDefinition) bool {
	c := crd.Spec.Conversion
	if c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil || len(c.Webhook.ClientConfig.CABundle) == 0 {
		return true
	}
	return x509.NewCertPool().AppendCertsFromPEM(c.Webhook.ClientConfig.CABundle)
}

// setCondition sets a condition unless it is equal already.
func setCondition(crd *v1.CustomResourceDefinition, c v1.CustomResourceDefinitionCondition) {
	if have := apiextensions.Condition(crd, c.Type); have != nil && have.Status == c.Status &&
		have.Reason == c.Reason && have.Message == c.Message {
		return
	}
	apiextensions.SetCondition(crd, c)
}
