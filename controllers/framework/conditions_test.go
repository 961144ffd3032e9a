// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/framework"
)

func jobCondition(
	t batchv1.JobConditionType, status corev1.ConditionStatus, message string, at int64,
) batchv1.JobCondition {
	return batchv1.JobCondition{
		Type:               t,
		Status:             status,
		Message:            message,
		LastTransitionTime: metav1.NewTime(time.Unix(at, 0)),
	}
}

func TestWithCondition(t *testing.T) {
	suspended := batchv1.JobSuspended
	failed := batchv1.JobFailed
	for name, tc := range map[string]struct {
		was  []batchv1.JobCondition
		set  batchv1.JobCondition
		want []batchv1.JobCondition
	}{
		"new": {
			was:  []batchv1.JobCondition{jobCondition(failed, "False", "", 1)},
			set:  jobCondition(suspended, "True", "a", 5),
			want: []batchv1.JobCondition{jobCondition(failed, "False", "", 1), jobCondition(suspended, "True", "a", 5)},
		},
		"same": {
			was:  []batchv1.JobCondition{jobCondition(suspended, "True", "a", 1)},
			set:  jobCondition(suspended, "True", "a", 5),
			want: []batchv1.JobCondition{jobCondition(suspended, "True", "a", 1)},
		},
		"other message": {
			was:  []batchv1.JobCondition{jobCondition(suspended, "True", "a", 1), jobCondition(failed, "False", "", 1)},
			set:  jobCondition(suspended, "True", "b", 5),
			want: []batchv1.JobCondition{jobCondition(suspended, "True", "b", 1), jobCondition(failed, "False", "", 1)},
		},
		"other status": {
			was:  []batchv1.JobCondition{jobCondition(suspended, "True", "a", 1)},
			set:  jobCondition(suspended, "False", "a", 5),
			want: []batchv1.JobCondition{jobCondition(suspended, "False", "a", 5)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]batchv1.JobCondition{}, tc.was...)
			if diff := cmp.Diff(tc.want, framework.WithCondition(tc.was, tc.set)); diff != "" {
				t.Errorf("with (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.was); diff != "" {
				t.Errorf("the list it was given changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestWithoutCondition(t *testing.T) {
	conds := []metav1.Condition{{Type: "A", Status: "True"}, {Type: "B", Status: "False"}}
	got := framework.WithoutCondition(conds, "A")
	if framework.ConditionOf(got, "A") != nil || framework.ConditionOf(got, "B") == nil ||
		framework.ConditionOf(conds, "A") == nil {
		t.Errorf("without A: %v of %v", got, conds)
	}
	if got := framework.WithoutCondition(conds, "C"); len(got) != 2 {
		t.Errorf("without C: %v", got)
	}
}
