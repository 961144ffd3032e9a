// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"keelson/cluster/agents"
	"keelson/cluster/datadir"
	"keelson/cluster/flags"
	"keelson/cluster/scheduling"
)

const schedulerHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// TestSchedulerFileAndFlags: the file says how a process of its own is led and reaches the server, unless a flag does.
func TestSchedulerFileAndFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	text := schedulerHead + "leaderElection: {leaseDuration: 40s, renewDeadline: 30s, retryPeriod: 3s, resourceName: " +
		"mine}\nclientConnection: {kubeconfig: s.conf}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	role := RoleConfig{Election: agents.Election{
		LeaseDuration: 50 * time.Second,
		RenewDeadline: 10 * time.Second,
		RetryPeriod:   2 * time.Second,
		Name:          scheduling.Lease,
	}}
	role.Scheduler.ConfigFile = path
	if err := applySchedulerFile(&role); err != nil {
		t.Fatal(err)
	}
	e := role.Election
	if e.Off || e.LeaseDuration != 50*time.Second || e.RenewDeadline != 30*time.Second ||
		e.RetryPeriod != 3*time.Second || e.Name != "mine" || e.Namespace != "kube-system" {
		t.Errorf("election: %+v", e)
	}
	if want := filepath.Join(filepath.Dir(path), "s.conf"); role.Kubeconfig != want {
		t.Errorf("kubeconfig %s, want %s", role.Kubeconfig, want)
	}
}

// TestSchedulerConfigFlag: kube-scheduler's flag names the file, and the role reads it before it starts.
func TestSchedulerConfigFlag(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(path, []byte(schedulerHead+"parallelism: none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, role := range Roles() {
		if role.Name != "scheduler" {
			continue
		}
		for _, flag := range []string{"--config", "--scheduler-config"} {
			r := RoleConfig{DataDir: datadir.Dir(t.TempDir()), LogOutput: io.Discard}
			fl := pflag.NewFlagSet("", pflag.ContinueOnError)
			flags.Add(fl, role.Rows(&r))
			if err := fl.Parse([]string{flag, path}); err != nil {
				t.Fatal(err)
			}
			if err := role.Run(t.Context(), r); err == nil ||
				!strings.Contains(err.Error(), "scheduler.yaml:3: parallelism") {
				t.Errorf("%s: %v, want the line of parallelism", flag, err)
			}
		}
	}
}
