// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/client/servers"
	"keelson/cluster/datadir"
	"keelson/pki"
)

// The keys of a cluster are replaced in steps (docs/decisions/0181). Each server does a step in its own directory;
// before the two steps that could lock somebody out, the servers are asked whether everybody is ready.

// Names are the keys that can be replaced: those of the authorities and of service-account tokens.
var Names = []string{"ca", "front-proxy-ca", KubeletClientAuthority, TokenIdentity}

// Steps are the steps of a replacement.
var Steps = []string{"trust", "use", "finish", "cancel"}

// Rotation is a step of the replacement of a key.
type Rotation struct {
	Dir        datadir.Dir
	Name, Step string
	// Force does the step without asking the servers.
	Force bool
}

// Run does the step. A running server takes it over.
func (k Rotation) Run(ctx context.Context) (pki.Step, error) {
	if !slices.Contains(Names, k.Name) {
		return "", fmt.Errorf("there is no key %q to replace: it is one of %s", k.Name, strings.Join(Names, ", "))
	}
	do := map[string]func(dir, name string) error{
		"trust":  pki.Trust,
		"use":    pki.Use,
		"finish": pki.Finish,
		"cancel": pki.Cancel,
	}[k.Step]
	if do == nil {
		return "", fmt.Errorf("%q is no step: it is one of %s", k.Step, strings.Join(Steps, ", "))
	}
	dir, err := resolved(k.Dir)
	if err != nil {
		return "", err
	}
	if !dir.Served() {
		return "", datadir.NoCluster(dir)
	}
	k.Dir = dir
	if !k.Force {
		if err := k.ready(ctx); err != nil {
			return "", err
		}
	}
	if err := k.keepFingerprint(); err != nil { // a step that was killed has not done it
		return "", err
	}
	if err := do(dir.Sub("pki"), k.Name); err != nil {
		return "", datadir.Unreadable(err)
	}
	if err := k.keepFingerprint(); err != nil {
		return "", err
	}
	return pki.StepOf(dir.Sub("pki"), k.Name)
}

// keepFingerprint notes the key that signs now in the list of the directory's keys.
func (k Rotation) keepFingerprint() error {
	ids, err := openIdentities(k.Dir)
	if err != nil {
		return err
	}
	if k.Name == TokenIdentity {
		_, err = ids.tokenKeys()
	} else {
		_, err = ids.authority(k.Name)
	}
	if err != nil {
		return err
	}
	return ids.save()
}

// ready is an error if somebody would be locked out by the step.
func (k Rotation) ready(ctx context.Context) error {
	before := map[string]pki.Step{"use": pki.StepTrust, "finish": pki.StepUse}[k.Step]
	step, err := pki.StepOf(k.Dir.Sub("pki"), k.Name)
	if err != nil || before == "" || step != before {
		return err
	}
	pid, err := k.Dir.Running()
	if err != nil || pid == 0 {
		return err // it is stopped: its next start does the rest
	}
	ctx, cancel := context.WithTimeout(ctx, 6*AnswerLimit)
	defer cancel()
	all, err := apiServers(ctx, k.Dir)
	if err != nil {
		return fmt.Errorf("ask the servers whether they are ready: %w (--force does without)", err)
	}
	own, err := pki.TrustedKeys(k.Dir.Sub("pki"), k.Name)
	if err != nil {
		return err
	}
	found := map[string]keyUsers{}
	for _, host := range slices.Sorted(maps.Keys(all)) {
		if found[host], err = k.ask(ctx, all[host], own); err != nil {
			return fmt.Errorf("server %s: %w (--force does without)", host, err)
		}
	}
	if k.Step != "finish" {
		return nil
	}
	if err := k.unused(ctx, slices.Collect(maps.Values(found)), all[slices.Sorted(maps.Keys(all))[0]]); err != nil {
		return fmt.Errorf("%w (--force does without)", err)
	}
	return nil
}

// apiServers are clients of each API server, by address.
func apiServers(ctx context.Context, dir datadir.Dir) (map[string]kubernetes.Interface, error) {
	to, err := datadir.ReadKubeconfig(dir, "")
	if err != nil {
		return nil, err
	}
	own, err := kubernetes.NewForConfig(to)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(to.Host)
	if err != nil {
		return nil, err
	}
	out := map[string]kubernetes.Interface{at.Host: own}
	list, err := own.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, slice := range list.Items {
		for _, port := range slice.Ports {
			for _, e := range slice.Endpoints {
				if ip, err := netip.ParseAddr(e.Addresses[0]); err == nil && port.Port != nil {
					hosts = append(hosts, net.JoinHostPort(ip.String(), fmt.Sprint(*port.Port)))
				}
			}
		}
	}
	if len(hosts) < 2 { // this server
		return out, nil
	}
	for _, host := range hosts {
		other := rest.CopyConfig(to)
		other.Host = "https://" + host
		other.ServerName = servers.Name
		if out[host], err = kubernetes.NewForConfig(other); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Rotations are the keys of a directory that are being replaced.
func Rotations(dir datadir.Dir) ([]pki.Rotation, error) {
	dir, err := resolved(dir)
	if err != nil {
		return nil, err
	}
	found, err := pki.Rotations(dir.Sub("pki"))
	return found, datadir.Unreadable(err)
}

// AnswerLimit is how long a server may take before its status is that it does not answer.
const AnswerLimit = 5 * time.Second
