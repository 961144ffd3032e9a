// SPDX-License-Identifier: Apache-2.0

// Package handlers serves requests for API objects. The pipeline calls it with authenticated and authorized requests.
// It decodes, writes through apiserver/writes, reads from storage, and encodes the response; apiserver/connect serves
// what opens a connection. It keeps no state between requests. It never authenticates; it calls the authorizer only
// where a request needs a further right.
//
// Start reading at Handler.serve, which only routes. The types, in the order of their use:
//
//	watches        watch; get and list are functions
//	writeVerbs     create, update, patch, delete, deletecollection over HTTP: a file a verb
//	bindings, evictions, scales, tokenRequests
//	               subresources that change or issue something; review and review_check only answer
//
// The other files are shared by verbs: route (rejects requests without a route), options (the query), body (decode),
// negotiate and writelist (content negotiation and the response), audit.
package handlers
