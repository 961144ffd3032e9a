// SPDX-License-Identifier: Apache-2.0

// Package converge is a simulation: random users work on a cluster in virtual time while parts of it crash, watches
// break and writes fail; when the faults stop, the cluster must become what its objects say. Some laws hold at every
// moment: see laws_test.go. Its tests are all there is; that they find what is broken is tested as well
// (mutants_test.go). A failure names its seed:
//
//	CONVERGE_SEED=123 go test -run TestConverge ./cluster/clustertest/converge     # that one again
//	CONVERGE_SEEDS=1001-11000 go test -timeout 0 -run TestConverge ./cluster/clustertest/converge
//
// CONVERGE_KINDS=deployments,jobs limits what users create to some of the kinds that kinds_test.go lists.
//
// The same seed gives the same users and the same chances of faults. Which goroutine runs first it does not decide, so
// that a seed that failed may have to be tried some times.
package converge
