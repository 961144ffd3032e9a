// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/logs"
	"keelson/kubelet/runtimestate"
	"keelson/lib/inroot"
)

// Bounds of a termination message: from its file, and from the log instead; and of all messages of a pod, which its
// containers share evenly.
const (
	maxMessage      = 4096
	maxPodMessages  = 12 << 10
	maxMessageLines = 80
	maxMessageLog   = 2048
)

// messageLimit is how many bytes the message of one of the pod's containers may have.
func messageLimit(pod *corev1.Pod) int {
	containers := len(pod.Spec.InitContainers) + len(pod.Spec.Containers) + len(pod.Spec.EphemeralContainers)
	return min(maxMessage, maxPodMessages/max(containers, 1))
}

// terminationMessage returns the message of a terminated container of the pod, cut as Kubernetes cuts it.
func terminationMessage(pod *corev1.Pod, container *corev1.Container, cur *runtimestate.Container) string {
	text := wholeMessage(container, cur)
	if limit := messageLimit(pod); len(text) > limit {
		return strings.ToValidUTF8(text[:limit], "")
	}
	return text
}

// wholeMessage reads what the container has left as its message.
func wholeMessage(container *corev1.Container, cur *runtimestate.Container) string {
	msg := ""
	for _, m := range cur.Mounts {
		if container.TerminationMessagePath == "" || m.GetContainerPath() != container.TerminationMessagePath {
			continue
		}
		s, err := readTail(m.GetHostPath(), maxMessage)
		if err != nil && !os.IsNotExist(err) {
			s = fmt.Sprintf("Error on reading termination log %s: %v", m.GetHostPath(), err)
		}
		msg = s
		break
	}
	if msg != "" || cur.ExitCode == 0 ||
		container.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
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
	file, err := dir.OpenFile(filepath.Base(path), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // read only
	st, err := file.Stat()
	if err != nil {
		return "", err
	}
	if st.Size() > limit {
		if _, err := file.Seek(-limit, io.SeekEnd); err != nil {
			return "", err
		}
	}
	b, err := io.ReadAll(io.LimitReader(file, limit))
	return string(b), err
}
