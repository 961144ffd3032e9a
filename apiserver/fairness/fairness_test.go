// SPDX-License-Identifier: Apache-2.0

package fairness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/flowcontrol"
)

func limited(
	name string, shares int32, lend *int32, queue *flowcontrolv1.QueuingConfiguration,
) *flowcontrolv1.PriorityLevelConfiguration {
	configuration := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "l-" + "x"},
	}
	configuration.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	configuration.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: &shares,
		LendablePercent:          lend,
	}
	configuration.Spec.Limited.LimitResponse.Type = flowcontrolv1.LimitResponseTypeReject
	if queue != nil {
		configuration.Spec.Limited.LimitResponse = flowcontrolv1.LimitResponse{
			Type:    flowcontrolv1.LimitResponseTypeQueue,
			Queuing: queue,
		}
	}
	return configuration
}

func flows(
	name, level string, precedence int32, group string, by flowcontrolv1.FlowDistinguisherMethodType,
) *flowcontrolv1.FlowSchema {
	flowSchema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}}
	flowSchema.Spec.MatchingPrecedence = precedence
	flowSchema.Spec.PriorityLevelConfiguration.Name = level
	if by != "" {
		flowSchema.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: by}
	}
	flowSchema.Spec.Rules = []flowcontrolv1.PolicyRulesWithSubjects{{
		Subjects: []flowcontrolv1.Subject{
			{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: group}},
		},
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs:        []string{"*"},
			APIGroups:    []string{"*"},
			Resources:    []string{"*"},
			ClusterScope: true,
			Namespaces:   []string{"*"},
		}},
	}}
	return flowSchema
}

func ask(user, group string) *Request {
	return &Request{
		User:       user,
		Groups:     []string{group},
		Verb:       "get",
		IsResource: true,
		Resource:   "pods",
		Namespace:  "default",
		Cost:       1,
	}
}

// TestBootstrap: the requests of a new cluster get the schemas and levels of Kubernetes' default configuration.
func TestBootstrap(t *testing.T) {
	controller := New(600, time.Second)
	for _, obj := range flowcontrol.Bootstrap() {
		controller.Set(obj)
	}
	all := "system:authenticated"
	for _, w := range []struct {
		r     Request
		level string
	}{
		{Request{
			User:       "admin",
			Groups:     []string{"system:masters", all},
			Verb:       "list",
			IsResource: true,
			Resource:   "pods",
		}, "exempt"},
		{Request{
			User:   "system:anonymous",
			Groups: []string{"system:unauthenticated"},
			Verb:   "get",
			Path:   "/readyz",
		}, "exempt"},
		{Request{
			User:       "system:node:n",
			Groups:     []string{"system:nodes", all},
			Verb:       "update",
			IsResource: true,
			Group:      "coordination.k8s.io",
			Resource:   "leases",
			Namespace:  "kube-node-lease",
		}, "node-high"},
		{Request{
			User:       "system:node:n",
			Groups:     []string{"system:nodes", all},
			Verb:       "get",
			IsResource: true,
			Resource:   "pods",
			Namespace:  "x",
		}, "system"},
		{Request{
			User:        "system:kube-scheduler",
			Groups:      []string{all},
			Verb:        "create",
			IsResource:  true,
			Resource:    "pods",
			Subresource: "binding",
			Namespace:   "x",
		}, "workload-high"},
		{Request{
			User:       "system:serviceaccount:kube-system:replicaset-controller",
			Groups:     []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", all},
			Verb:       "create",
			IsResource: true,
			Resource:   "pods",
			Namespace:  "x",
		}, "workload-high"},
		{Request{
			User:       "system:serviceaccount:x:y",
			Groups:     []string{"system:serviceaccounts", all},
			Verb:       "list",
			IsResource: true,
			Resource:   "pods",
			Namespace:  "x",
		}, "workload-low"},
		{Request{
			User:       "jane",
			Groups:     []string{all},
			Verb:       "list",
			IsResource: true,
			Resource:   "pods",
		}, "global-default"},
	} {
		release, at, err := controller.Enter(t.Context(), &w.r)
		if err != nil || at.Level != w.level {
			t.Errorf("%s %s %s: level %q (%s), %v; want %s", w.r.User, w.r.Verb, w.r.Resource+w.r.Path, at.Level,
				at.Schema, err, w.level)
		}
		if err == nil {
			release()
		}
	}
	for _, s := range controller.Stats() {
		if s.Executing != 0 {
			t.Errorf("level %s has %d seats taken after all is done", s.Level, s.Executing)
		}
	}
}

