// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/apiserver/objects"
)

// chunk is the minimum number of objects read per step for a page with selectors.
const chunk = 500

// splitSelectors removes from a query the field selectors that need converted objects; own is nil if there are none.
func (s *served) splitSelectors(query objects.ListQuery) (base objects.ListQuery, own fields.Selector) {
	if !s.versions.usesWebhook() || query.Fields == nil {
		return query, nil
	}
	var early, late []fields.Selector
	for _, r := range query.Fields.Requirements() {
		term := fields.OneTermEqualSelector(r.Field, r.Value)
		if r.Operator == selection.NotEquals {
			term = fields.OneTermNotEqualSelector(r.Field, r.Value)
		}
		if r.Field == "metadata.name" || r.Field == "metadata.namespace" {
			early = append(early, term)
		} else {
			late = append(late, term)
		}
	}
	if len(late) == 0 {
		return query, nil
	}
	query.Fields = fields.AndSelectors(early...)
	return query, fields.AndSelectors(late...)
}

func (s *served) selects(own fields.Selector, e *objects.Entry) bool {
	return own.Matches(s.version.fields(e.Object))
}

// listSelected is List for selectors that need converted objects. It reads further until its page is full.
func (s *served) listSelected(
	ctx context.Context, query objects.ListQuery, own fields.Selector,
) (*objects.List, error) {
	out := &objects.List{}
	limit := int(query.Limit)
	for {
		if limit > 0 {
			query.Limit = int64(max(limit, chunk))
		}
		page, err := s.base.List(ctx, query)
		if err != nil {
			return nil, err
		}
		items, err := s.entries(ctx, page.Items)
		if err != nil {
			return nil, conversionError(err)
		}
		out.Revision = page.Revision
		last := 0
		for i, e := range items {
			if !s.selects(own, e) {
				continue
			}
			if limit > 0 && len(out.Items) == limit {
				out.Continue, err = s.tokenAfter(ctx, query, page.Revision, last)
				return out, err
			}
			out.Items = append(out.Items, e)
			last = i
		}
		if page.Continue == "" {
			return out, nil
		}
		if len(out.Items) == limit {
			out.Continue = page.Continue
			return out, nil
		}
		query.Continue = page.Continue
		query.ResourceVersion = ""
		query.Match = ""
	}
}

// tokenAfter returns the continue token after item i of the list of q.
func (s *served) tokenAfter(ctx context.Context, q objects.ListQuery, rev int64, i int) (string, error) {
	q.Limit = int64(i) + 1
	if q.Continue == "" {
		q.ResourceVersion = objects.FormatRevision(rev)
		q.Match = "Exact"
	}
	page, err := s.base.List(ctx, q)
	if err != nil {
		return "", err
	}
	return page.Continue, nil
}

// convertEvent converts an event to what a watch with these selectors sees; ok is false for nothing.
func (s *served) convertEvent(
	ctx context.Context, own fields.Selector, ev objects.Event,
) (out objects.Event, ok bool, err error) {
	if ev.Type == watch.Error {
		return ev, true, nil
	}
	out = objects.Event{Type: ev.Type, At: ev.At}
	if out.Entry, err = s.entry(ctx, ev.Entry); err != nil {
		return out, false, err
	}
	if own == nil || ev.Type == watch.Bookmark {
		return out, true, nil
	}
	after := s.selects(own, out.Entry)
	if ev.Type != watch.Modified {
		return out, after, nil
	}
	prev, err := s.entry(ctx, ev.Prev)
	if err != nil {
		return out, false, err
	}
	switch before := s.selects(own, prev); {
	case before && !after:
		out.Type = watch.Deleted
		out.Entry = prev.Deleted(ev.Entry.Revision)
	case after && !before:
		out.Type = watch.Added
	case !after:
		return out, false, nil
	}
	return out, true, nil
}
