// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/metrics"

	"keelson/api/inprocess"
)

// inProcessHost stands where a server's address does.
const inProcessHost = "keelson.in-process"

// direct calls the server's handler for the writes that are made most, with the request that client-go would have made
// and without the work that client-go has with it. What is out of the ordinary (options, odd names) goes client-go's
// way from the start; an answer that is (errors, warnings) is given to client-go, which makes of it what it makes of
// all answers.
type direct struct {
	h     http.Handler
	agent []string
}

// shortcut is a clientset whose most frequent writes go by direct.
type shortcut struct {
	kubernetes.Interface
	core shortcutCore
}

func newShortcut(cs kubernetes.Interface, h http.Handler, agent string) kubernetes.Interface {
	return shortcut{cs, shortcutCore{cs.CoreV1(), &direct{h, []string{agent}}}}
}

// CoreV1 is kubernetes.Interface's.
func (s shortcut) CoreV1() typedcorev1.CoreV1Interface { return s.core }

type shortcutCore struct {
	typedcorev1.CoreV1Interface
	*direct
}

// Pods is CoreV1Interface's.
func (s shortcutCore) Pods(namespace string) typedcorev1.PodInterface {
	return shortcutPods{s.CoreV1Interface.Pods(namespace), s.direct, namespace}
}

type shortcutPods struct {
	typedcorev1.PodInterface
	*direct
	namespace string
}

var (
	podMeta     = runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	bindingMeta = runtime.TypeMeta{APIVersion: "v1", Kind: "Binding"}
	deleteMeta  = runtime.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
)

// Create is PodInterface's.
func (s shortcutPods) Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error) {
	if pod != nil && usual(&opts) && isPlain(s.namespace) {
		var answer runtime.Object
		answer, ctx = s.send(ctx, http.MethodPost, "/api/v1/namespaces/"+s.namespace+"/pods", podMeta, pod)
		if own := ownPod(answer); own != nil {
			return own, nil
		}
	}
	return s.PodInterface.Create(ctx, pod, opts)
}

// ownPod is a copy of a pod that was handed over, as decoding would have it; nil: there is none.
func ownPod(answer runtime.Object) *corev1.Pod {
	stored, ok := answer.(*corev1.Pod)
	if !ok {
		return nil
	}
	own := stored.DeepCopy()
	own.TypeMeta = metav1.TypeMeta{}
	return own
}

// Patch is PodInterface's.
func (s shortcutPods) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string,
) (*corev1.Pod, error) {
	none := opts.TypeMeta == (metav1.TypeMeta{}) && len(opts.DryRun) == 0 && opts.Force == nil &&
		opts.FieldManager == "" && opts.FieldValidation == ""
	if kind := patchTypes[pt]; kind != nil && none && isPlain(s.namespace) && isPlain(name) &&
		len(subresources) == 1 && subresources[0] == "status" {
		var answer runtime.Object
		answer, ctx = s.call(ctx, http.MethodPatch, "/api/v1/namespaces/"+s.namespace+"/pods/"+name+"/status", kind,
			data)
		if own := ownPod(answer); own != nil {
			return own, nil
		}
	}
	return s.PodInterface.Patch(ctx, name, pt, data, opts, subresources...)
}

// Delete is PodInterface's.
func (s shortcutPods) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if opts.TypeMeta == (metav1.TypeMeta{}) && isPlain(s.namespace) && isPlain(name) {
		var answer runtime.Object
		answer, ctx = s.send(ctx, http.MethodDelete, "/api/v1/namespaces/"+s.namespace+"/pods/"+name, deleteMeta, &opts)
		if answer != nil {
			return nil
		}
	}
	return s.PodInterface.Delete(ctx, name, opts)
}

// Bind is PodInterface's.
func (s shortcutPods) Bind(ctx context.Context, binding *corev1.Binding, opts metav1.CreateOptions) error {
	if binding != nil && usual(&opts) && isPlain(s.namespace) && isPlain(binding.Name) {
		var answer runtime.Object
		answer, ctx = s.send(ctx, http.MethodPost, "/api/v1/namespaces/"+s.namespace+"/pods/"+binding.Name+"/binding",
			bindingMeta, binding)
		if answer != nil {
			return nil
		}
	}
	return s.PodInterface.Bind(ctx, binding, opts)
}

// usual tells whether options say nothing.
func usual(o *metav1.CreateOptions) bool {
	return o.TypeMeta == (metav1.TypeMeta{}) && len(o.DryRun) == 0 && o.FieldManager == "" && o.FieldValidation == ""
}

// isPlain tells whether a name is an element of a path as it is. Kubernetes' names are.
func isPlain(name string) bool {
	if name == "" || name[0] == '.' {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// message is what all API types are in protobuf.
type message interface {
	runtime.ProtobufMarshaller
	Size() int
}

// Header values are shared by all requests: nobody changes one in place.
var (
	protobufOnly = []string{runtime.ContentTypeProtobuf}
	patchTypes   = map[types.PatchType][]string{types.StrategicMergePatchType: {string(types.StrategicMergePatchType)}}
	accepted     = []string{runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}
)

// send makes a request with a message.
func (d *direct) send(
	ctx context.Context, method, path string, meta runtime.TypeMeta, body message,
) (runtime.Object, context.Context) {
	doc, err := encode(meta, body)
	if err != nil {
		return nil, ctx
	}
	return d.call(ctx, method, path, protobufOnly, doc)
}

// call makes a request. Where the server has done what it asks and hands over what it answers, that is the answer,
// which is shared. Otherwise there is none, and the caller makes the same request client-go's way with the context that
// it gets: if the server has answered already, client-go gets this answer instead of the request being made again.
func (d *direct) call(
	ctx context.Context, method, path string, kind []string, doc []byte,
) (runtime.Object, context.Context) {
	if ctx.Err() != nil {
		return nil, ctx
	}
	begin := time.Now()
	var answer inprocess.Answer
	target := &url.URL{Scheme: "https", Host: inProcessHost, Path: path}
	r := (&http.Request{
		Method:        method,
		URL:           target,
		Host:          inProcessHost,
		RequestURI:    path,
		RemoteAddr:    "127.0.0.1:0",
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        http.Header{"Accept": accepted, "Content-Type": kind, "User-Agent": d.agent},
		Body:          io.NopCloser(bytes.NewReader(doc)),
		ContentLength: int64(len(doc)),
	}).WithContext(inprocess.Want(ctx, &answer))
	a := &reply{header: http.Header{}}
	err := a.serve(d.h, r)
	if err == nil {
		err = ctx.Err() // the handler gave up, or may have
	}
	if err == nil && answer.Object != nil {
		metrics.RequestLatency.Observe(ctx, method, *target, time.Since(begin))
		metrics.RequestResult.Increment(ctx, strconv.Itoa(a.code), method, inProcessHost)
		return answer.Object, ctx
	}
	return nil, context.WithValue(ctx, answeredKey{}, &answered{reply: a, err: err})
}

// encode is body as a server reads it: Kubernetes' magic bytes, then an envelope around the message.
func encode(meta runtime.TypeMeta, body message) ([]byte, error) {
	const magic = "k8s\x00"
	envelope := runtime.Unknown{TypeMeta: meta}
	size := body.Size()
	out := make([]byte, len(magic)+envelope.Size()+size+16) // 16: tag and length of the message
	copy(out, magic)
	n, err := envelope.NestedMarshalTo(out[len(magic):], body, uint64(size))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", meta.Kind, err)
	}
	return out[:len(magic)+n], nil
}
