// SPDX-License-Identifier: Apache-2.0

// Package plugins holds the scheduler's in-tree plugins, one file each, and the Table of all, with their order, weights
// and arguments. Two families are packages of their own below it: noderesources, and volumes, whose plugins share the
// cluster's claims and volumes. Package core builds profiles from the Table; its engine calls the plugins at the
// extension points that they implement.
//
// Filter and score plugins are pure: they compute a result from a pod and a snapshot. Only DefaultBinder and
// VolumeBinding write to the API server. No plugin keeps a pod waiting in Filter or Score.
package plugins
