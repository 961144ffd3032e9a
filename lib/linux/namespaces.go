// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Namespace is a kind of namespace, as /proc names it.
type Namespace string

// The kinds that HoldNamespaces can make.
const (
	NetworkNamespace Namespace = "net"
	IPCNamespace     Namespace = "ipc"
	UTSNamespace     Namespace = "uts"
)

var cloneFlags = map[Namespace]int{
	NetworkNamespace: unix.CLONE_NEWNET,
	IPCNamespace:     unix.CLONE_NEWIPC,
	UTSNamespace:     unix.CLONE_NEWUTS,
}

// HoldNamespaces makes new namespaces, runs setup in them, and bind-mounts each at dir/<kind>, so that they exist
// without a process. Release unmounts them. After an error nothing stays. setup runs on its own thread and must not
// start goroutines.
func HoldNamespaces(dir string, kinds []Namespace, setup func() error) error {
	return onThread(func() (err error) {
		flags := 0
		for _, k := range kinds {
			flags |= cloneFlags[k]
		}
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("make namespaces: %w", err)
		}
		if err := setup(); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, Release(dir, kinds))
			}
		}()
		for _, k := range kinds {
			at := filepath.Join(dir, string(k))
			if err := os.WriteFile(at, nil, 0o400); err != nil {
				return fmt.Errorf("hold namespace: %w", err)
			}
			if err := unix.Mount("/proc/thread-self/ns/"+string(k), at, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("hold %s namespace: %w", k, err)
			}
		}
		return nil
	})
}

// HoldNamespace bind-mounts a process's namespace of this kind (which may be "pid") at path.
func HoldNamespace(pid int, kind Namespace, path string) error {
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		return fmt.Errorf("hold namespace: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("hold %s namespace of process %d: %w", kind, pid, err)
	}
	return nil
}

// Release unmounts the namespaces that are mounted below dir. Missing ones are not an error.
func Release(dir string, kinds []Namespace) error {
	var errs []error
	for _, k := range kinds {
		at := filepath.Join(dir, string(k))
		if err := Unmount(at); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// InNetwork runs f on a thread in the network namespace mounted at path. Sockets that f opens stay in that namespace;
// goroutines that f starts are not in it.
func InNetwork(path string, f func() error) error {
	return onThread(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("open network namespace: %w", err)
		}
		defer func() { _ = ns.Close() }()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with f, so that changes of the thread affect nothing else.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f, and so does the thread, which stays locked
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// LoopbackUp brings up the loopback interface of the thread's network namespace.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}

// Sysctl sets a sysctl ("net.ipv4.ip_forward") in the calling thread's namespaces.
func Sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(strings.ReplaceAll(name, "/", "\x00"), ".", "/"))
	path = strings.ReplaceAll(path, "\x00", ".") // "net/ipv4/conf/eth0.1/..." names an interface with a dot
	if !strings.HasPrefix(path, "/proc/sys/") {
		return fmt.Errorf("sysctl %q is not a parameter's name", name)
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s: %w", name, err)
	}
	return nil
}
