// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/logs"
	"keelson/kubelet/observed"
	"keelson/lib/inroot"
)

// Bounds of a termination message: from its file, and from the log instead.
const (
	maxMessage      = 4096
	maxMessageLines = 80
	maxMessageLog   = 2048
)

// terminationMessage returns a terminated container's message.
func terminationMessage(container *corev1.Container, cur *observed.Container) string {
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
