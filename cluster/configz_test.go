// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"keelson/cluster/flags"
)

// TestConfigz: /configz returns what the flags set, by Kubernetes' names; kubeadm's command lines are
// understood.
func TestConfigz(t *testing.T) {
	for _, c := range []struct {
		role, args string
		want       map[string]any
	}{
		{
			"controller-manager",
			"--allocate-node-cidrs=true --authentication-kubeconfig=/etc/cm.conf " +
				"--authorization-kubeconfig=/etc/cm.conf --bind-address=127.0.0.1 --client-ca-file=/etc/ca.crt " +
				"--cluster-cidr=10.244.0.0/16 --cluster-name kubernetes --cluster-signing-cert-file=/etc/ca.crt " +
				"--cluster-signing-key-file=/etc/ca.key " +
				"--controllers=*,bootstrapsigner,tokencleaner --kubeconfig=/etc/cm.conf --leader-elect=true " +
				"--requestheader-client-ca-file=/etc/front.crt " +
				"--root-ca-file=/etc/ca.crt --service-account-private-key-file=/etc/sa.key " +
				"--service-cluster-ip-range=10.96.0.0/12 --use-service-account-credentials=true " +
				"--concurrent-deployment-syncs=7 --cluster-signing-duration=24h --node-monitor-period 5s " +
				"--authentication-skip-lookup --profiling=false",
			map[string]any{
				"CSRSigningController.ClusterSigningCertFile":          "/etc/ca.crt",
				"CSRSigningController.ClusterSigningDuration":          "24h0m0s",
				"DeploymentController.ConcurrentDeploymentSyncs":       7.0,
				"GarbageCollectorController.ConcurrentGCSyncs":         20.0,
				"Generic.LeaderElection.ResourceName":                  "kube-controller-manager",
				"Generic.LeaderElection.LeaseDuration":                 "15s",
				"Generic.LeaderElection.LeaderElect":                   true,
				"Generic.Debugging.EnableProfiling":                    false,
				"KubeCloudShared.ClusterCIDR":                          "10.244.0.0/16",
				"KubeCloudShared.AllocateNodeCIDRs":                    true,
				"NodeIPAMController.ServiceCIDR":                       "10.96.0.0/12",
				"SAController.RootCAFile":                              "/etc/ca.crt",
				"NodeLifecycleController.NodeMonitorGracePeriod":       "50s",
				"HPAController.HorizontalPodAutoscalerTolerance":       0.1,
				"HPAController.ConcurrentHorizontalPodAutoscalerSyncs": 5.0,
			},
		},
		{
			"scheduler",
			"--authentication-kubeconfig=/etc/s.conf --authorization-kubeconfig=/etc/s.conf --bind-address=127.0.0.1 " +
				"--kubeconfig=/etc/s.conf --leader-elect=false --kube-api-qps=50",
			map[string]any{
				"LeaderElection.LeaderElect":  false,
				"LeaderElection.ResourceName": "kube-scheduler",
				"ClientConnection.Kubeconfig": "/etc/s.conf",
				"EnableProfiling":             true,
			},
		},
	} {
		for _, r := range Roles() {
			if r.Name != c.role {
				continue
			}
			var cfg RoleConfig
			fl := pflag.NewFlagSet("", pflag.ContinueOnError)
			flags.Add(fl, r.Rows(&cfg))
			if err := fl.Parse(strings.Fields(c.args)); err != nil {
				t.Fatalf("%s: %v", c.role, err)
			}
			_, of := r.row.config(cfg)
			b, err := json.Marshal(of)
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range c.want {
				var at any
				if err := json.Unmarshal(b, &at); err != nil {
					t.Fatal(err)
				}
				for name := range strings.SplitSeq(path, ".") {
					section, _ := at.(map[string]any)
					at = section[name]
				}
				if at != want {
					t.Errorf("%s: %s is %v, want %v", c.role, path, at, want)
				}
			}
		}
	}
}
