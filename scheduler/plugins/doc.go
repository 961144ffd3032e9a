// SPDX-License-Identifier: Apache-2.0

// Package plugins holds the scheduler's in-tree plugins, one file each (the volume
// plugins share storage.go and freevolumes.go), and the Table of them, with their order, weights
// and arguments. The package core builds profiles from it. The engine of
// scheduler/framework calls them at the extension points that they implement.
//
// Filter and score plugins are pure: they compute a result from a pod and a snapshot.
// Only DefaultBinder and VolumeBinding write to the API server. No plugin keeps a pod
// waiting in Filter or Score.
package plugins
