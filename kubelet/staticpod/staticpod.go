// SPDX-License-Identifier: Apache-2.0

// Package staticpod reads static pods from manifests in a directory and watches the directory by inotify. The kubelet
// calls it, and runs the pods even without an API server. It never writes manifests and creates no mirror pods.
package staticpod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"keelson/kubelet/podinfo"
	"keelson/lib/quantity"
	"keelson/lib/signal"
)

// Dir is a directory of pod manifests, one pod per file, YAML or JSON.
type Dir struct {
	path string
	node string
	log  *slog.Logger
	seen time.Time

	files map[types.UID]string // of the last Read
}

// Open creates the directory if it is missing.
func Open(path, node string, log *slog.Logger) (*Dir, error) {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, fmt.Errorf("static pod directory %s: %w", path, err)
	}
	return &Dir{
		path: path,
		node: node,
		log:  log,
		seen: time.Now(),
	}, nil
}

// File returns the file of a pod of the last Read. Only the goroutine of Read may call it.
func (d *Dir) File(uid types.UID) string { return d.files[uid] }

// Read returns the pods of all valid files. It logs the invalid ones.
func (d *Dir) Read() []*corev1.Pod {
	ents, err := os.ReadDir(d.path)
	if err != nil {
		d.log.Warn("read static pods", "dir", d.path, "err", err)
		return nil
	}
	var out []*corev1.Pod
	d.files = map[types.UID]string{}
	for _, e := range ents {
		if strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~") {
			continue
		}
		file := filepath.Join(d.path, e.Name())
		st, err := os.Stat(file)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		b, err := os.ReadFile(file) // the administrator's directory
		if err == nil {
			var p *corev1.Pod
			if p, err = Parse(b, d.node); err == nil {
				p.Annotations[podinfo.AnnotationSeen] = d.seen.Format(time.RFC3339Nano)
				d.files[p.UID] = file
				if problem := wrongPriority(p); problem != "" {
					d.log.Warn("priority of a static pod", "file", file, "problem", problem)
				}
				out = append(out, p)
				continue
			}
		}
		d.log.Warn("read static pod", "file", file, "err", err)
	}
	return out
}

// wrongPriority returns what is wrong with a static pod's priority, which no API server has checked; empty: nothing.
// The pod runs all the same.
func wrongPriority(pod *corev1.Pod) string {
	values := map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
	want, known := values[pod.Spec.PriorityClassName]
	switch class := pod.Spec.PriorityClassName; {
	case class != "" && !known:
		return fmt.Sprintf("priorityClassName %q is unknown to a kubelet: use system-node-critical or "+
			"system-cluster-critical", class)
	case class != "" && pod.Spec.Priority != nil && *pod.Spec.Priority != want:
		return fmt.Sprintf("priority %d is not that of %s: leave it out, or use %d", *pod.Spec.Priority, class, want)
	case class == "" && pod.Spec.Priority != nil && *pod.Spec.Priority != 0:
		return fmt.Sprintf("priority %d has no priorityClassName: set system-node-critical or system-cluster-critical",
			*pod.Spec.Priority)
	}
	return ""
}

// maxManifest is the limit for a file, in bytes.
const maxManifest = 1 << 20

// Parse parses one pod and completes it as a static pod: the node name as suffix of its name, a UID from its content,
// and the tolerations and defaults that the API server would set.
func Parse(b []byte, node string) (*corev1.Pod, error) {
	if len(b) > maxManifest {
		return nil, fmt.Errorf("manifest of %d bytes is larger than %d", len(b), maxManifest)
	}
	var pod corev1.Pod
	if doc, err := yaml.YAMLToJSON(b); err == nil { // UnmarshalStrict reports what is no YAML
		if err := quantity.CheckJSON(doc, reflect.TypeOf(&pod)); err != nil {
			return nil, fmt.Errorf("not a pod: %w", err)
		}
	}
	if err := yaml.UnmarshalStrict(b, &pod); err != nil {
		return nil, fmt.Errorf("not a pod: %w", err)
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, fmt.Errorf("kind %q of apiVersion %q is not a static pod: that has kind Pod and apiVersion v1",
			pod.Kind, pod.APIVersion)
	}
	if pod.Name == "" || len(pod.Spec.Containers) == 0 {
		return nil, errors.New("a pod needs a name and a container")
	}
	if err := checkReferences(&pod); err != nil {
		return nil, err
	}
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	pod.Name += "-" + strings.ToLower(node)
	sum := sha256.Sum256(append([]byte(node+"\x00"), b...))
	hash := hex.EncodeToString(sum[:16])
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	pod.Spec.NodeName = node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[podinfo.AnnotationHash] = hash
	pod.Annotations[podinfo.AnnotationSource] = "file"
	delete(pod.Annotations, podinfo.AnnotationMirror)
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
		Operator: corev1.TolerationOpExists,
		Effect:   corev1.TaintEffectNoExecute,
	})
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	scheme.Scheme.Default(&pod)
	defaults(&pod)
	return &pod, nil
}

// defaults sets the defaults on which the kubelet relies.
func defaults(p *corev1.Pod) {
	spec := &p.Spec
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if spec.DNSPolicy == "" {
		spec.DNSPolicy = corev1.DNSClusterFirst
	}
	if spec.TerminationGracePeriodSeconds == nil {
		g := int64(corev1.DefaultTerminationGracePeriodSeconds)
		spec.TerminationGracePeriodSeconds = &g
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			container := &list[i]
			if container.TerminationMessagePath == "" {
				container.TerminationMessagePath = corev1.TerminationMessagePathDefault
			}
			if container.TerminationMessagePolicy == "" {
				container.TerminationMessagePolicy = corev1.TerminationMessageReadFile
			}
			if container.ImagePullPolicy == "" {
				container.ImagePullPolicy = corev1.PullIfNotPresent
				if tag := container.Image[strings.LastIndexByte(container.Image, '/')+1:]; !strings.Contains(
					container.Image, "@") &&
					(strings.HasSuffix(tag, ":latest") || !strings.Contains(tag, ":")) {
					container.ImagePullPolicy = corev1.PullAlways
				}
			}
		}
	}
}

// Watch calls changed with all pods after each change of the directory, and after each receive from again, until ctx is
// done.
func (d *Dir) Watch(ctx context.Context, again <-chan struct{}, changed func([]*corev1.Pod)) error {
	in, err := newInotify(d.path)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	defer func() { <-done }()
	defer in.stop()
	news := signal.New()
	go func() { // ends when in is stopped
		defer close(done)
		for in.wait() {
			news.Notify()
		}
	}()
	changed(d.Read()) // what happened before the watch began
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
			changed(d.Read())
			continue
		case <-news.C():
		}
		select { // an editor writes in several steps
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		select {
		case <-news.C():
		default:
		}
		changed(d.Read())
	}
}
