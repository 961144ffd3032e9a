// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
)

// olderMinors is how many minor versions a node may be older than its API server, as in Kubernetes.
const olderMinors = 3

// warnOfSkew logs a warning if a node of this version is not supported by its API server. It reports whether the server
// has answered.
func warnOfSkew(
	ctx context.Context, api discovery.ServerVersionInterface, node string, log *slog.Logger,
) bool {
	got, err := discovery.ToServerVersionInterfaceWithContext(api).ServerVersionWithContext(ctx)
	if err != nil {
		return false
	}
	if text := skew(node, got.GitVersion); text != "" {
		log.Warn("versions do not fit", "what", text)
	}
	return true
}

// skew returns a sentence if a node is newer than its API server, or too old for it; empty: they fit, or a version is
// not known.
func skew(node, server string) string {
	own, err := version.ParseGeneric(node)
	if err != nil {
		return ""
	}
	other, err := version.ParseGeneric(server)
	if err != nil || own.Major() != other.Major() {
		return ""
	}
	switch {
	case own.Minor() > other.Minor():
		return fmt.Sprintf("this node has %s and is newer than its API server with %s: upgrade the servers first", node,
			server)
	case own.Minor()+olderMinors < other.Minor():
		return fmt.Sprintf("this node has %s and is more than %d minor versions older than its API server with %s: "+
			"upgrade it", node, olderMinors, server)
	}
	return ""
}
