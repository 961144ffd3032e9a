// SPDX-License-Identifier: Apache-2.0

// Package envtest is the module of the suites that TestEnvtestSuites runs. It names their packages and what their tests
// import, so that `go mod tidy` keeps it in go.mod. Nothing of it runs.
package envtest

import (
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Needs are names of the packages.
var Needs = []any{ginkgo.By, gomega.Expect, envtest.Environment{}, client.Options{}}
