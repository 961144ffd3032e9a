// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"keelson/lib/linux"
)

// Attach attaches a pod by the plugins (ADD). An attached pod keeps its addresses. After an error the caller calls
// Detach; the attachment then has the plugins that ran.
func (n *Network) Attach(ctx context.Context, pod Pod) (Attachment, error) {
	if err := checkID(pod.ID); err != nil {
		return Attachment{}, err
	}
	defer n.turns.Lock(pod.ID)()
	done, err := n.lockShared()
	if err != nil {
		return Attachment{}, err
	}
	defer done()
	if a := n.known(pod.ID); a != nil {
		if len(a.Addrs) > 0 {
			return Attachment{Addrs: a.Addrs, Network: a.Network}, nil
		}
		if err := n.detach(ctx, pod.ID, a); err != nil {
			return Attachment{}, err
		}
	}
	now := n.current.Load()
	if now.err != nil {
		return Attachment{}, now.err
	}
	return n.add(ctx, pod, now.list)
}

// add runs ADD. What Detach needs is on disk before.
func (n *Network) add(ctx context.Context, pod Pod, list *libcni.NetworkConfigList) (Attachment, error) {
	out := Attachment{Network: list.Name}
	a, err := n.attachmentOf(pod, list)
	if err != nil {
		return out, err
	}
	if err := n.writeAttachment(pod.ID, a); err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, operationLimit)
	defer cancel()
	e := &executor{slots: n.slots, limit: pluginLimit}
	result, err := n.plugins(e).AddNetworkList(ctx, list, a.conf(pod.ID))
	out.Plugins = e.runs
	if err == nil {
		out.Addrs, err = addressesOf(result)
	}
	if err != nil {
		return out, fmt.Errorf("failed to setup network for sandbox %q: %w", pod.ID, withCode(err))
	}
	completed := *a
	completed.Addrs = out.Addrs
	return out, n.writeAttachment(pod.ID, &completed)
}

// attachmentOf returns the record of a pod that is attached to the network of a configuration.
func (n *Network) attachmentOf(pod Pod, list *libcni.NetworkConfigList) (*attachment, error) {
	caps, err := capabilities(pod, n.cfg.IPRanges)
	if err != nil {
		return nil, err
	}
	if _, asked := caps["portMappings"]; asked && !declares(list, "portMappings") {
		n.log.Warn("the pod's host ports do not work: no plugin of the network has the capability portMappings",
			"namespace", pod.Namespace, "pod", pod.Name, "network", list.Name)
	}
	return &attachment{
		Network:      list.Name,
		Netns:        pod.Netns,
		Args:         argsOf(pod),
		Capabilities: caps,
		Config:       list.Bytes,
		BinDirs:      n.cfg.BinDirs,
	}, nil
}

// declares reports whether a plugin of the chain has the capability.
func declares(list *libcni.NetworkConfigList, capability string) bool {
	for _, p := range list.Plugins {
		if p.Network.Capabilities[capability] {
			return true
		}
	}
	return false
}

// argsOf returns the CNI_ARGS that runtimes pass for Kubernetes pods.
func argsOf(pod Pod) [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", pod.Namespace},
		{"K8S_POD_NAME", pod.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", pod.ID},
		{"K8S_POD_UID", pod.UID},
	}
}

// addressesOf returns the addresses of the pod's link in a result: the first of each family.
func addressesOf(r types.Result) ([]netip.Addr, error) {
	res, err := types100.NewResultFromResult(r)
	if err != nil {
		return nil, fmt.Errorf("read the plugins' result: %w", err)
	}
	var out []netip.Addr
	for _, ip := range res.IPs {
		if ip == nil || !ofPod(res, ip) {
			continue
		}
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		a = a.Unmap()
		if !ok || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return nil, fmt.Errorf("the plugins' result has the invalid address %s", ip.Address.IP)
		}
		if len(out) == 0 || len(out) == 1 && out[0].Is4() != a.Is4() {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the plugins' result has no address: the configuration needs a plugin with ipam")
	}
	return out, nil
}

// ofPod reports whether an address is on the pod's link. One without an interface is.
func ofPod(res *types100.Result, ip *types100.IPConfig) bool {
	if ip.Interface == nil {
		return true
	}
	i := *ip.Interface
	if i < 0 || i >= len(res.Interfaces) || res.Interfaces[i] == nil {
		return false
	}
	return res.Interfaces[i].Sandbox != "" && (res.Interfaces[i].Name == podLink || res.Interfaces[i].Name == "")
}

// Detach detaches a sandbox by the plugins (DEL), with the configuration by which it was attached. It is idempotent; an
// unknown sandbox is not an error.
func (n *Network) Detach(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer n.turns.Lock(id)()
	a := n.known(id)
	if a == nil {
		return nil
	}
	done, err := n.lockShared()
	if err != nil {
		return err
	}
	defer done()
	return n.detach(ctx, id, a)
}

// detach runs DEL. The caller holds the sandbox's lock.
func (n *Network) detach(ctx context.Context, id string, a *attachment) error {
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return fmt.Errorf("detach sandbox %q: read the configuration it was attached by: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, operationLimit)
	defer cancel()
	e := &executor{slots: n.slots, limit: pluginLimit}
	if err := n.pluginsIn(a.BinDirs, e).DelNetworkList(ctx, list, a.conf(id)); err != nil {
		return fmt.Errorf("failed to destroy network for sandbox %q: %w", id, withCode(err))
	}
	return n.forget(id, a)
}

// conf returns libcni's description of a sandbox. The path of a namespace that does not exist any more, as after a
// reboot, is empty.
func (a *attachment) conf(id string) *libcni.RuntimeConf {
	netns := a.Netns
	if !linux.IsNamespace(netns) {
		netns = ""
	}
	return &libcni.RuntimeConf{
		ContainerID:    id,
		NetNS:          netns,
		IfName:         podLink,
		Args:           a.Args,
		CapabilityArgs: a.Capabilities,
	}
}
