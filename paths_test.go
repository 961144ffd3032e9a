// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

// foreignTrees are the packages that work in trees which an image, a container or a registry can write. They resolve
// paths by lib/inroot alone, never by name; the same rule is in .golangci.yml.
var foreignTrees = []string{"runtime/image", "runtime/snapshot", "kubelet/volume", "kubelet/logs"}

// byName are the calls that resolve a path by its name.
var byName = map[string]*regexp.Regexp{
	"os": regexp.MustCompile(
		`^(Chdir|Chmod|Chown|Chtimes|CopyFS|Create|CreateTemp|DirFS|Lchown|Link|Lstat|Mkdir|MkdirAll|MkdirTemp|` +
			`Open|OpenFile|OpenInRoot|OpenRoot|ReadDir|ReadFile|Readlink|Remove|RemoveAll|Rename|Stat|Symlink|Truncate|WriteFile)$`),
	"filepath": regexp.MustCompile(`^(EvalSymlinks|Glob|Walk|WalkDir)$`),
	"ioutil":   regexp.MustCompile(`.`),
	"unix": regexp.MustCompile(
		`^(Access|Chmod|Chown|Creat|Faccessat|Fchmodat|Fchownat|Lchown|Lgetxattr|Link|Linkat|Listxattr|Llistxattr|` +
			`Lremovexattr|Lsetxattr|Lstat|Mkdir|Mkdirat|Mknod|Mknodat|Getxattr|Open|Openat|Openat2|Readlink|Readlinkat|Removexattr|Rename|Renameat|` +
			`Renameat2|Rmdir|Setxattr|Stat|Statx|Symlink|Symlinkat|Truncate|Unlink|Unlinkat|UtimesNano|UtimesNanoAt)$`),
	"syscall": regexp.MustCompile(
		`^(Chmod|Chown|Lchown|Link|Lstat|Mkdir|Mknod|Open|Openat|Readlink|Rename|Rmdir|Stat|Symlink|Unlink)$`),
}

// trusted are the files that may: what they name, no image and no container can write to.
var trusted = map[string]string{
	"runtime/image/archive/archive.go": "the spool of an import in the store's own tmp; an archive's names are keys of " +
		"a map",
	"runtime/image/builtin.go": "builtin.json of the store",
	"runtime/image/gc.go": "lists of works, and the directories that hold layers; what is in layers goes by " +
		"removeTree",
	"runtime/image/imagetest/imagetest.go": "directories of tests",
	"runtime/image/index.go":               "images.json",
	"runtime/image/layer.go":               "layer.json and the directory that holds a layer; what is in it goes by inroot",
	"runtime/image/paths.go":               "the store's own directories",
	"runtime/image/lease.go":               "the files of leases",
	"runtime/image/lock.go":                "the locks of the store, and what the kernel says of them",
	"runtime/image/work.go":                "directories and lists of works, in the store's own tmp",
	"runtime/snapshot/mapped.go":           "the directories that hold mount points",
	"runtime/snapshot/mount.go":            "what the kernel says of itself, and the directories handed to mount(2)",
	"runtime/snapshot/snapshot.go": "the directories that hold mount points, and the list of layers; what is in " +
		"them goes by removeTree",
	"kubelet/volume/devices.go": "the block device that an administrator's local volume names: it means what it " +
		"means on the host",
	"kubelet/volume/filesystem.go": "the block device that an administrator's local volume names, and marks of file " +
		"systems that are being made, which no container sees",
	"kubelet/volume/hostpath.go": "paths of the host that a pod or volume names: they mean what they mean on the " +
		"host, links followed",
	"kubelet/volume/localdirs.go":   "the directory of all local volumes, which no container sees",
	"kubelet/volume/mount_linux.go": "the kubelet's own directories as mountinfo names them",
	"kubelet/volume/trust.go":       "the state of certificates, which no container sees",
	"kubelet/volume/usage.go": "the directory or device that an administrator's local volume names; nothing of " +
		"it is read but its size",
	"kubelet/volume/volume.go": "the directories of all pods, which no container sees",
	"kubelet/logs/segments.go": "times and identities of rotated logs; they are opened by openLog",
	"kubelet/logs/read.go":     "times of rotated logs; they are opened by openLog",
	"kubelet/logs/rotate.go":   "size and name of a log; nothing of it is read",
}

// TestForeignTreesGoByInroot finds calls that resolve a path by name in the packages that may not, and exceptions
// nobody needs any more.
func TestForeignTreesGoByInroot(t *testing.T) {
	used := map[string]bool{}
	for file := range goFiles(t) {
		if !contains(foreignTrees, path.Dir(file)) || strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(node ast.Node) bool {
			sel, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok || byName[pkg.Name] == nil || !byName[pkg.Name].MatchString(sel.Sel.Name) {
				return true
			}
			if used[file] = true; trusted[file] == "" {
				t.Errorf("%s: %s.%s resolves a path by name in a tree that others write: use lib/inroot",
					fset.Position(node.Pos()), pkg.Name, sel.Sel.Name)
			}
			return true
		})
	}
	for file := range trusted {
		if !used[file] {
			t.Errorf("%s is an exception that nobody needs any more: take it out of the list", file)
		}
	}
}

func contains(dirs []string, dir string) bool {
	for _, d := range dirs {
		if dir == d || strings.HasPrefix(dir, d+"/") {
			return true
		}
	}
	return false
}
