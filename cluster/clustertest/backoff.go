// SPDX-License-Identifier: Apache-2.0

package clustertest

import utilruntime "k8s.io/apimachinery/pkg/util/runtime"

// logsErrorsOnly drops the one thing of client-go that bubbles would share: whoever reports an error sleeps until a millisecond has
// passed since the last one in the process, which may have been in another bubble, or in real time, 26 years later. It is a variable
// because it must be so before the first goroutine reads the list.
var logsErrorsOnly = func() bool {
	if len(utilruntime.ErrorHandlers) > 1 {
		utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] // the first one logs
	}
	return true
}()
