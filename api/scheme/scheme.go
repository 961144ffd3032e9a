// SPDX-License-Identifier: Apache-2.0

// Package scheme knows every built-in Kubernetes type and how it is written on
// the wire: JSON, YAML and protobuf, and the options that travel in URLs. The
// server and its tests use it. Nothing here converts between versions of a
// kind, and no one may register types in Scheme after start.
package scheme

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"keelson/api/decisions"
)

var (
	// Scheme is client-go's, with the types of meta.k8s.io (Table, PartialObjectMetadata), of apiextensions.k8s.io, of
	// apiregistration.k8s.io, of metrics.k8s.io and of decisions.keelson.io, and the URL options of the streaming
	// subresources added.
	Scheme = build(clientscheme.Scheme)
	// Codecs reads and writes the types of Scheme; unknown and duplicate fields pass.
	Codecs = serializer.NewCodecFactory(Scheme)
	// Strict is Codecs for fieldValidation=Strict and Warn: decoding reports unknown and duplicate fields in a
	// strict decoding error (runtime.IsStrictDecodingError) in addition to the object.
	Strict = serializer.NewCodecFactory(Scheme, serializer.EnableStrict)
	// ParameterCodec reads and writes options in URL queries.
	ParameterCodec = runtime.NewParameterCodec(Scheme)
)

// build completes scheme.
func build(scheme *runtime.Scheme) *runtime.Scheme {
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	utilruntime.Must(metav1beta1.AddMetaToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(apiregistrationv1.AddToScheme(scheme))
	utilruntime.Must(metricsv1.AddToScheme(scheme))
	utilruntime.Must(metricsv1beta1.AddToScheme(scheme))
	utilruntime.Must(decisions.AddToScheme(scheme))
	unversioned := schema.GroupVersion{Version: "v1"}
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	utilruntime.Must(addOptions(scheme))
	return scheme
}
