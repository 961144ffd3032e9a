// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ReadKubeconfig returns the client configuration of the kubeconfig named, or of the directory's when named is empty.
func ReadKubeconfig(dir Dir, named string) (*rest.Config, error) {
	path := named
	if path == "" {
		path = dir.Kubeconfig()
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, kubeconfigError(dir, named, openError(path), err)
	}
	return c, nil
}

// openError is why a file cannot be opened for reading; nil: it can. The errors of clientcmd do not wrap it. It does
// not wait for the writer of a pipe.
func openError(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// kubeconfigError explains why the kubeconfig named, or the directory's when named is empty, cannot be used. opening is
// the error of opening it, or nil.
func kubeconfigError(dir Dir, named string, opening, err error) error {
	switch {
	case errors.Is(opening, fs.ErrPermission):
		return Unreadable(opening)
	case named == "" && (errors.Is(opening, fs.ErrNotExist) || errors.Is(opening, syscall.ENOTDIR)):
		return NoCluster(dir)
	case named == "":
		named = dir.Kubeconfig()
	case errors.Is(opening, fs.ErrNotExist):
		return fmt.Errorf("there is no kubeconfig %s: %w", named, fs.ErrNotExist)
	}
	return fmt.Errorf("%s cannot be read as a kubeconfig: %w", named, err)
}

// NoCluster says that no cluster was ever started in the directory, or that it is none and cannot become one.
func NoCluster(dir Dir) error {
	if _, err := os.Stat(dir.Kubeconfig()); errors.Is(err, syscall.ENOTDIR) {
		return notADirectory(string(dir), err)
	}
	return fmt.Errorf("no cluster in %s (start one with `keelson up --data-dir %s`)", dir, dir)
}

// Started is an error unless the directory has the kubeconfig of a cluster.
func (d Dir) Started() error {
	_, err := os.Stat(d.Kubeconfig())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return Unreadable(err)
	}
	return NoCluster(d)
}

// Unreadable adds what to do to the error of a file that may not be opened. It returns other errors as they are.
func Unreadable(err error) error {
	var at *fs.PathError
	if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &at) {
		return err
	}
	return fmt.Errorf("%s cannot be opened: %w; run this command as its owner or as root", at.Path, at.Err)
}
