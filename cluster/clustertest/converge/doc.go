// SPDX-License-Identifier: Apache-2.0

// Package converge is a simulation: random users work on a cluster in virtual time while parts of it crash, watches break and
// writes fail; when the faults stop, the cluster must become what its objects say. Its test is all there is. A failure names
// its seed:
//
//	CONVERGE_SEED=123 go test -run TestConverge ./cluster/clustertest/converge     # that one again
//	CONVERGE_SEEDS=10000 go test -timeout 0 -run TestConverge ./cluster/clustertest/converge
//
// CONVERGE_KINDS=deployments,jobs limits what users create to some of the kinds: deployments, replicasets, statefulsets, daemonsets, jobs.
//
// The same seed gives the same users and the same chances of faults. Which goroutine runs first it does not decide, so that a seed
// that failed may have to be tried some times.
package converge
