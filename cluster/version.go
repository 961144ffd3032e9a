// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"runtime"
	"runtime/debug"

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

// versionInfo is the response of /version.
func versionInfo() apiversion.Info {
	commit, state, date := source()
	return apiversion.Info{
		Major:                 "1",
		Minor:                 "37",
		EmulationMajor:        "1",
		EmulationMinor:        "37",
		MinCompatibilityMajor: "1",
		MinCompatibilityMinor: "36",
		GitVersion:            KubernetesVersion,
		GitCommit:             commit,
		GitTreeState:          state,
		BuildDate:             date,
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}