func TestSeats(t *testing.T) {
	controller := New(10, time.Second)
	if _, at, err := controller.Enter(t.Context(), ask("a", "g")); err != nil || at.Level != "" {
		t.Errorf("without configuration: %v %v", at, err)
	}
	controller.Set(limited("low", 50, new(int32(0)), nil))
	controller.Set(limited("high", 50, new(int32(60)), nil))
	controller.Set(flows("low", "low", 10, "lows", ""))
	controller.Set(flows("high", "high", 10, "highs", ""))
	var releases []func()
	enter := func(group string) error {
		release, _, err := controller.Enter(t.Context(), ask("u", group))
		if err == nil {
			releases = append(releases, release)
		}
		return err
	}
	// low has 5 of its own and borrows 3 of the 5 that high may lend.
	for i := range 8 {
		if err := enter("lows"); err != nil {
			t.Fatalf("seat %d: %v", i, err)
		}
	}
	if err := enter("lows"); !errors.Is(err, ErrNoSeats) {
		t.Errorf("a ninth seat: %v", err)
	}
	// high nevertheless gets its own seats.
	for i := range 5 {
		if err := enter("highs"); err != nil {
			t.Fatalf("seat %d of high: %v", i, err)
		}
	}
	if err := enter("highs"); !errors.Is(err, ErrNoSeats) {
		t.Errorf("a sixth seat of high: %v", err)
	}
	want := []SchemaStat{{
		Schema:     "high",
		Level:      "high",
		Executing:  5,
		Seats:      5,
		Dispatched: 5,
	}, {
		Schema:     "low",
		Level:      "low",
		Executing:  8,
		Seats:      8,
		Dispatched: 8,
	}}
	if got := controller.SchemaStats(); !slices.Equal(got, want) {
		t.Errorf("flows: got %+v, want %+v", got, want)
	}
	if s := controller.Stats(); len(s) != 2 || s[0].LowerLimit != 2 || s[0].UpperLimit != 10 || s[1].LowerLimit != 5 {
		t.Errorf("bounds of seats: %+v", s)
	}
	for _, release := range releases {
		release()
		release() // a second call has no effect
	}
	if err := enter("lows"); err != nil {
		t.Errorf("after all: %v", err)
	}
}

// TestLevelComesBack: requests that run when their level is deleted still take its seats when it is made again.
func TestLevelComesBack(t *testing.T) {
	controller := New(2, time.Second)
	level := limited("low", 50, new(int32(0)), nil)
	controller.Set(level)
	controller.Set(flows("low", "low", 10, "lows", ""))
	for range 2 {
		if _, _, err := controller.Enter(t.Context(), ask("u", "lows")); err != nil {
			t.Fatal(err)
		}
	}
	controller.Remove(level)
	controller.Set(level)
	if _, _, err := controller.Enter(t.Context(), ask("u", "lows")); !errors.Is(err, ErrNoSeats) {
		t.Errorf("a third seat of 2: got %v, want %v", err, ErrNoSeats)
	}
}

// TestFairness: many requests of one flow do not delay those of another flow.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(2, time.Minute)
		c.Set(limited("l", 1, nil, &flowcontrolv1.QueuingConfiguration{Queues: 64, HandSize: 4, QueueLengthLimit: 20}))
		c.Set(flows("s", "l", 10, "g", flowcontrolv1.FlowDistinguisherMethodByUserType))
		var mu sync.Mutex
		finished := map[string][]time.Duration{}
		begin := time.Now()
		var wg sync.WaitGroup
		one := func(user string) {
			wg.Go(func() {
				release, _, err := c.Enter(t.Context(), ask(user, "g"))
				if err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
				release()
				mu.Lock()
				defer mu.Unlock()
				finished[user] = append(finished[user], time.Since(begin))
			})
		}
		for range 60 {
			one("flood")
		}
		synctest.Wait()
		for i := range 4 {
			one(fmt.Sprintf("quiet%d", i))
		}
		wg.Wait()
		for i := range 4 {
			user := fmt.Sprintf("quiet%d", i)
			if f := finished[user]; len(f) != 1 || f[0] > time.Second {
				t.Errorf("%s, one request during a flood of 60, was done after %v", user, f)
			}
		}
		if n := len(finished["flood"]); n != 60 {
			t.Errorf("%d of 60 requests of the flood were served", n)
		}
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		controller := New(1, 10*time.Second)
		controller.Set(limited("l", 1, nil, &flowcontrolv1.QueuingConfiguration{
			Queues:           1,
			HandSize:         1,
			QueueLengthLimit: 2,
		}))
		controller.Set(flows("s", "l", 10, "g", ""))
		release, _, err := controller.Enter(t.Context(), ask("a", "g"))
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() { // ends when Enter returns; the test waits for that below
				r, _, err := controller.Enter(ctx, ask("a", "g"))
				if err == nil {
					r()
				}
				results <- err
			}()
		}
		synctest.Wait()
		if _, at, err := controller.Enter(t.Context(), ask("a", "g")); !errors.Is(err, ErrQueueFull) ||
			at.Level != "l" ||
			at.Schema != "s" {
			t.Errorf("a third waiter: %v %v", at, err)
		}
		cancel()
		if err := <-results; !errors.Is(err, ErrTimeOut) {
			t.Errorf("a waiter who left: %v", err)
		}
		begin := time.Now()
		if err := <-results; !errors.Is(err, ErrTimeOut) || time.Since(begin) != 10*time.Second {
			t.Errorf("a waiter who waited too long: %v after %s", err, time.Since(begin))
		}
		release()
		if r, _, err := controller.Enter(t.Context(), ask("a", "g")); err != nil {
			t.Errorf("once the seat is free: %v", err)
		} else {
			r()
		}
	})
}

func FuzzDeal(f *testing.F) {
	f.Add(uint64(1), 64, 8)
	f.Add(^uint64(0), 1000, 100)
	f.Add(uint64(0), 1, 1)
	f.Fuzz(func(t *testing.T, flow uint64, queues, hand int) {
		if queues < 1 || queues > 1000 || hand < 1 || hand > queues || hand > 100 {
			return
		}
		l := &level{queues: make([]queue, queues), handSize: hand}
		if at := l.deal(flow); at < 0 || at >= queues {
			t.Errorf("queue %d of %d", at, queues)
		}
	})
}
