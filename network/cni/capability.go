// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"keelson/lib/quantity"
)

// Annotations of a pod that limit its bandwidth, in bits per second.
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// annotationsCapability is the capability by which containerd, too, passes a pod's annotations to plugins.
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// capabilities returns the capability arguments of a pod, by CNI's conventions (https://www.cni.dev/docs/conventions).
// Plugins get those that they declare.
func capabilities(pod Pod, ranges []netip.Prefix) (map[string]any, error) {
	out := map[string]any{}
	var ports []map[string]any
	for _, p := range pod.Ports {
		m := map[string]any{
			"hostPort":      p.HostPort,
			"containerPort": p.ContainerPort,
			"protocol":      strings.ToLower(p.Protocol),
		}
		if p.HostIP.IsValid() {
			m["hostIP"] = p.HostIP.String()
		}
		ports = append(ports, m)
	}
	if len(ports) > 0 {
		out["portMappings"] = ports
	}
	band, err := bandwidth(pod.Annotations)
	if err != nil {
		return nil, err
	}
	if len(band) > 0 {
		out["bandwidth"] = band
	}
	if d := pod.DNS; len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		out["dns"] = map[string]any{"servers": d.Servers, "searches": d.Searches, "options": d.Options}
	}
	if pod.CgroupParent != "" {
		out["cgroupPath"] = pod.CgroupParent
	}
	if len(pod.Annotations) > 0 {
		out[annotationsCapability] = pod.Annotations
	}
	var sets [][]map[string]string
	for _, r := range ranges {
		sets = append(sets, []map[string]string{{"subnet": r.Masked().String()}})
	}
	if len(sets) > 0 {
		out["ipRanges"] = sets
	}
	return out, nil
}

// bandwidth reads the bandwidth annotations. The burst is the maximum that plugins accept.
func bandwidth(annotations map[string]string) (map[string]int64, error) {
	out := map[string]int64{}
	for _, a := range []struct {
		annotation, word string
	}{{ingressAnnotation, "ingress"}, {egressAnnotation, "egress"}} {
		text, ok := annotations[a.annotation]
		if !ok {
			continue
		}
		rate, err := rateOf(text)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", a.annotation, err)
		}
		out[a.word+"Rate"] = rate
		out[a.word+"Burst"] = math.MaxUint32
	}
	return out, nil
}

// rateOf parses a quantity of bits per second, within Kubernetes' limits.
func rateOf(text string) (int64, error) {
	if len(text) > 64 {
		return 0, fmt.Errorf("%.64q... is not a quantity", text)
	}
	q, err := quantity.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", text, err)
	}
	switch {
	case q.CmpInt64(1000) < 0:
		return 0, fmt.Errorf("%q is unreasonably small (< 1kbit)", text)
	case q.CmpInt64(1e15) > 0:
		return 0, fmt.Errorf("%q is unreasonably large (> 1Pbit)", text)
	}
	return q.Value(), nil
}
