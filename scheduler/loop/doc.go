// SPDX-License-Identifier: Apache-2.0

// Package loop runs the scheduler: it gives pods their nodes. cluster runs it in process, the command `keelson
// scheduler` as a program of its own.
//
// The path of a pod, in Kubernetes' terms:
//
//	../source     informers report nodes, pods and what plugins read
//	watch.go      handlers put nodes and pods into the cache of core.Core, waiting pods and events into the queue
//	scheduler.go  the scheduling loop pops a pod
//	attempt.go    the scheduling cycle: core.Core decides on a snapshot, a pure function; Reserve and Permit follow. A
//	              pod that fits nowhere goes to PostFilter (preemption), then back to the queue
//	nominate.go   a pod for which others are evicted waits for a node: nominations makes the queue try it again
//	attempt.go    the binding cycle, outside the loop: waits for Permit, then PreBind, Bind and PostBind. A bounded
//	              set of writers does it, or a goroutine of the pod's own where it may take minutes
//	report.go     what users see: events, the condition PodScheduled, the nominated node
//
// Two kinds of pods take a different path:
//
//   - Pods that HTTP extenders are interested in have a second queue and loop, the extender lane (lanes.go,
//     extenderlane.go). While the extenders are called, the first loop schedules. Scheduler.cycleLock serializes the
//     attempts of both loops.
//   - The pods of a pod group are tried in one attempt, by core.Group; none is bound unless enough of them have nodes
//     (group.go, groupstatus.go). A group with pods that extenders are interested in goes through the extender lane
//     (groupextenders.go).
//
// It never touches a pod that names another scheduler. It writes only: bindings; the status of pods that do not fit;
// what preemption needs (the victims' status and deletion); what plugins need (volumes and their claims, allocations
// and reservations of ResourceClaims); the status of PodGroups and SchedulingPolicies; events; and its lease.
package loop
