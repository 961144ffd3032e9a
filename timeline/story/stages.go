// SPDX-License-Identifier: Apache-2.0

package story

import (
	"net/http"
	"slices"
	"time"

	"keelson/event"
)

// Stage is a part of a request, in the order in which it went through them.
type Stage string

// The stages. StageRest is what no other stage took.
const (
	StageQueue     Stage = "queue"
	StageAuthn     Stage = "authn"
	StageAuthz     Stage = "authz"
	StageAdmission Stage = "admission"
	StageObject    Stage = "decode, default, validate"
	StageStore     Stage = "store"
	StageRest      Stage = "rest"
)

// WorthTelling is the shortest wait of a write that is unusual enough to be shown.
const WorthTelling = 20 * time.Millisecond

// Stages are the stages of the request of a step. They are in order, but only their durations are known.
func Stages(of *Step) []Step {
	request, _ := of.Mark.Detail.(*event.Request)
	var out []Step
	at := of.At
	rest := of.Took
	handOff := of.HandOff
	add := func(stage Stage, took time.Duration) {
		out = append(out, Step{
			At:      at,
			Took:    took,
			Who:     string(stage),
			HandOff: handOff,
			Mark:    of.Mark,
			Stage:   stage,
			Idle:    idle(stage, took, request),
		})
		at += took
		rest -= took
	}
	if request.Queue >= WorthTelling {
		add(StageQueue, request.Queue)
	}
	if request.Authn > 0 || request.AuthnHow != "" || slices.ContainsFunc(request.Groups, TellingGroup) {
		add(StageAuthn, request.Authn)
	}
	if request.AuthzWhy != "" || request.Authz > 0 {
		add(StageAuthz, request.Authz)
	}
	if request.Admission > 0 || request.AdmissionAccepted > 0 || len(request.AdmissionChanged) > 0 {
		add(StageAdmission, request.Admission)
	}
	if request.Default+request.Validate+request.Decode > 0 {
		add(StageObject, request.Decode+request.Default+request.Validate)
	}
	if request.Revision > 0 {
		handOff = stored(handOff)
		add(StageStore, request.Store)
	}
	if rest >= WorthTelling && rest > of.Took/10 {
		add(StageRest, rest)
	}
	return out
}

// idle reports whether a stage that may refuse or change a request has done neither, quickly.
func idle(stage Stage, took time.Duration, request *event.Request) bool {
	if took >= WorthTelling || request.Code >= http.StatusBadRequest {
		return false
	}
	return stage == StageAuthn || stage == StageAuthz ||
		stage == StageAdmission && len(request.AdmissionChanged) == 0 && request.AdmissionSlow == ""
}

// TellingGroup reports whether a group says something about a user: every authenticated user is in the other.
func TellingGroup(name string) bool { return name != "system:authenticated" }
