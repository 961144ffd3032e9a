// SPDX-License-Identifier: Apache-2.0

// Package decide says what to do next for one pod. Decide is a pure function from an Input (the pod as wanted, as the
// runtime has it, and what is under way) to a Plan (the actions to begin, those to cancel, the probes that should run,
// why containers wait, and when to look again). The worker, package pod, calls it in each round and carries the plan
// out. It never waits, asks nothing and keeps nothing: the same Input gives the same Plan.
package decide
