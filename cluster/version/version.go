// SPDX-License-Identifier: Apache-2.0

// Package version says which Kubernetes release is served, and what this program was built from. Everything below
// cluster that names itself to an API server asks it; it knows nothing else.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// Set by the linker (see the Makefile); empty in a plain `go build`, which may record them in the build info.
var (
	revision  string // as `git describe` names the source
	gitCommit string
	treeState string // clean or dirty
	buildDate string // the commit's date, so that builds are reproducible
)

// Revision names the source of this program; "unknown" if it was not recorded.
func Revision() string {
	commit, _, _ := source()
	return cmp.Or(revision, commit[:min(len(commit), 12)], "unknown")
}

// source is the commit, its state (clean or dirty) and its date, from the linker or the go command; empty: not
// recorded.
func source() (commit, state, date string) {
	if gitCommit != "" {
		return gitCommit, treeState, buildDate
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", "", ""
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.time":
			date = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			state = "dirty"
		case s.Key == "vcs.modified":
			state = "clean"
		}
	}
	return commit, state, date
}

// Info is the response of /version.
func Info() apiversion.Info {
	commit, state, date := source()
	return apiversion.Info{
		Major:                 "1",
		Minor:                 "37",
		EmulationMajor:        "1",
		EmulationMinor:        "37",
		MinCompatibilityMajor: "1",
		MinCompatibilityMinor: "36",
		GitVersion:            Kubernetes,
		GitCommit:             commit,
		GitTreeState:          state,
		BuildDate:             date,
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// Release is the Kubernetes release whose API is served; Kubernetes is what /version and nodes report.
const (
	Release    = "v1.37.2"
	Kubernetes = Release + "+keelson"
)

// Metric is the metric kubernetes_build_info.
func Metric() prometheus.Collector {
	info := Info()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "A metric with a constant '1' value labeled by what the program was built from and by.",
		ConstLabels: prometheus.Labels{
			"major":          info.Major,
			"minor":          info.Minor,
			"git_version":    info.GitVersion,
			"git_commit":     info.GitCommit,
			"git_tree_state": info.GitTreeState,
			"build_date":     info.BuildDate,
			"go_version":     info.GoVersion,
			"compiler":       info.Compiler,
			"platform":       info.Platform,
		},
	})
	gauge.Set(1)
	return gauge
}
