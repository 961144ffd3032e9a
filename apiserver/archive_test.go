// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keelson/apiserver/openapi"
	"keelson/apiserver/outbound"
	"keelson/store/embed"
)

var update = flag.Bool("update", false, "rewrite openapi/archive.bin")

// TestArchive: the documents that the program brings are those that the sources describe.
func TestArchive(t *testing.T) {
	const file = "openapi/archive.bin"
	st, err := embed.Open(embed.Options{Dir: "archive", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	data := Open(DataConfig{Store: st, Outbound: outbound.New(outbound.Config{})})
	want, err := openapi.Archive(openAPIResources(data.Served.AllBuiltIn()))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s (%d bytes) is not what the sources give (%d bytes): run go generate ./apiserver/openapi", file, len(got),
			len(want))
	}
}
