// SPDX-License-Identifier: Apache-2.0

// Package builtin makes the image keelson.local/hello from the program images/hello, which the caller passes in.
// Package runtime gives the result to the image store, which serves the image under that name. It never uses the disk
// or a network.
package builtin

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"keelson/runtime/image"
)

// Name is the image's repository.
const Name = "keelson.local/hello"

// links are the command names of the program (see images/hello), which become symbolic links in /bin.
var links = []string{
	"[", "base64", "basename", "cat", "chmod", "chown", "chroot", "clear", "cp", "curl", "cut", "date", "dd", "df",
	"dirname", "du", "echo", "env", "false", "find", "free", "get", "grep", "head", "hostname", "id", "ip", "kill",
	"ln", "ls", "md5sum", "mkdir", "mv", "nc", "nproc", "nslookup", "ping", "printenv", "printf", "ps", "pwd",
	"readlink", "realpath", "rm", "sed", "seq", "sh", "sha256sum", "sleep", "sort", "stat", "stty", "tail", "tar",
	"tee", "test", "timeout", "touch", "tr", "true", "uname", "uniq", "uptime", "wc", "wget", "which", "whoami",
	"xargs", "yes",
}

// epoch is the modification time of every file, so that the same program gives the same digest.
var epoch = time.Unix(0, 0).UTC()

// New describes the image of the program that load returns, a static executable for this machine. stamp identifies the
// program without loading it; empty means unknown. The tags are latest and version; the digests depend on the program
// alone.
func New(load func() ([]byte, error), stamp, version string) *image.Builtin {
	tags := []string{Name + ":latest"}
	if t := tagOf(version); t != "" && t != "latest" {
		tags = append(tags, Name+":"+t)
	}
	return &image.Builtin{
		Tags:  tags,
		Stamp: stamp,
		Load: func() (*image.BuiltinImage, error) {
			program, err := load()
			if err != nil {
				return nil, err
			}
			if len(program) == 0 {
				return nil, errors.New("the program is empty")
			}
			return describe(program)
		},
	}
}

// describe builds the layer and the config, and computes their digests.
func describe(program []byte) (*image.BuiltinImage, error) {
	var layer bytes.Buffer
	layer.Grow(len(program) + 64<<10)
	if err := writeLayer(&layer, program); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	diff := digest.FromBytes(layer.Bytes())
	config := ocispec.Image{
		Created:  &epoch,
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config: ocispec.ImageConfig{
			Entrypoint:   []string{"/hello"},
			Env:          []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"},
			ExposedPorts: map[string]struct{}{"80/tcp": {}},
			WorkingDir:   "/",
			Labels:       map[string]string{"org.opencontainers.image.title": "hello"},
		},
		RootFS:  ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diff}},
		History: []ocispec.History{{Created: &epoch, CreatedBy: "keelson"}},
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	return &image.BuiltinImage{
		ID:      digest.FromBytes(raw).String(),
		Config:  config.Config,
		Created: &epoch,
		DiffID:  diff.String(),
		Size:    int64(layer.Len()),
		Layer:   func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil },
	}, nil
}

// tagOf makes a version usable as a tag: "v1.37.2+keelson" becomes "v1.37.2-keelson".
func tagOf(version string) string {
	t := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, version)
	t = strings.TrimLeft(t, ".-")
	return t[:min(len(t), 128)]
}

// writeLayer writes the only layer: the program, its links, and the few files and directories that programs expect.
func writeLayer(to io.Writer, program []byte) error {
	writer := tar.NewWriter(to)
	var err error
	put := func(h tar.Header, content []byte) {
		if err != nil {
			return
		}
		h.ModTime = epoch
		h.Size = int64(len(content))
		h.Format = tar.FormatUSTAR
		if err = writer.WriteHeader(&h); err == nil && len(content) > 0 {
			_, err = writer.Write(content)
		}
	}
	for _, d := range []string{"bin/", "dev/", "etc/", "proc/", "root/", "sys/", "usr/", "var/"} {
		put(tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755}, nil)
	}
	put(tar.Header{
		Typeflag: tar.TypeSymlink,
		Name:     "usr/bin",
		Linkname: "../bin",
		Mode:     0o777,
	}, nil)
	put(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644},
		[]byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "hello", Mode: 0o755}, program)
	for _, l := range links {
		put(tar.Header{
			Typeflag: tar.TypeSymlink,
			Name:     path.Join("bin", l),
			Linkname: "../hello",
			Mode:     0o777,
		}, nil)
	}
	if err != nil {
		return err
	}
	return writer.Close()
}
