// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"io/fs"
	"syscall"
)

func hasGroup(st fs.FileInfo, gid int) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Gid) == gid
}
