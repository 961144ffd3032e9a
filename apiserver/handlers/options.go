// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
)

// fromQuery decodes opts from the query with a generated conversion of metav1.
func fromQuery[T any](r *http.Request, convert func(*url.Values, *T, conversion.Scope) error) (*T, error) {
	opts := new(T)
	if r.URL.RawQuery == "" {
		return opts, nil
	}
	q := r.URL.Query()
	if err := convert(&q, opts, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return opts, nil
}

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return invalid.New(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

func createOptions(r *http.Request) (*metav1.CreateOptions, error) {
	opts, err := fromQuery(r, metav1.Convert_url_Values_To_v1_CreateOptions)
	if err != nil {
		return nil, err
	}
	opts.TypeMeta = metav1.TypeMeta{Kind: "CreateOptions", APIVersion: "meta.k8s.io/v1"}
	if r.URL.RawQuery == "" {
		return opts, nil
	}
	return opts, invalidOptions("CreateOptions", metavalidation.ValidateCreateOptions(opts))
}

func updateOptions(r *http.Request) (*metav1.UpdateOptions, error) {
	opts, err := fromQuery(r, metav1.Convert_url_Values_To_v1_UpdateOptions)
	if err != nil {
		return nil, err
	}
	opts.TypeMeta = metav1.TypeMeta{Kind: "UpdateOptions", APIVersion: "meta.k8s.io/v1"}
	if r.URL.RawQuery == "" {
		return opts, nil
	}
	return opts, invalidOptions("UpdateOptions", metavalidation.ValidateUpdateOptions(opts))
}

func patchOptions(r *http.Request, t types.PatchType) (*metav1.PatchOptions, error) {
	opts, err := fromQuery(r, metav1.Convert_url_Values_To_v1_PatchOptions)
	if err != nil {
		return nil, err
	}
	opts.TypeMeta = metav1.TypeMeta{Kind: "PatchOptions", APIVersion: "meta.k8s.io/v1"}
	return opts, invalidOptions("PatchOptions", metavalidation.ValidatePatchOptions(opts, t))
}

// manager is the field manager of a write: the parameter fieldManager, else the first part of the user agent.
func manager(r *http.Request, requested string) string {
	if requested != "" {
		return requested
	}
	agent, _, _ := strings.Cut(r.UserAgent(), "/")
	clean := strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return -1
	}, agent)
	if len(clean) > metavalidation.FieldManagerMaxLength {
		clean = clean[:metavalidation.FieldManagerMaxLength]
	}
	return strings.ToValidUTF8(clean, "")
}

// rejectExport rejects the removed parameter export.
func rejectExport(r *http.Request) error {
	if !strings.Contains(r.URL.RawQuery, "export=") {
		return nil
	}
	var on bool
	given := r.URL.Query()["export"]
	if err := runtime.Convert_Slice_string_To_bool(&given, &on, nil); err == nil && on {
		return apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	return nil
}

// listOptions decodes the query of a list, watch or deletecollection.
func listOptions(r *http.Request) (*metav1.ListOptions, error) {
	opts, err := fromQuery(r, metav1.Convert_url_Values_To_v1_ListOptions)
	if err != nil {
		return nil, err
	}
	check := metainternal.ListOptions{
		Watch:                opts.Watch,
		AllowWatchBookmarks:  opts.AllowWatchBookmarks,
		ResourceVersion:      opts.ResourceVersion,
		ResourceVersionMatch: opts.ResourceVersionMatch,
		TimeoutSeconds:       opts.TimeoutSeconds,
		Limit:                opts.Limit,
		Continue:             opts.Continue,
		SendInitialEvents:    opts.SendInitialEvents,
	}
	const watchList = true // sendInitialEvents is supported
	metainternal.SetListOptionsDefaults(&check, watchList)
	return opts, invalidOptions("ListOptions", listvalidation.ValidateListOptions(&check, watchList))
}

// query converts list options to a query of storage.
func query(rq *pipeline.Request, res *resources.Resource, opts *metav1.ListOptions) (objects.ListQuery, error) {
	q := objects.ListQuery{
		Namespace:         writes.Namespace(rq, res),
		Labels:            labels.Everything(),
		Fields:            fields.Everything(),
		ResourceVersion:   opts.ResourceVersion,
		Match:             string(opts.ResourceVersionMatch),
		Limit:             opts.Limit,
		Continue:          opts.Continue,
		SendInitialEvents: opts.SendInitialEvents,
		Bookmarks:         opts.AllowWatchBookmarks,
	}
	for what, s := range map[string]string{"label": opts.LabelSelector, "field": opts.FieldSelector} {
		if len(s) > pipeline.MaxSelector {
			return q, apierrors.NewBadRequest(fmt.Sprintf("the %s selector is %d bytes long, and may be %d", what,
				len(s), pipeline.MaxSelector))
		}
	}
	var err error
	if opts.LabelSelector != "" {
		if q.Labels, err = labels.Parse(opts.LabelSelector); err != nil {
			return q, apierrors.NewBadRequest(err.Error())
		}
	}
	if opts.FieldSelector != "" {
		if q.Fields, err = fields.ParseSelector(opts.FieldSelector); err != nil {
			return q, apierrors.NewBadRequest(err.Error())
		}
		if err := checkFieldSelector(res, q.Fields); err != nil {
			return q, err
		}
	}
	if rq.Verb == "watch" && rq.Name != "" { // the deprecated paths below /watch/ name one object
		if name, ok := q.Fields.RequiresExactMatch("metadata.name"); ok && name != rq.Name {
			return q, apierrors.NewBadRequest(fmt.Sprintf("field selector %q does not match the name %q of the path",
				opts.FieldSelector, rq.Name))
		}
		q.Fields = fields.AndSelectors(q.Fields, fields.OneTermEqualSelector("metadata.name", rq.Name))
	}
	return q, nil
}

// checkFieldSelector rejects a selector with a field that the kind does not support.
func checkFieldSelector(res *resources.Resource, sel fields.Selector) error {
	known := res.Fields(res.New())
	own := res.CustomFieldLabels
	for name := range known {
		own = own || !strings.HasPrefix(name, "metadata.")
	}
	for _, req := range sel.Requirements() {
		if _, ok := known[req.Field]; ok || req.Field == "metadata.namespace" && (!own || res.CustomFieldLabels) {
			continue
		}
		if !own {
			return apierrors.NewBadRequest(fmt.Sprintf(
				"%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", req.Field))
		}
		return apierrors.NewBadRequest("field label not supported: " + req.Field)
	}
	return nil
}
