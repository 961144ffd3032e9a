// SPDX-License-Identifier: Apache-2.0

// Package noderesources holds the plugins that compare what a pod requests with what nodes offer: Fit and
// BalancedAllocation. The table of package plugins makes them from their arguments. What is short on a node (Shortages)
// explain uses too. The package writes nothing.
package noderesources
