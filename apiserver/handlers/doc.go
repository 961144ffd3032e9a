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
// Start reading at Handler.serve, which only routes. The types, in the order of their use:
//
//	finder         finds the resource of a request, and reads objects for the others
//	watches        watch; get and list are functions
//	writes         create, update, patch, delete, deletecollection over HTTP: a file a verb
//	writer         the steps of a write for verbs, subresources and the server (local): creation, change, removal
//	admitter       admission of all of these; a write is a scope within it (docs/decisions/0213)
//	bindings, evictions, scales, tokenRequests
//	               subresources that change or issue something; review and review_check only answer
//	nodes          the requests to kubelets
//	connections    exec, attach, portforward, log, and connectionprobe (`keelson trace`)
//	proxies        the subresource proxy; linkrewriter changes links in pages
//
// The other files are shared by verbs: route (rejects requests without a route), options (the query), body (decode),
// negotiate and writelist (content negotiation and the response), preconditions, metadata, largewrites (limits
// concurrent large writes), space (the room that a write may take), audit, podchange and endpoints (records of a write
// for the timeline).
package handlers
