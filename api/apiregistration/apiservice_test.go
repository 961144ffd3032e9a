// SPDX-License-Identifier: Apache-2.0

package apiregistration

import (
	"testing"

	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func TestValidate(t *testing.T) {
	port := func(n int32) *int32 { return &n }
	good := func(edit func(*v1.APIService)) *v1.APIService {
		s := &v1.APIService{Spec: v1.APIServiceSpec{
			Group:                "example.com",
			Version:              "v1",
			GroupPriorityMinimum: 100,
			VersionPriority:      10,
			Service:              &v1.ServiceReference{Namespace: "ns", Name: "s", Port: port(443)},
		}}
		s.Name = "v1.example.com"
		edit(s)
		return s
	}
	for want, apiService := range map[string]*v1.APIService{
		"": good(func(*v1.APIService) {}),
		"metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.example.com\"": good(
			func(s *v1.APIService) { s.Name = "x" }),
		`spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000`: good(
			func(s *v1.APIService) { s.Spec.GroupPriorityMinimum = 20001 }),
		`spec.versionPriority: Invalid value: 0: must be positive and less than 1000`: good(
			func(s *v1.APIService) { s.Spec.VersionPriority = 0 }),
		`spec.service.namespace: Required value`: good(
			func(s *v1.APIService) { s.Spec.Service.Namespace = "" }),
		`spec.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive`: good(
			func(s *v1.APIService) { s.Spec.Service.Port = nil }),
		`spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present`: good(func(
			s *v1.APIService,
		) {
			s.Spec.CABundle = []byte("x")
			s.Spec.InsecureSkipTLSVerify = true
		}),
		`spec.caBundle: Invalid value: "1 bytes": local APIServices may not have a caBundle`: good(func(
			s *v1.APIService,
		) {
			s.Spec.Service = nil
			s.Spec.CABundle = []byte("x")
		}),
	} {
		got := ""
		if errs := APIService().Validate(apiService); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestRow(t *testing.T) {
	s := &v1.APIService{}
	s.Name = "v1.example.com"
	APIService().PrepareCreate(s)
	if got := APIService().Row(s); got[1] != "Local" || got[2] != "True" {
		t.Errorf("local: %v", got)
	}
	s.Spec.Service = &v1.ServiceReference{Namespace: "ns", Name: "s"}
	SetCondition(s, v1.APIServiceCondition{Type: v1.Available, Status: v1.ConditionFalse, Reason: "MissingEndpoints"})
	if got := APIService().Row(s); got[1] != "ns/s" || got[2] != "False (MissingEndpoints)" {
		t.Errorf("remote: %v", got)
	}
}
