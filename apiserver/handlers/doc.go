// SPDX-License-Identifier: Apache-2.0

// Package handlers serves requests for API objects. The pipeline calls it with authenticated and authorized requests;
// it decodes, runs admission, defaults, validates and calls storage (apiserver/objects). The server itself also writes
// through it (local.go). It opens connections only to kubelets, pods and services, all through outbound.Egress, and
// keeps no state between requests. It never authenticates; it calls the authorizer only where a request needs a further
// right (an update that creates, for example).
//
// A write passes these steps in this order, whatever its verb:
//
//	decode -> default -> field owners -> mutating admission -> default -> system metadata, prepare -> validate ->
//	validating admission -> store
//
// Start reading at Handler.serve. The files:
//
//	verbs            get list watch create update patch delete deletecollection
//	subresources     binding eviction scale token log; exec, attach and portforward are in connect, and proxy
//	reviews          review, review_check: the response has the result in its status, and nothing is stored
//	shared by verbs  route (rejects requests without a route), options (the query), body (decode), negotiate and
//	                 writelist (content negotiation and the response), admit, preconditions, metadata, largewrites
//	                 (limits concurrent large writes), audit, notechange and endpoints (records of a write for the
//	                 timeline), local (writes of the server itself)
//	connections      connect, proxy, kubelet, relink (links in pages that are proxied), connectionprobe
//	                 (`keelson trace`)
package handlers
