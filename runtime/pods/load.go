// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/record"
)

// damagedDir holds damaged records, for inspection.
const damagedDir = "damaged"

// LoadSandboxes reads the records of sandboxes and adds those that are complete. drop removes an incomplete one, with
// what it may have in the kernel; one without a readable record has an empty one with its id.
func (t *Table) LoadSandboxes(drop func(*Sandbox) error) error {
	entries, err := os.ReadDir(t.SandboxesDir())
	if err != nil {
		return fmt.Errorf("list pod sandboxes: %w", err)
	}
	for _, e := range entries {
		sb := t.NewSandbox(SandboxRecord{
			ID:     e.Name(),
			Config: Message[*runtimeapi.PodSandboxConfig]{&runtimeapi.PodSandboxConfig{}},
		})
		restored, rerr := t.readRecord(filepath.Join(sb.Dir, sandboxFile), func(b []byte) error {
			rec, err := decodeSandbox(sb.ID, b)
			if err == nil {
				sb.rec = rec
			}
			return err
		})
		if rerr == nil && sb.rec.Complete {
			if restored {
				if err := sb.Update(func(*SandboxRecord) {}); err != nil {
					return err
				}
			}
			t.AddSandbox(sb)
			continue
		}
		if rerr == nil {
			t.log.Info("removing an incomplete pod sandbox", "sandbox", sb.ID)
		} else {
			t.log.Info("removing an incomplete pod sandbox", "sandbox", sb.ID, "error", rerr)
		}
		if err := drop(sb); err != nil {
			return fmt.Errorf("remove incomplete pod sandbox %s: %w", sb.ID, err)
		}
	}
	return nil
}

// LoadContainers reads the records of containers and adds those that are complete and have a sandbox in the table, each
// after adopt has compared its record with what runs. drop removes the others.
func (t *Table) LoadContainers(drop func(*Container) error, adopt func(*Container)) error {
	entries, err := os.ReadDir(t.ContainersDir())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		c := t.NewContainer(ContainerRecord{ID: e.Name()})
		restored, rerr := t.readRecord(filepath.Join(c.Dir, containerFile), func(b []byte) error {
			rec, err := decodeContainer(c.ID, b)
			if err == nil {
				c.rec = rec
			}
			return err
		})
		if rerr != nil || !c.rec.Complete || !t.HasSandbox(c.rec.SandboxID) {
			t.log.Info("removing an incomplete container", "container", c.ID, "error", rerr)
			if err := drop(c); err != nil {
				return fmt.Errorf("remove incomplete container %s: %w", c.ID, err)
			}
			continue
		}
		if restored {
			if err := c.Update(func(*ContainerRecord) {}); err != nil {
				return err
			}
		}
		if c.rec.State() == runtimeapi.ContainerState_CONTAINER_EXITED {
			close(c.exited)
		}
		t.AddContainer(c)
		adopt(c)
	}
	return nil
}

// RecordedSandboxes returns the ids of all sandboxes on disk, also of those whose records cannot be read.
func (t *Table) RecordedSandboxes() []string { return dirNames(t.SandboxesDir()) }

// RecordedContainers returns the ids of all containers on disk, also of those whose records cannot be read.
func (t *Table) RecordedContainers() []string { return dirNames(t.ContainersDir()) }

func dirNames(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it does not exist
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// readRecord reads a record from its file or, when that is damaged, from its copy (see lib/record). restored: the copy
// was used, and the caller must write the record again. Damaged files are moved to damagedDir.
func (t *Table) readRecord(path string, decode func([]byte) error) (restored bool, err error) {
	aside := filepath.Join(t.dir, damagedDir)
	damage, err := record.Read(path, decode)
	switch {
	case damage != nil:
		kept, aerr := record.SetAside(path, aside)
		t.log.Error("damaged record restored from its copy; its sandbox or container keeps running", "record", path,
			"kept", kept, "error", errors.Join(damage, aerr))
		return true, nil
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	for _, p := range []string{path, record.Copy(path)} {
		kept, aerr := record.SetAside(p, aside)
		t.log.Error("damaged record has no good copy; its sandbox or container is removed", "record", p, "kept", kept,
			"error", errors.Join(err, aerr))
	}
	return false, err
}
