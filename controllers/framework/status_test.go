// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/controllers/framework"
)

var replicaSets = schema.GroupResource{Group: "apps", Resource: "replicasets"}

// statusServer has one object, or none, and refuses the first writes.
type statusServer struct {
	live   *appsv1.ReplicaSet
	refuse []error
	writes int
}

func (s *statusServer) Get(context.Context, string, metav1.GetOptions) (*appsv1.ReplicaSet, error) {
	if s.live == nil {
		return nil, apierrors.NewNotFound(replicaSets, "set")
	}
	return s.live, nil
}

func (s *statusServer) UpdateStatus(
	_ context.Context, rs *appsv1.ReplicaSet, _ metav1.UpdateOptions,
) (*appsv1.ReplicaSet, error) {
	s.writes++
	if len(s.refuse) > 0 {
		err := s.refuse[0]
		s.refuse = s.refuse[1:]
		return nil, err
	}
	s.live = rs
	return rs, nil
}

func TestWriteStatus(t *testing.T) {
	conflict := apierrors.NewConflict(replicaSets, "set", errors.New("changed"))
	set := func(uid, rv string, replicas int32) *appsv1.ReplicaSet {
		rs := &appsv1.ReplicaSet{Status: appsv1.ReplicaSetStatus{Replicas: replicas}}
		rs.Name = "set"
		rs.Namespace = "default"
		rs.ResourceVersion = rv
		rs.UID = "uid-" + "1"
		if uid != "" {
			rs.UID = "uid-2"
		}
		return rs
	}
	for name, tc := range map[string]struct {
		live   *appsv1.ReplicaSet
		refuse []error
		want   int32
		writes int
		stored int32 // afterwards at the server
		fails  bool
	}{
		"says nothing new":      {live: set("", "1", 3), want: 3, stored: 3},
		"changes":               {live: set("", "1", 3), want: 4, writes: 1, stored: 4},
		"conflict":              {live: set("", "2", 3), refuse: []error{conflict}, want: 4, writes: 2, stored: 4},
		"conflict, and written": {live: set("", "2", 4), refuse: []error{conflict}, want: 4, writes: 1, stored: 4},
		"conflict with another": {live: set("other", "2", 3), refuse: []error{conflict}, want: 4, writes: 1, stored: 3},
		"conflict, and gone":    {refuse: []error{conflict}, want: 4, writes: 1},
		"two conflicts": {
			live:   set("", "2", 3),
			refuse: []error{conflict, conflict},
			want:   4,
			writes: 2,
			stored: 3,
			fails:  true,
		},
		"gone": {refuse: []error{apierrors.NewNotFound(replicaSets, "set")}, want: 4, writes: 1},
		"refused": {
			live:   set("", "1", 3),
			refuse: []error{errors.New("disk full")},
			want:   4,
			writes: 1,
			stored: 3,
			fails:  true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cached := set("", "1", 3)
			s := &statusServer{live: tc.live, refuse: tc.refuse}
			_, err := framework.WriteStatus(t.Context(), s, cached,
				func(rs *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &rs.Status },
				appsv1.ReplicaSetStatus{Replicas: tc.want})
			if (err != nil) != tc.fails || s.writes != tc.writes {
				t.Errorf("%d writes, error %v; want %d, an error: %v", s.writes, err, tc.writes, tc.fails)
			}
			if s.live != nil && s.live.Status.Replicas != tc.stored {
				t.Errorf("the server has %d, want %d", s.live.Status.Replicas, tc.stored)
			}
			if s.writes > 1 && !tc.fails && s.live.ResourceVersion != "2" {
				t.Errorf("the second write started from version %s, not from the server's", s.live.ResourceVersion)
			}
			if cached.Status.Replicas != 3 {
				t.Error("the object from the cache was modified")
			}
		})
	}
}
