// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"keelson/api/scheme"
	"keelson/lib/quantity"
	"keelson/lib/yamlalias"
)

// maxManifest is the limit for a manifest, in bytes.
const maxManifest = 8 << 20

// The documents of a manifest, and the items of its lists, may together have maxGrowth times its bytes as JSON, and a
// constant more.
const (
	maxGrowth = 4
	maxMore   = 1 << 20
)

// Manifest are the objects of a manifest whose pods `keelson whatif` places, with what their scheduling depends on.
type Manifest struct {
	objects []runtime.Object
	leads   bool // some lead to pods, or are what pods need
	// left is how many bytes of JSON may still be read: aliases, and lists in lists, are more than what was written.
	left int
	// skipped counts the objects that lead to no pods, by kind ("ConfigMap", "Certificate.cert-manager.io").
	skipped map[string]int
}

// ReadManifest reads YAML or JSON documents. namespace is for objects that name none. It skips custom resources, and
// built-in kinds that lead to no pods. A manifest that has only such objects is an error.
func ReadManifest(r io.Reader, namespace string) (Manifest, error) {
	var manifest Manifest
	b, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return manifest, fmt.Errorf("read manifest: %w", err)
	}
	if len(b) > maxManifest {
		return manifest, fmt.Errorf("manifest of more than %d bytes", maxManifest)
	}
	manifest.left = maxGrowth*len(b) + maxMore
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return manifest, manifest.check()
		}
		if err != nil {
			return manifest, fmt.Errorf("document %d: %w", n, err)
		}
		if err := yamlalias.Check(doc); err != nil {
			return manifest, fmt.Errorf("document %d: %w", n, err)
		}
		body, err := yaml.YAMLToJSONStrict(doc)
		switch {
		case err == nil && string(body) == "null": // only comments
			continue
		case err == nil && bytes.HasPrefix(bytes.TrimSpace(doc), []byte("{")):
			// the decoder would take YAML in braces for JSON
			doc = body
		}
		if err := manifest.read(doc, body, namespace); err != nil {
			return manifest, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// read reads one document, or one item of a list. asJSON is doc as JSON, if it is any.
func (w *Manifest) read(doc, asJSON []byte, namespace string) error {
	if w.left -= len(asJSON); w.left < 0 {
		return errors.New("the manifest is much more than what is written, by aliases or lists in lists")
	}
	if err := checkQuantities(asJSON); err != nil {
		return err
	}
	obj, kind, err := scheme.Strict.UniversalDeserializer().Decode(doc, nil, nil)
	if err != nil {
		if custom := customKind(doc, err); custom != nil {
			w.skip(*custom)
			return nil
		}
		return err
	}
	if meta.IsListType(obj) {
		return w.readItems(obj, strings.TrimSuffix(kind.Kind, "List"), namespace)
	}
	w.addObject(obj, kind.Kind, namespace)
	return nil
}

// checkQuantities rejects a document with a quantity that takes too long to compute with.
func checkQuantities(doc []byte) error {
	if !quantity.JSONMayExceed(doc) {
		return nil
	}
	var named metav1.TypeMeta
	if err := utilyaml.Unmarshal(doc, &named); err != nil {
		return nil //nolint:nilerr // the decoder reports it
	}
	obj, err := scheme.Scheme.New(named.GroupVersionKind())
	if err != nil {
		return nil //nolint:nilerr // a custom resource, or the decoder reports it
	}
	return quantity.CheckJSON(doc, reflect.TypeOf(obj).Elem())
}

// readItems reads the items of a list: of objects of any kind as they were written, of others as they are.
func (w *Manifest) readItems(list runtime.Object, kind, namespace string) error {
	if mixed, ok := list.(*corev1.List); ok {
		for i := range mixed.Items {
			raw := mixed.Items[i].Raw // the decoder has made JSON of it
			if err := w.read(raw, raw, namespace); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		w.addObject(o, kind, namespace)
		return nil
	})
}

// addObject adds an object, or counts it as skipped if it does not matter to pods.
func (w *Manifest) addObject(obj runtime.Object, kind, namespace string) {
	of, leads := kindOf(obj)
	o, ok := obj.(metav1.Object)
	if of == nil || !ok {
		w.skip(schema.GroupVersionKind{Kind: kind})
		return
	}
	if o.GetNamespace() == "" && of.Namespaced {
		o.SetNamespace(cmp.Or(namespace, metav1.NamespaceDefault))
	}
	w.leads = w.leads || leads
	w.objects = append(w.objects, obj)
}

// customKind returns the kind of a custom resource, which decoding refused with err; nil: the document is none. A kind
// that a built-in group does not have is a mistake, and no custom resource.
func customKind(doc []byte, err error) *schema.GroupVersionKind {
	var t metav1.TypeMeta
	if !runtime.IsNotRegisteredError(err) || utilyaml.Unmarshal(doc, &t) != nil {
		return nil
	}
	kind := t.GroupVersionKind()
	if kind.Kind == "" || kind.Group == "" || scheme.Scheme.IsGroupRegistered(kind.Group) {
		return nil
	}
	return &kind
}

func (w *Manifest) skip(kind schema.GroupVersionKind) {
	if w.skipped == nil {
		w.skipped = map[string]int{}
	}
	w.skipped[kind.GroupKind().String()]++
}

// check requires that something of the manifest is read, if anything is written there.
func (w *Manifest) check() error {
	if w.leads || len(w.objects)+len(w.skipped) == 0 {
		return nil
	}
	for _, obj := range w.objects {
		of, _ := kindOf(obj)
		w.skip(schema.GroupVersionKind{Kind: of.Kind})
	}
	return fmt.Errorf("the manifest leads to no pods, it has %s: write Pods, Deployments, ReplicaSets, "+
		"ReplicationControllers, StatefulSets, DaemonSets, Jobs, CronJobs, and their claims and pod groups",
		w.listSkipped())
}

// listSkipped returns the numbers and kinds of the skipped objects: "1 ConfigMap, 2 Services".
func (w *Manifest) listSkipped() string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(w.skipped)) {
		n := w.skipped[kind]
		if n > 1 {
			kind = plural(kind)
		}
		out = append(out, fmt.Sprintf("%d %s", n, kind))
	}
	return strings.Join(out, ", ")
}

// plural returns the plural of a kind, which its group may follow after a dot.
func plural(kind string) string {
	name, group, _ := strings.Cut(kind, ".")
	resource, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: name})
	stem := len(name)
	if !strings.HasPrefix(resource.Resource, strings.ToLower(name)) { // Policy, policies
		stem--
	}
	return strings.TrimSuffix(name[:stem]+resource.Resource[stem:]+"."+group, ".")
}
