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
	"k8s.io/client-go/tools/metrics"

	"keelson/api/inprocess"
)

// inProcessHost stands where a server's address does.
const inProcessHost = "keelson.in-process"

// direct calls the server's handler for the writes of PodWrites, with the request that client-go would have made and
// without the work that client-go has with it. Odd names go client-go's way from the start. Answers that are errors or
// carry warnings are given to client-go, which makes of them what it makes of all answers.
type direct struct {
	h     http.Handler
	agent []string
}

// inProcess is a clientset whose PodWrites go by direct.
type inProcess struct {
	plain
	direct *direct
}

// PodWrites is Interface's.
func (c inProcess) PodWrites(namespace string) PodWrites {
	return directPods{c.plain.PodWrites(namespace), c.direct, namespace}
}

// directPods falls back to client-go's way.
type directPods struct {
	usual PodWrites
	*direct
	namespace string
}

var (
	podMeta     = runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	bindingMeta = runtime.TypeMeta{APIVersion: "v1", Kind: "Binding"}
	deleteMeta  = runtime.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
)

// Create is PodWrites'.
func (p directPods) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if pod != nil && isPlain(p.namespace) {
		var answer runtime.Object
		answer, ctx = p.send(ctx, http.MethodPost, "/api/v1/namespaces/"+p.namespace+"/pods", podMeta, pod)
		if own := ownPod(answer); own != nil {
			return own, nil
		}
	}
	return p.usual.Create(ctx, pod)
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

// PatchStatus is PodWrites'.
func (p directPods) PatchStatus(ctx context.Context, name string, patch []byte) (*corev1.Pod, error) {
	if isPlain(p.namespace) && isPlain(name) {
		var answer runtime.Object
		answer, ctx = p.call(ctx, http.MethodPatch, p.path(name)+"/status", strategicPatch, patch)
		if own := ownPod(answer); own != nil {
			return own, nil
		}
	}
	return p.usual.PatchStatus(ctx, name, patch)
}

// Delete is PodWrites'.
func (p directPods) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if opts.TypeMeta == (metav1.TypeMeta{}) && isPlain(p.namespace) && isPlain(name) {
		var answer runtime.Object
		answer, ctx = p.send(ctx, http.MethodDelete, p.path(name), deleteMeta, &opts)
		if answer != nil {
			return nil
		}
	}
	return p.usual.Delete(ctx, name, opts)
}

// Bind is PodWrites'.
func (p directPods) Bind(ctx context.Context, binding *corev1.Binding) error {
	if binding != nil && isPlain(p.namespace) && isPlain(binding.Name) {
		var answer runtime.Object
		answer, ctx = p.send(ctx, http.MethodPost, p.path(binding.Name)+"/binding", bindingMeta, binding)
		if answer != nil {
			return nil
		}
	}
	return p.usual.Bind(ctx, binding)
}

func (p directPods) path(name string) string {
	return "/api/v1/namespaces/" + p.namespace + "/pods/" + name
}

// isPlain reports whether a name can stand in a path without escapes. Kubernetes' names can.
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
	protobufOnly   = []string{runtime.ContentTypeProtobuf}
	strategicPatch = []string{string(types.StrategicMergePatchType)}
	accepted       = []string{runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}
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
