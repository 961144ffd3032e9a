// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"keelson/controllers/certificates"
	"keelson/controllers/clusterroleaggregation"
	"keelson/controllers/deployment"
	"keelson/controllers/framework"
	"keelson/controllers/garbage"
	"keelson/controllers/namespace"
	"keelson/controllers/nodelifecycle"
	"keelson/controllers/podgc"
	"keelson/controllers/policystatus"
	"keelson/controllers/pvcprotection"
	"keelson/controllers/pvprotection"
	"keelson/controllers/replicaset"
	"keelson/controllers/replicationcontroller"
	"keelson/controllers/resourcequota"
	"keelson/controllers/rootca"
	"keelson/controllers/serviceaccount"
	"keelson/controllers/servicecidr"
	"keelson/controllers/tainteviction"
	"keelson/controllers/tokens"
	"keelson/controllers/vacprotection"
)

// row is one controller: its service account and how it is built.
type row struct {
	name  string
	build func(env *framework.Env, cfg Config) (framework.Controller, error)
}

// table lists all controllers.
var table = []row{
	{"replication-controller", plain(replicationcontroller.New)},
	{"replicaset-controller", plain(replicaset.New)},
	{"deployment-controller", plain(deployment.New)},
	{"generic-garbage-collector", plain(garbage.New)},
	{"namespace-controller", plain(namespace.New)},
	{"service-account-controller", plain(serviceaccount.New)},
	{"root-ca-cert-publisher", func(env *framework.Env, cfg Config) (framework.Controller, error) { return rootca.New(env, cfg.RootCA) }},
	{"pod-garbage-collector", func(env *framework.Env, cfg Config) (framework.Controller, error) {
		return podgc.New(env, cfg.TerminatedPods)
	}},
	{"node-controller", func(env *framework.Env, cfg Config) (framework.Controller, error) {
		return nodelifecycle.New(env, cfg.NodeGrace)
	}},
	{"taint-eviction-controller", plain(tainteviction.New)},
	{"resourcequota-controller", plain(resourcequota.New)},
	{"clusterrole-aggregation-controller", plain(clusterroleaggregation.New)},
	{"service-cidrs-controller", plain(servicecidr.New)},
	{"certificate-controller", func(env *framework.Env, cfg Config) (framework.Controller, error) {
		return certificates.New(env, cfg.Authority)
	}},
	{"serviceaccount-token-controller", func(env *framework.Env, cfg Config) (framework.Controller, error) {
		return tokens.New(env, cfg.TokenKey, cfg.RootCA)
	}},
	{"pvc-protection-controller", plain(pvcprotection.New)},
	{"pv-protection-controller", plain(pvprotection.New)},
	{"volumeattributesclass-protection-controller", plain(vacprotection.New)},
	{"validatingadmissionpolicy-status-controller", plain(policystatus.New)},
}

// plain adapts a constructor that needs no configuration.
func plain(f func(*framework.Env) (framework.Controller, error)) func(*framework.Env, Config) (framework.Controller, error) {
	return func(env *framework.Env, _ Config) (framework.Controller, error) { return f(env) }
}
