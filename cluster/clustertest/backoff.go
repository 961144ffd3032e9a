// SPDX-License-Identifier: Apache-2.0

package clustertest

import utilruntime "k8s.io/apimachinery/pkg/util/runtime"

// logsErrorsOnly removes client-go's error back-off, which synctest bubbles would share: an error handler sleeps until
// a millisecond after the process's last error, which may have been in another bubble, or in real time 26 years later.
// It is a variable so that it runs before the first goroutine reads the list.
var logsErrorsOnly = func() bool {
	if len(utilruntime.ErrorHandlers) > 1 {
		utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] // the first one logs
	}
	return true
}()
