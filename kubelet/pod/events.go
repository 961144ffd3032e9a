// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/kubelet/logs"
	"keelson/kubelet/observed"
	"keelson/kubelet/podinfo"
	"keelson/lib/inroot"
)

// podRef is a pod as events name it: a static pod by the UID in its mirror's annotation, by which `kubectl describe` looks for them.
func podRef(p *corev1.Pod) *corev1.ObjectReference {
	uid := p.UID
	if hash := p.Annotations[podinfo.AnnotationHash]; podinfo.Static(p) && hash != "" {
		uid = types.UID(hash)
	}
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: uid, ResourceVersion: p.ResourceVersion,
	}
}

// containerRef is one of its containers as events name it.
func containerRef(p *corev1.Pod, c *corev1.Container, k podinfo.Kind) *corev1.ObjectReference {
	r := podRef(p)
	r.FieldPath = "spec." + k.Field() + "{" + c.Name + "}"
	return r
}

// waitingEvents makes an event of each new reason why a container waits.
func (w *Worker) waitingEvents(in Input, plan Plan) {
	for c, k := range podinfo.All(in.Pod) {
		why := plan.Waiting[c.Name]
		said := why.Reason
		if cur := in.Seen.Latest(c.Name); why.Reason == "CrashLoopBackOff" && cur != nil {
			said += cur.ID
		}
		if w.s.said[c.Name] == said {
			continue
		}
		w.s.said[c.Name] = said
		ref := containerRef(in.Pod, c, k)
		switch why.Reason {
		case "CrashLoopBackOff":
			w.env.Events.Eventf(ref, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s", c.Name, podinfo.FullName(in.Pod))
		case reasonBackoff:
			w.env.Events.Eventf(ref, corev1.EventTypeNormal, "BackOff", "Back-off pulling image %q", why.Image)
			w.env.Events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+why.Reason)
		case "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError":
			w.env.Events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+why.Reason)
		case reasonConfig, reasonCreate:
			w.env.Events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+why.Message)
		}
	}
}

// Bounds of a termination message: from its file, and from the log instead.
const (
	maxMessage      = 4096
	maxMessageLines = 80
	maxMessageLog   = 2048
)

// terminationMessage is what a dead container had to say.
func terminationMessage(c *corev1.Container, cur *observed.Container) string {
	msg := ""
	for _, m := range cur.Mounts {
		if c.TerminationMessagePath == "" || m.GetContainerPath() != c.TerminationMessagePath {
			continue
		}
		s, err := readTail(m.GetHostPath(), maxMessage)
		if err != nil && !os.IsNotExist(err) {
			s = fmt.Sprintf("Error on reading termination log %s: %v", m.GetHostPath(), err)
		}
		msg = s
		break
	}
	if msg != "" || cur.ExitCode == 0 || c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return msg
	}
	s, err := logs.Tail(cur.LogPath, maxMessageLines, maxMessageLog)
	if err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	return s
}

// readTail reads the last limit bytes of a regular file. A container may have put something else there, at any time.
func readTail(path string, limit int64) (string, error) {
	dir, err := inroot.Open(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer func() { _ = dir.Close() }() // O_PATH
	f, err := dir.OpenFile(filepath.Base(path), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // read only
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if st.Size() > limit {
		if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
			return "", err
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return string(b), err
}
