// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAttemptKeepsItsForm: schedulers, servers and commands of several versions exchange attempts, so the names in
// their JSON stay; what is read and written again is the same, byte for byte.
func TestAttemptKeepsItsForm(t *testing.T) {
	doc, err := os.ReadFile("testdata/attempt.json")
	if err != nil {
		t.Fatal(err)
	}
	var attempt Attempt
	if err := json.Unmarshal(doc, &attempt); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(&attempt)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(doc), string(got)+"\n"); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	score := attempt.Scores[0]
	if attempt.Filtering() != 40 || attempt.Point(Filter) != 31 || attempt.Point(Score) != 70 ||
		score.Plugins[0].Weighted != 100 || score.Rules[0].Weighted != 72 || !attempt.Refusals[0].Nearest {
		t.Errorf("got %+v", attempt)
	}
}

// TestAttemptReadsTooFewRules: an attempt that another process sends may have more rule scores than rules.
func TestAttemptReadsTooFewRules(t *testing.T) {
	var attempt Attempt
	err := json.Unmarshal([]byte(`{"scores":[{"node":"n","rules":[{"raw":1,"score":2}]}]}`), &attempt)
	if err != nil || len(attempt.Scores[0].Rules) != 1 || attempt.Scores[0].Rules[0].Weighted != 0 {
		t.Errorf("got %+v, %v", attempt, err)
	}
	if err := json.Unmarshal([]byte(`{"attempt":"x"}`), &attempt); err == nil {
		t.Error("an attempt that is none has been read")
	}
}
