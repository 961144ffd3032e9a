// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"keelson/apiserver/pipeline"
	"keelson/lib/connlimit"
)

// Cost is cost, for tests outside of the package.
func (s *Server) Cost(rq *pipeline.Request) int { return seatCost{served: s.data.Served}.of(rq) }

// EnterTunnel takes a place in a node's tunnel.
func (s *Server) EnterTunnel(node string, owner connlimit.Owner) (leave func(), ok bool) {
	return s.data.tunnels.Enter(node, owner)
}
