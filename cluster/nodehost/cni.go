// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"keelson/cluster/datadir"
	"keelson/event"
	"keelson/lib/option"
	"keelson/network"
	"keelson/network/cni"
	"keelson/runtime"
)

// CNIOptions configure CNI plugins in place of the built-in pod network. The zero value disables them.
type CNIOptions struct {
	On bool
	// ConfDir holds the CNI configuration; "": defaultConfDir. Setting it enables the plugins.
	ConfDir string
	// BinDirs hold the plugins; none: defaultBinDirs.
	BinDirs []string
}

const defaultConfDir = "/etc/cni/net.d"

// defaultBinDirs are where Kubernetes distributions and Debian install plugins.
var defaultBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

// Rows are the options of the plugins.
func (o *CNIOptions) Rows() []option.Row {
	return []option.Row{
		option.New(&o.On, "cni", false, "set up pod networks with CNI plugins, by the first configuration in "+
			"--cni-conf-dir, in place of the built-in network"),
		option.New(&o.ConfDir, "cni-conf-dir", "", "`DIRECTORY` of CNI network configurations; implies --cni (default "+
			defaultConfDir+")"),
		option.New(&o.BinDirs, "cni-bin-dir", nil,
			"`DIRECTORIES` of CNI plugins, separated by commas (default /opt/cni/bin,/usr/lib/cni)"),
	}
}

// Enabled reports whether plugins attach pods.
func (o CNIOptions) Enabled() bool { return o.On || o.ConfDir != "" }

// Validate returns one sentence for each error.
func (o CNIOptions) Validate() error {
	var errs []error
	if o.ConfDir != "" && !filepath.IsAbs(o.ConfDir) {
		errs = append(errs, fmt.Errorf("--cni-conf-dir %q is not an absolute path", o.ConfDir))
	}
	for _, dir := range o.BinDirs {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("--cni-bin-dir %q is not an absolute path", dir))
		}
	}
	if len(o.BinDirs) > 0 && !o.Enabled() {
		errs = append(errs, errors.New("--cni-bin-dir is for CNI plugins, which --cni switches on"))
	}
	return errors.Join(errs...)
}

// open returns the CNI network. It exists even when plugins are disabled, to detach pods of an earlier run.
func (o CNIOptions) open(dir datadir.Dir, ranges []netip.Prefix, log *slog.Logger) (*cni.Network, error) {
	cfg := cni.Config{
		ID:       dir.ID(),
		Dir:      dir.Sub("cni"),
		ConfDir:  o.ConfDir,
		BinDirs:  o.BinDirs,
		IPRanges: ranges,
		Log:      log,
	}
	if cfg.ConfDir == "" {
		cfg.ConfDir = defaultConfDir
	}
	if len(cfg.BinDirs) == 0 {
		cfg.BinDirs = defaultBinDirs
	}
	return cni.New(cfg)
}

// network returns the network to which new pods are attached. The other network may still have pods of an earlier run.
func (o CNIOptions) network(pods *network.Network, plugins *cni.Network) runtime.Network {
	if o.Enabled() {
		return bothNetworks{pluginNetwork{plugins}, pods}
	}
	return bothNetworks{podNetwork{pods}, plugins}
}

// bothNetworks attaches pods to one network and detaches them from both.
type bothNetworks struct {
	runtime.Network
	before interface {
		Detach(ctx context.Context, id string) error
		Attached() []string
	}
}

// Detach detaches a pod from both networks. At most one of them has it.
func (e bothNetworks) Detach(ctx context.Context, id string) error {
	return errors.Join(e.Network.Detach(ctx, id), e.before.Detach(ctx, id))
}

// Attached lists the pods of both networks.
func (e bothNetworks) Attached() []string {
	return append(e.Network.Attached(), e.before.Attached()...)
}

// podNetwork adapts the built-in network to runtime.Network.
type podNetwork struct{ *network.Network }

// Attach creates a pod's link and address.
func (n podNetwork) Attach(ctx context.Context, pod runtime.Pod) (runtime.Attachment, error) {
	list := make([]network.PortMapping, len(pod.Ports))
	for i, p := range pod.Ports {
		list[i] = network.PortMapping(p)
	}
	addrs, err := n.Network.Attach(ctx, pod.ID, pod.Netns, list)
	return runtime.Attachment{Addrs: addrs}, err
}

// Watch reports nothing: the built-in network is always ready.
func (podNetwork) Watch(ctx context.Context, report func(error)) error {
	report(nil)
	<-ctx.Done()
	return nil
}

// pluginNetwork adapts the CNI plugins to runtime.Network.
type pluginNetwork struct{ *cni.Network }

// Attach runs the plugins to connect a pod.
func (n pluginNetwork) Attach(ctx context.Context, pod runtime.Pod) (runtime.Attachment, error) {
	in := cni.Pod{
		ID:           pod.ID,
		Netns:        pod.Netns,
		Namespace:    pod.Namespace,
		Name:         pod.Name,
		UID:          pod.UID,
		Annotations:  pod.Annotations,
		CgroupParent: pod.CgroupParent,
		DNS: cni.DNS{
			Servers:  pod.DNS.GetServers(),
			Searches: pod.DNS.GetSearches(),
			Options:  pod.DNS.GetOptions(),
		},
	}
	for _, p := range pod.Ports {
		in.Ports = append(in.Ports, cni.PortMapping(p))
	}
	got, err := n.Network.Attach(ctx, in)
	out := runtime.Attachment{Addrs: got.Addrs, CNI: got.Network}
	for _, r := range got.Plugins {
		out.Plugins = append(out.Plugins, event.Plugin{Name: r.Plugin, Command: r.Command, Took: r.Took})
	}
	return out, err
}

// detachOnly is the network during `keelson down`: it detaches pods and attaches none.
type detachOnly struct{ *cni.Network }

// Attach is never called.
func (detachOnly) Attach(context.Context, runtime.Pod) (runtime.Attachment, error) {
	return runtime.Attachment{}, errors.New("the node goes down")
}
