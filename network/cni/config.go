// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// extensions are the extensions of configuration files.
var extensions = []string{".conf", ".conflist", ".json"}

// maxConfig is the maximum size of a configuration file.
const maxConfig = 1 << 20

// errNoConfig has the text that containerd uses.
var errNoConfig = errors.New("cni plugin not initialized")

// firstConfig returns the path of the configuration in use: the first by name. "": there is none.
func firstConfig(dir string) (string, error) {
	files, err := libcni.ConfFiles(dir, extensions)
	if err != nil || len(files) == 0 {
		return "", err
	}
	return slices.Min(files), nil
}

// load reads the configuration in use, with plugins from separate files.
func load(dir string) (list *libcni.NetworkConfigList, path string, err error) {
	path, err = firstConfig(dir)
	if err != nil {
		return nil, "", fmt.Errorf("%w: read %s: %w", errNoConfig, dir, err)
	}
	if path == "" {
		return nil, "", fmt.Errorf("%w: no network config found in %s: put a .conflist file there", errNoConfig, dir)
	}
	list, err = read(path)
	if err != nil {
		return nil, path, fmt.Errorf("%w: load %s: %w", errNoConfig, path, err)
	}
	return list, path, nil
}

func read(path string) (*libcni.NetworkConfigList, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxConfig {
		return nil, fmt.Errorf("it is not a regular file of at most %d bytes", maxConfig)
	}
	var list *libcni.NetworkConfigList
	if filepath.Ext(path) == ".conflist" {
		if list, err = libcni.NetworkConfFromFile(path); err != nil {
			return nil, err
		}
	} else {
		one, err := libcni.ConfFromFile(path) //nolint:staticcheck // .conf files are still read, as by containerd
		if err != nil {
			return nil, err
		}
		if list, err = libcni.ConfListFromConf(one); err != nil { //nolint:staticcheck // the same
			return nil, err
		}
	}
	return embedPlugins(list)
}

// embedPlugins returns the configuration with all plugins in one list. It is stored with an attachment, for DEL after
// the files have changed.
func embedPlugins(list *libcni.NetworkConfigList) (*libcni.NetworkConfigList, error) {
	if len(list.Plugins) == 0 {
		return nil, errors.New("it lists no plugins")
	}
	out := map[string]any{
		"cniVersion":   list.CNIVersion,
		"name":         list.Name,
		"disableCheck": list.DisableCheck,
		"disableGC":    list.DisableGC,
	}
	var plugins []json.RawMessage
	for _, p := range list.Plugins {
		if strings.ContainsRune(p.Network.Type, os.PathSeparator) || p.Network.Type == "" {
			return nil, fmt.Errorf("plugin type %q is not a file name", p.Network.Type)
		}
		plugins = append(plugins, p.Bytes)
	}
	out["plugins"] = plugins
	b, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(b)
}

// use loads the configuration and checks the plugins' versions (VERSION) and readiness (STATUS).
func (n *Network) use(ctx context.Context) *state {
	list, path, err := load(n.cfg.ConfDir)
	if err != nil {
		return &state{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	c := n.plugins(&executor{slots: n.slots, limit: queryLimit})
	if _, err := c.ValidateNetworkList(ctx, list); err != nil {
		return &state{err: fmt.Errorf("%w: network %q of %s: %w", errNoConfig, list.Name, path, oneLine(err))}
	}
	if err := c.GetStatusNetworkList(ctx, list); err != nil {
		return &state{err: fmt.Errorf("network %q of %s: %w", list.Name, path, withCode(err)), again: true}
	}
	return &state{list: list, path: path}
}

// oneLine formats an error in one line, without list brackets.
func oneLine(err error) error {
	return errors.New(strings.Trim(strings.Join(strings.Fields(err.Error()), " "), "[]"))
}
