// SPDX-License-Identifier: Apache-2.0

// Package pod brings one pod from its specification to running containers and back to nothing. The kubelet's root
// package chooses the pods, makes a Worker for each and passes it what has changed; nothing else does.
//
// Who owns what:
//
//	Worker      what others hold. Its methods may be called from any goroutine, also with locks held, and never wait.
//	inbox       the newest objects, news, and results of actions. Under inbox.mu, written by all, emptied by the loop.
//	eviction    the end that the kubelet decided. Under eviction.mu, begun by others, ended by the loop.
//	observed    the pod as the runtime has it: an atomic pointer to what is never modified, stored by the loop.
//	loop        one goroutine, that of Worker.Run. Its state has no lock, nothing else touches it: what is remembered
//	            of the pod's containers (containers), and the actions under way or failed (actions).
//	starter     what actions use: it makes sandboxes and containers and runs hooks. It never changes.
//	stopRecords on disk, how far the stop of each container has come.
//
// Each round of the loop (step) does the same, whatever the reason that it was woken:
//
//	take, read   collect the news: the API object, actions that ended, the runtime's sandboxes and containers
//	             (package runtimestate)
//	admit        once, before anything is begun: may the pod run on this node?
//	Decide       a pure function from an Input to a Plan (package decide): the actions to begin now, those to cancel,
//	             the probes that should run, why containers wait, and when to look again
//	decideHeld   before a start: did the process die of it twice? Then Decide plans without it (package holdback)
//	report       write pods/status, if it has changed
//	do           begin the Plan's actions
//
// Actions run concurrently and wake the worker when they end. So their order is a property of Decide alone:
//
//	volumes -> devices and sandbox -> init containers, one by one -> main containers, together (image, create, start,
//	    post-start)
//	meanwhile: ephemeral containers, resizes, restarts, volumes refreshed
//	all pre-stop hooks, stop main containers -> stop sidecars in reverse -> stop sandbox -> undo devices and volumes
//	    -> final status -> API delete -> remove
//
// Where things are: package decide says what to do; step.go is the round; hold.go asks whether a start may begin;
// ops.go, resizing.go, stop.go and report.go are the actions as the loop begins them and applies their results;
// start.go, sandbox.go, hooks.go and userns.go are the starter.
//
// Invariants:
//  1. Decide looks at its Input only; the same Input gives the same Plan.
//  2. Two actions with the same Key never run at the same time.
//  3. After a restart the same Plan follows from the API, the runtime, and what the packages that actions call (volume,
//     dra, userns) have on disk; recall.go takes over what the API's status and the runtime know. This package keeps
//     one thing on disk, which neither knows: how far a container's stop has come. During which starts it died,
//     holdback has.
//  4. An action runs on its own goroutine and changes no state of the loop: it returns a function that does, which the
//     loop calls in the round after it (inbox.finish, actions.end). Its Input is a snapshot with maps of its own.
//  5. A context of an action lasts until its result is applied, so the result can ask whether it was cancelled.
//  6. No news is lost: it is in the inbox before the worker is woken, and a round takes all of it at once. News that a
//     round could not use goes back (inbox.keep).
//  7. Run returns when all actions have ended. The worker of a pod of which nothing is left acquires nothing again.
//
// It never chooses what runs on the node, never speaks to a container runtime but by CRI, and when its context ends it
// leaves containers running.
package pod
