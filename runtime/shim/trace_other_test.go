// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package shim_test

import "errors"

// traceEnv makes the test binary trace process 1 instead of testing.
const traceEnv = "KEELSON_TEST_TRACE"

func traceOne() error {
	return errors.New("how to make a traced process call the kernel is written for amd64 only")
}
