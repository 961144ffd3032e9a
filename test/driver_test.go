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

// driverImage FILE REF: writes an archive with the CSI driver of the kubelet's tests.
func driverImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: driverimage FILE REF")
	}
	program := filepath.Join(ts.Getenv("WORK"), "drivertest")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "../kubelet/csi/drivertest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		ts.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(program)
	ts.Check(err)
	img, err := mutate.AppendLayers(empty.Image, layer(ts, "drivertest", b, 0o755))
	ts.Check(err)
	file, err := img.ConfigFile()
	ts.Check(err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, v1.Config{Entrypoint: []string{"/drivertest"}}
	img, err = mutate.ConfigFile(img, file)
	ts.Check(err)
	ref, err := name.NewTag(args[1])
	ts.Check(err)
	ts.Check(tarball.WriteToFile(ts.MkAbs(args[0]), ref, img))
}
