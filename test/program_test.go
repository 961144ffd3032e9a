// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"
)

// programImage is a command whose arguments are FILE REF: it saves an image of the program in the directory pkg as a
// docker archive.
func programImage(pkg string) func(*testscript.TestScript, bool, []string) {
	base := filepath.Base(pkg)
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 2 {
			ts.Fatalf("the arguments are FILE REF")
		}
		dir, err := os.MkdirTemp("", "keelson-"+base+"-")
		ts.Check(err)
		defer func() { _ = os.RemoveAll(dir) }()
		program := filepath.Join(dir, base)
		// the test's deadline ends it; pkg is ours
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			ts.Fatalf("go build %s: %v\n%s", pkg, err, out)
		}
		b, err := os.ReadFile(program)
		ts.Check(err)
		img, err := mutate.AppendLayers(empty.Image, layer(ts.Check, base, b, 0o755))
		ts.Check(err)
		file, err := img.ConfigFile()
		ts.Check(err)
		file = file.DeepCopy()
		file.OS = "linux"
		file.Architecture = runtime.GOARCH
		file.Config = v1.Config{Entrypoint: []string{"/" + base}}
		img, err = mutate.ConfigFile(img, file)
		ts.Check(err)
		ref, err := name.NewTag(args[1])
		ts.Check(err)
		ts.Check(tarball.WriteToFile(ts.MkAbs(args[0]), ref, img))
	}
}
