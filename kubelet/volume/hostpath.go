// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/rootdir"
)

// hostPath returns the real path of a hostPath volume: the kubelet's directory has two names (package rootdir).
func (m *Manager) hostPath(h *corev1.HostPathVolumeSource) string {
	return rootdir.Dir(m.dir).Resolve(h.Path)
}

// checkHostPath checks the type of a hostPath, and creates it for the types that say so. at is the real path.
func checkHostPath(source *corev1.HostPathVolumeSource, at string) error {
	hostPathType := corev1.HostPathUnset
	if source.Type != nil {
		hostPathType = *source.Type
	}
	st, err := os.Stat(at)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	want := func(ok bool, what string) error {
		if missing || !ok {
			return fmt.Errorf("hostPath type check failed: %s is not %s", source.Path, what)
		}
		return nil
	}
	mode := fs.FileMode(0)
	if !missing {
		mode = st.Mode()
	}
	switch hostPathType {
	case corev1.HostPathUnset:
		if missing { // the runtime does not mount a missing path
			return os.MkdirAll(at, 0o755) // the mode that container runtimes use
		}
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(at, 0o755) // documented mode
		}
		return want(mode.IsDir(), "a directory")
	case corev1.HostPathDirectory:
		return want(mode.IsDir(), "a directory")
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY, 0o644) // documented mode
			if err != nil {
				return err
			}
			return f.Close()
		}
		return want(mode.IsRegular(), "a file")
	case corev1.HostPathFile:
		return want(mode.IsRegular(), "a file")
	case corev1.HostPathSocket:
		return want(mode&fs.ModeSocket != 0, "a socket file")
	case corev1.HostPathCharDev:
		return want(mode&fs.ModeCharDevice != 0, "a character device")
	case corev1.HostPathBlockDev:
		return want(mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0, "a block device")
	}
	return fmt.Errorf("hostPath type %q is not known", hostPathType)
}

// checkDirectory checks that the directory of a PersistentVolume exists.
func checkDirectory(path string) error {
	_, err := os.Stat(path)
	return err
}
