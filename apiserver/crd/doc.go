// SPDX-License-Identifier: Apache-2.0

// Package crd serves custom resources. For every CustomResourceDefinition it
// makes one registry.Resource per served version, which the handlers, discovery
// and OpenAPI then treat like any built-in kind: schemas, pruning, defaults and
// rules become the functions of a kind.Kind, and conversion between versions
// becomes an objects.Storage. Its controller accepts names, establishes and
// cleans up. The server feeds it definitions and asks it for resources; it
// authorizes nobody and knows no HTTP except its calls to conversion webhooks.
//
// Invariants the code cites:
//
//  1. A served resource never changes. When its definition does, another takes its place; requests under way finish with the old one.
//  2. What is stored is JSON in the storage version of the moment it was written. Objects are pruned, defaulted and converted when
//     read, never behind a client's back in the store.
//  3. A resource is served before its definition says Established, so that who waits for the condition may use it at once.
//  4. Nothing that a schema may make slow (rules, validators, field owners) is compiled before the first write that needs it.
package crd
