// SPDX-License-Identifier: Apache-2.0

package apiserver

import "keelson/apiserver/pipeline"

// Cost is cost, for tests outside of the package.
func (s *Server) Cost(rq *pipeline.Request) int { return s.cost(rq) }
