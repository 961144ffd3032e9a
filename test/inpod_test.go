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

// inpodImage FILE REF: saves an image of the program in ./inpod as a docker archive.
func inpodImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: inpodimage FILE REF")
	}
	dir, err := os.MkdirTemp("", "keelson-inpod-")
	ts.Check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "inpod")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./inpod") //nolint:noctx // the test's deadline ends it
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		ts.Fatalf("go build ./inpod: %v\n%s", err, out)
	}
	b, err := os.ReadFile(program)
	ts.Check(err)
	img, err := mutate.AppendLayers(empty.Image, layer(ts, "inpod", b, 0o755))
	ts.Check(err)
	file, err := img.ConfigFile()
	ts.Check(err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, v1.Config{Entrypoint: []string{"/inpod"}}
	img, err = mutate.ConfigFile(img, file)
	ts.Check(err)
	ref, err := name.NewTag(args[1])
	ts.Check(err)
	ts.Check(tarball.WriteToFile(ts.MkAbs(args[0]), ref, img))
}
