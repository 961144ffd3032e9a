// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

type answers []byte

// RoundTrip answers every request with the bytes.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(a)), Request: r}, nil
}

// FuzzAnswer: a webhook answers with what it likes, and that is a verdict or an error.
func FuzzAnswer(f *testing.F) {
	const head = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true`
	f.Add([]byte(head+`,"warnings":["w"],"auditAnnotations":{"a":"b"}}}`), false)
	f.Add([]byte(head+`,"patchType":"JSONPatch","patch":"W10="}}`), true)
	f.Add([]byte(`{"response":{"uid":"u","allowed":false,"status":{"code":-1,"message":null}}}`), true)
	f.Add(
		[]byte(
			`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","response":{"allowed":true,"patch":"W10="}}`),
		true)
	f.Fuzz(func(t *testing.T, body []byte, mutating bool) {
		c := &webhookClient{endpoint: "https://hook", client: &http.Client{Transport: answers(body)}}
		a, err := c.post(t.Context(), nil)
		if err != nil {
			return
		}
		for _, version := range versions { // of the review that was sent
			answer := a.DeepCopy() // a verdict may complete what it is of
			r, err := responseOf(answer, version, "u", mutating)
			if (r == nil) == (err == nil) ||
				err == nil && (version == "v1" && r.UID != "u" || !mutating && len(r.Patch) > 0) {
				t.Errorf("%s %q: %v, %v", version, body, r, err)
			}
		}
	})
}
