// SPDX-License-Identifier: Apache-2.0

// Package pod brings one pod from its specification to running containers and back to nothing. The kubelet's root
// package chooses the pods, makes a Worker for each and tells it what has changed; nobody else does.
//
// A Worker owns one pod. Each round (Worker.step) does the same, whatever the reason that it was woken:
//
//	take, read   collect the news: the API object, actions that ended, the runtime's sandboxes and containers
//	             (package observed)
//	admit        once, before anything is begun: may the pod run on this node?
//	Decide       a pure function from an Input to a Plan: the actions to begin now, those to cancel, the probes that
//	             should run, why containers wait, and when to look again
//	hold         before a start: did the process die of it twice? Then Decide plans without it (package holdback)
//	report       write pods/status, if it has changed
//	do           begin the Plan's actions
//
// Actions run beside each other and wake the worker when they end. So their order is a property of Decide alone:
//
//	volumes -> devices and sandbox -> init containers, one by one -> main containers, together (image, create, start,
//	    post-start)
//	meanwhile: ephemeral containers, resizes, restarts, volumes refreshed
//	all pre-stop hooks, stop main containers -> stop sidecars in reverse -> stop sandbox -> undo devices and volumes
//	    -> final status -> API delete -> remove
//
// Where things are: decide*.go is Decide and never waits; hold.go asks whether a start may begin; ops.go, start.go,
// stop.go and userns.go are the actions; report.go is the status.
//
// Invariants:
//  1. Decide looks at its Input only; the same Input gives the same Plan.
//  2. Two actions with the same Key never run at the same time.
//  3. After a restart the same Plan follows from the API, the runtime, and what the packages that actions call (volume,
//     dra, userns) have on disk; recall.go takes over what the API's status and the runtime know. This package keeps
//     one thing on disk, which neither knows: how far a container's stop has come. During which starts it died,
//     holdback has.
//
// It never chooses what runs on the node, never speaks to a container runtime but by CRI, and when its context ends it
// leaves containers running.
package pod
