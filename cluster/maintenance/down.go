// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
)

// Down stops the instance that runs on dir and removes all its kernel objects: containers, mounts, network (P9).
// Objects of the API stay unless purge deletes the directory. Without a running instance it removes what a crash has
// left. roles removes what the roles have in the kernel.
func Down(
	ctx context.Context, dir datadir.Dir, roles nodehost.Purge, purge bool, progress func(string, time.Duration),
) error {
	if _, err := os.Stat(string(dir)); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no cluster in %s", dir)
	}
	found, err := dir.Resolve()
	switch {
	case datadir.DiskFailed(err):
		found = dir.Named()
	case err != nil:
		return datadir.Unreadable(err)
	}
	dir = found
	start := time.Now()
	if err := stoppable(dir, purge, os.Stat); err != nil {
		return err
	}
	begin := start
	for _, path := range []string{dir.NodePidFile(), dir.PidFile()} { // the node first: it still reports to the server
		if err := stopHolder(path); err != nil {
			return err
		}
	}
	progress("process ended", time.Since(begin))
	for _, take := range []func() (io.Closer, error){dir.Lock, dir.LockNode} {
		lock, err := take()
		if datadir.DiskFailed(err) {
			continue // the processes that held it have ended
		}
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }()
	}
	begin = time.Now()
	waiting := func(what string) { progress("waiting for "+what, time.Since(begin)) }
	if err := nodehost.Remove(ctx, dir, roles, waiting); err != nil {
		return err
	}
	progress("containers, network gone", time.Since(begin))
	if !purge {
		progress("stopped "+string(dir), time.Since(start))
		return nil
	}
	begin = time.Now()
	if err := dir.Erase(); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	progress("data deleted", time.Since(begin))
	progress("stopped "+string(dir), time.Since(start))
	return nil
}

// stoppable returns an error unless a cluster or a node has run on the directory, or a restored one is to be purged.
func stoppable(dir datadir.Dir, purge bool, stat func(string) (fs.FileInfo, error)) error {
	for _, path := range []string{dir.PidFile(), dir.NodePidFile()} {
		switch _, err := stat(path); {
		case err == nil, datadir.DiskFailed(err):
			return nil
		case errors.Is(err, fs.ErrPermission):
			return datadir.Unreadable(err)
		}
	}
	if err := dir.IsDirectory(); err != nil {
		return err
	}
	switch {
	case !dir.RestoredOnly():
		return fmt.Errorf("%s is not a cluster's data directory (no keelson.pid in it)", dir)
	case !purge:
		return fmt.Errorf("nothing runs in %s: its objects were restored, and never started; `keelson down --purge` "+
			"deletes them", dir)
	}
	return nil
}

// stopHolder ends the process that has locked a pid file: first by SIGTERM, after a time by SIGKILL.
func stopHolder(path string) error {
	pid, err := datadir.Holder(path, 0)
	if err != nil || pid == 0 {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find instance %d: %w", pid, err)
	}
	if err := p.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop instance %d: %w", pid, err)
	}
	if err := datadir.WaitGone(path, 30*time.Second); err != nil {
		if kill := p.Kill(); kill != nil && !errors.Is(kill, os.ErrProcessDone) {
			return errors.Join(err, kill)
		}
		return datadir.WaitGone(path, 5*time.Second)
	}
	return nil
}
