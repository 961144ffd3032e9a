// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"
)

// level is a platform in the spelling of Go, with the generation of the processor that it needs.
type level struct {
	OS, Architecture string
	level            int
}

// spellings are the names that tools give architectures, besides Go's.
var spellings = map[string]level{
	"i386":    {Architecture: "386"},
	"i686":    {Architecture: "386"},
	"x86_64":  {Architecture: "amd64"},
	"x86-64":  {Architecture: "amd64"},
	"aarch64": {Architecture: "arm64"},
	"armhf":   {Architecture: "arm", level: 7},
	"armel":   {Architecture: "arm", level: 6},
}

// usual is the variant that an architecture without one means.
var usual = map[string]int{
	"amd64": 1,
	"arm64": 8,
	"arm":   7,
}

// narrow is the 32-bit architecture whose programs processors of a 64-bit one run too.
var narrow = map[string]string{
	"amd64": "386",
	"arm64": "arm",
}

// newest is a variant that no processor has, so that images of an unknown variant do not run.
const newest = 1 << 10

// runsOn reports whether a node of linux/arch runs what is for the platform.
func (p *platform) runsOn(arch string) bool {
	return p.rank(arch) > 0
}

// rank returns how well a node of linux/arch runs what is for the platform; 0: not at all. Every variant of the
// node's architecture is above those of the 32-bit one, which containerd falls back to as well.
func (p *platform) rank(arch string) int {
	said := p.normal()
	if said.OS != "linux" || said.level > variants(arch) {
		return 0
	}
	if said.Architecture == arch {
		return newest + said.level
	}
	if name, ok := narrow[arch]; ok && said.Architecture == name {
		return 1 + said.level
	}
	return 0
}

// normal returns the platform as Go and the other runtimes spell it: Linux/x86_64 is linux/amd64. Without an operating
// system it is Linux.
func (p *platform) normal() level {
	out := level{OS: strings.ToLower(p.OS), Architecture: strings.ToLower(p.Architecture)}
	if out.OS == "" {
		out.OS = "linux"
	}
	if s, ok := spellings[out.Architecture]; ok {
		out.Architecture = s.Architecture
		out.level = s.level
	}
	if p.Variant != "" {
		out.level = variant(p.Variant)
	}
	if out.level == 0 {
		out.level = usual[out.Architecture]
	}
	return out
}

// variant returns the number in "v8" or "8.1".
func variant(s string) int {
	whole, _, _ := strings.Cut(strings.TrimPrefix(strings.ToLower(s), "v"), ".")
	n, err := strconv.Atoi(whole)
	if err != nil || n < 0 || n > newest {
		return newest
	}
	return n
}

// variants returns the highest variant of an architecture that this node runs.
func variants(arch string) int {
	if arch == "amd64" {
		return amd64Level()
	}
	return usual[arch]
}

// amd64Level returns the level of the x86-64 psABI that this processor has, as far as its features can be read.
func amd64Level() int {
	x := &cpu.X86
	switch {
	case !x.HasCX16 || !x.HasPOPCNT || !x.HasSSE3 || !x.HasSSSE3 || !x.HasSSE41 || !x.HasSSE42:
		return 1
	case !x.HasAVX || !x.HasAVX2 || !x.HasBMI1 || !x.HasBMI2 || !x.HasFMA || !x.HasOSXSAVE:
		return 2
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512CD || !x.HasAVX512DQ || !x.HasAVX512VL:
		return 3
	}
	return 4
}
