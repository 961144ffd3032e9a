// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"runtime"
	"runtime/debug"

	apiversion "k8s.io/apimachinery/pkg/version"
)

// Set by the linker (see the Makefile); empty in a build by plain `go build`, which may know them by itself.
var (
	revision  string // as `git describe` names the source
	gitCommit string
	treeState string // clean or dirty
	buildDate string // of the commit, so that a build can be repeated
)

// Revision names the source this program was built from; "unknown" when nobody knows.
func Revision() string {
	commit, _, _ := source()
	return cmp.Or(revision, commit[:min(len(commit), 12)], "unknown")
}

// source is the commit, whether it had changes, and its date: what the linker or the go command wrote down, else empty.
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

// versionInfo is what /version says.
func versionInfo() apiversion.Info {
	commit, state, date := source()
	return apiversion.Info{
		Major: "1", Minor: "37", EmulationMajor: "1", EmulationMinor: "37", MinCompatibilityMajor: "1", MinCompatibilityMinor: "36",
		GitVersion: KubernetesVersion, GitCommit: commit, GitTreeState: state, BuildDate: date,
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
