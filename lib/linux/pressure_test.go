// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPressures: the kernel's words become numbers; files that are not there, or not readable, give nothing.
func TestPressures(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cpu.pressure": "some avg10=1.50 avg60=0.25 avg300=0.01 total=1234\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
		"io.pressure": "some avg10=much\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := readPressures(dir, ".pressure")
	want := Pressure{Some: Stall{Total: 1234, Avg10: 1.5, Avg60: .25, Avg300: .01}, Full: Stall{Total: 7}}
	if got.CPU == nil || *got.CPU != want {
		t.Errorf("cpu: got %+v, want %+v", got.CPU, want)
	}
	if got.Memory != nil || got.IO != nil {
		t.Errorf("got memory %v, io %v; want nothing", got.Memory, got.IO)
	}
}
