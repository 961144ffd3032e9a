// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrOtherPlatform means a valid image for another platform.
var ErrOtherPlatform = fmt.Errorf("%w: no match for platform", ErrInvalid)

// Limits of what an image says of its process. It is kept in images.json, which is read and written as a whole.
const (
	maxStrings  = 4096      // variables, or arguments
	maxVolumes  = 128       // directories that are mounted into each container
	maxKept     = 128 << 10 // bytes of all of them
	maxKeptWord = 4096      // bytes of the user, the working directory, the stop signal
)

type stringList []string // of a config

// UnmarshalJSON reads at most maxStrings strings.
func (l *stringList) UnmarshalJSON(raw []byte) error {
	return decodeOnce((*[]string)(l), raw, maxStrings)
}

type stringSet map[string]struct{} // of a config: an object whose values do not matter

// UnmarshalJSON reads at most maxVolumes names.
func (s *stringSet) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return errors.Join(errors.New("not an object"), err)
	}
	if *s != nil {
		return errors.New("given twice")
	}
	out := stringSet{}
	for n := 0; dec.More(); n++ {
		if n == maxVolumes {
			return fmt.Errorf("%w: more than %d", errTooMany, maxVolumes)
		}
		name, err := dec.Token()
		if err != nil {
			return err
		}
		if err := dec.Decode(&struct{}{}); err != nil {
			return err
		}
		if text, ok := name.(string); ok {
			out[text] = struct{}{}
		}
	}
	*s = out
	return nil
}

// Config has the fields of an image's config that are used. History, labels and ports are not kept in memory.
type Config struct {
	OS           string     `json:"os"`
	Architecture string     `json:"architecture"`
	Variant      string     `json:"variant"`
	Created      *time.Time `json:"created"`
	Process      struct {
		User       string     `json:"User"`
		Env        stringList `json:"Env"`
		Entrypoint stringList `json:"Entrypoint"`
		Cmd        stringList `json:"Cmd"`
		WorkingDir string     `json:"WorkingDir"`
		StopSignal string     `json:"StopSignal"`
		Volumes    stringSet  `json:"Volumes"`
	} `json:"config"`
	RootFS struct {
		Type    string     `json:"type"`
		DiffIDs diffIDList `json:"diff_ids"`
	} `json:"rootfs"`
}

// ParseConfig reads an image's config and checks it against its limits and the machine's platform; arch is empty when
// an index has named the platform. The error does not repeat what the config says, except its platform.
func ParseConfig(raw []byte, arch string) (*Config, error) {
	if len(raw) > MaxDocument {
		return nil, fmt.Errorf("%w: config of %d bytes, at most %d are allowed", ErrInvalid, len(raw), MaxDocument)
	}
	var c Config
	switch err := json.Unmarshal(raw, &c); {
	case errors.Is(err, errTooMany):
		return nil, fmt.Errorf("%w: config with more than %d layers, %d variables or arguments, or %d volumes",
			ErrInvalid, maxLayers, maxStrings, maxVolumes)
	case err != nil:
		return nil, fmt.Errorf("%w: config is not the JSON it should be", ErrInvalid)
	}
	said := platform{OS: c.OS, Architecture: cmp.Or(c.Architecture, arch), Variant: c.Variant}
	if arch != "" && !said.runsOn(arch) {
		return nil, fmt.Errorf("%w: image is for %s, this node is linux/%s", ErrOtherPlatform, &said, arch)
	}
	if t := c.RootFS.Type; t != "" && t != "layers" {
		return nil, fmt.Errorf("%w: the root file system in the config is of another type than layers", ErrInvalid)
	}
	for _, d := range c.RootFS.DiffIDs {
		if !IsDigest(d) {
			return nil, fmt.Errorf("%w: layer digest in config is not sha256", ErrInvalid)
		}
	}
	return &c, c.checkSize()
}

// checkSize bounds what is kept of a config.
func (c *Config) checkSize() error {
	p := &c.Process
	size := 0
	for _, list := range [][]string{p.Env, p.Entrypoint, p.Cmd} {
		for _, s := range list {
			size += len(s)
		}
	}
	for name := range p.Volumes {
		size += len(name)
	}
	if size > maxKept {
		return fmt.Errorf("%w: image has %d bytes of environment, arguments and volumes, at most %d are allowed",
			ErrInvalid, size, maxKept)
	}
	if max(len(p.User), len(p.WorkingDir), len(p.StopSignal)) > maxKeptWord {
		return fmt.Errorf("%w: user, working directory or stop signal of an image with more than %d bytes", ErrInvalid,
			maxKeptWord)
	}
	return nil
}

// Kept returns what the store keeps of a config.
func (c *Config) Kept() ocispec.ImageConfig {
	return ocispec.ImageConfig{
		User:       c.Process.User,
		Env:        c.Process.Env,
		Entrypoint: c.Process.Entrypoint,
		Cmd:        c.Process.Cmd,
		WorkingDir: c.Process.WorkingDir,
		StopSignal: c.Process.StopSignal,
		Volumes:    c.Process.Volumes,
	}
}
