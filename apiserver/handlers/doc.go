// SPDX-License-Identifier: Apache-2.0

// Package handlers serves requests about objects. The pipeline calls it with a request that is authenticated and authorized; it decodes,
// asks admission, defaults, validates and hands over to storage (apiserver/objects). The server itself writes through it too (local.go).
// It opens no network connection except to kubelets, pods and services, all through outbound.Door, and keeps no state between requests.
// Authentication and authorization are the pipeline's. Only where a request needs a further right (an update that creates, say) does it
// ask the authorizer itself.
//
// A write passes these steps in this order, whatever its verb:
//
//	decode -> default -> field owners -> mutating admission -> default -> system metadata, prepare -> validate ->
//	validating admission -> store
//
// Begin reading at Handler.serve. The files:
//
//	verbs            get list watch create update patch delete deletecollection
//	subresources     binding eviction scale token log; in connect exec, attach and portforward, in proxy proxy
//	reviews          review, review_check: kinds that are asked and answered, never stored
//	what verbs share route (is there such a route?), options (the query), body (decode), shape and writelist (content negotiation and
//	                 the answer), admit, preconditions, metadata, largewrites (large bodies take turns), audit, notechange (what
//	                 the timeline tells of a status write)
//	connections      connect, proxy, kubelet, relink (links in pages that are proxied), connectionprobe (`keelson trace`)
package handlers
