// SPDX-License-Identifier: Apache-2.0

package configz_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"keelson/cluster/agents"
	"keelson/cluster/configz"
	"keelson/kubelet"
	"keelson/kubelet/eviction"
)

// TestKubeletConfigz: /configz of a kubelet has what the flags said, and the defaults of what they did not, as a
// KubeletConfiguration.
func TestKubeletConfigz(t *testing.T) {
	config := kubelet.Config{
		Serving:     kubelet.Serving{Port: 10250},
		NodeObject:  kubelet.NodeObject{MaxPods: 50},
		PodDefaults: kubelet.PodDefaults{ClusterDNS: []string{"10.96.0.10"}, CrashBackOffMax: time.Minute},
		Eviction:    eviction.Config{Soft: "memory.available<1Gi", SoftGrace: "memory.available=1m30s"},
	}
	answer := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/configz", http.NoBody)
	agents.Configz(configz.Kubelet(&config)).ServeHTTP(answer, r)
	var got struct {
		Config struct {
			Kind             string
			Port             int
			ClusterDNS       []string
			ClusterDomain    string
			MaxPods          int
			PodPidsLimit     int64
			CrashLoopBackOff map[string]string
			EvictionHard     map[string]string
			EvictionSoft     map[string]string
			Grace            map[string]string `json:"evictionSoftGracePeriod"`
		} `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	c := got.Config
	if c.Kind != "KubeletConfiguration" || c.Port != 10250 || c.ClusterDNS[0] != "10.96.0.10" || c.MaxPods != 50 ||
		c.CrashLoopBackOff["maxContainerRestartPeriod"] != "1m0s" || c.EvictionSoft["memory.available"] != "1Gi" ||
		c.Grace["memory.available"] != "1m30s" {
		t.Errorf("what the flags said: %+v", c)
	}
	if c.ClusterDomain != "cluster.local" || c.PodPidsLimit != 4096 || c.EvictionHard["nodefs.available"] != "10%" {
		t.Errorf("the defaults: %+v", c)
	}
}
