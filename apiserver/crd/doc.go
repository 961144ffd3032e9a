// SPDX-License-Identifier: Apache-2.0

// Package crd serves custom resources. For every CustomResourceDefinition it creates one resources.Resource per served
// version, which handlers, discovery and OpenAPI use like a built-in resource: schemas, pruning, defaults and rules
// become the functions of a kind.Kind, and conversion between versions becomes an objects.Storage. Its controller
// accepts names, establishes definitions and deletes the objects of deleted ones. The API server passes it the
// definitions and asks it for resources. It never authorizes a request, and its only HTTP is to conversion webhooks.
//
// Invariants cited in the code:
//
//  1. A served resource is immutable. A changed definition gets a new one; running requests finish with the old one.
//  2. What is stored is JSON in the storage version of the moment it was written. Objects are pruned, defaulted and
//     converted when read, never behind a client's back in the store.
//  3. A resource is served before its definition says Established, so that who waits for the condition may use it at
//     once.
//  4. Nothing that a schema may make slow (rules, validators, field owners) is compiled before the first write that
//     needs it.
package crd
