// SPDX-License-Identifier: Apache-2.0

// Package wireguard reads what nodes say of their ends of WireGuard, and reports which nodes' pods reach each other. It
// does no I/O.
package wireguard

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

const (
	// AnnotationKey is the public key of a node's end of WireGuard, in base64. The node writes its own.
	AnnotationKey = "keelson.dev/wireguard-public-key"
	// AnnotationPort is the UDP port at which that end listens.
	AnnotationPort = "keelson.dev/wireguard-port"
	// AnnotationStart names the start of the process that has that end: its sessions end with it.
	AnnotationStart = "keelson.dev/wireguard-start"
)

// longestStart is how much of AnnotationStart counts, which another node writes.
const longestStart = 64

// KeyLen is the length of a key in bytes.
const KeyLen = 32

// End is a node's end of WireGuard; false: it says of none that could be used.
func End(n *corev1.Node) (key [KeyLen]byte, port uint16, ok bool) {
	p, err := strconv.ParseUint(n.Annotations[AnnotationPort], 10, 16)
	if err != nil || p == 0 {
		return key, 0, false
	}
	b, err := base64.StdEncoding.DecodeString(n.Annotations[AnnotationKey])
	if err != nil || len(b) != KeyLen {
		return key, 0, false
	}
	copy(key[:], b)
	return key, uint16(p), key != [KeyLen]byte{}
}

// Start names the start of a node's end.
func Start(n *corev1.Node) string {
	start := n.Annotations[AnnotationStart]
	return start[:min(len(start), longestStart)]
}

// Between reports whether two nodes' pods talk by WireGuard, or why they do not talk at all.
func Between(node, b *corev1.Node) (encrypted bool, why string) {
	ka, _, one := End(node)
	kb, _, other := End(b)
	switch {
	case node.Name == b.Name || !one && !other:
		return false, ""
	case !one:
		node, b = b, node
		fallthrough
	case !other:
		return false, fmt.Sprintf("node %s sends to other nodes' pods by WireGuard only, and node %s has no key: it "+
			"needs --tunnel=wireguard", node.Name, b.Name)
	case ka == kb:
		return false, fmt.Sprintf(
			"nodes %s and %s have the same WireGuard key: one of them is a copy and needs its own", node.Name, b.Name)
	}
	return true, ""
}

// Keyless are the names of those nodes that have pods, but no key, and how many have one.
func Keyless(nodes []corev1.Node) (keyed int, without []string) {
	for i := range nodes {
		n := &nodes[i]
		switch _, _, ok := End(n); {
		case ok:
			keyed++
		case len(n.Spec.PodCIDRs) > 0:
			without = append(without, n.Name)
		}
	}
	slices.Sort(without)
	return keyed, without
}
