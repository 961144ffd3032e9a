// SPDX-License-Identifier: Apache-2.0

// Package volumes holds the plugins that look at a pod's volumes: Binding, Limits, Restrictions and Zone. The table of
// package plugins makes them, one of each for a profile; all profiles share one Storage.
//
// Storage joins the informers' claims, volumes and classes with the bindings that pods in their binding cycle have
// assumed. What a filter needs for thousands of nodes is kept by claim class (freeVolumes) and by node (volumeCounts).
// Binding alone writes to the API server, in PreBind.
package volumes
