// SPDX-License-Identifier: Apache-2.0

// Package writes runs the steps of a write between decoding and the response, for the verbs and subresources of
// handlers and for the server itself (Own). It never sees an HTTP response and keeps no state between requests.
//
// A write passes these steps in this order, whatever its verb:
//
//	decode -> default -> field owners -> mutating admission -> default -> system metadata, prepare -> validate ->
//	validating admission -> store
//
// A Writer runs them: Create (creation), Change (change) and Remove (removal), with the Admitter, within which a write
// is a scope (docs/decisions/0213). The other files are steps of all three: preconditions, metadata, largewrites
// (limits concurrent large writes), space (the room that a write may take), podchange and endpoints (records of a write
// for the timeline).
package writes
