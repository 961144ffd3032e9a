// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func pointTo[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// setDefaults sets kube-scheduler's defaults.
func setDefaults(configuration *configv1.KubeSchedulerConfiguration) {
	pointTo(&configuration.Parallelism, 16)
	if len(configuration.Profiles) == 0 {
		configuration.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	if len(configuration.Profiles) == 1 {
		pointTo(&configuration.Profiles[0].SchedulerName, corev1.DefaultSchedulerName)
	}
	pointTo(&configuration.PercentageOfNodesToScore, 0)
	pointTo(&configuration.PodInitialBackoffSeconds, 1)
	pointTo(&configuration.PodMaxBackoffSeconds, 10)
	l := &configuration.LeaderElection
	orDefault(&l.ResourceLock, "leases")
	orDefault(&l.ResourceNamespace, "kube-system")
	orDefault(&l.ResourceName, "kube-scheduler")
	orDefault(&l.LeaseDuration, metav1.Duration{Duration: 15 * time.Second})
	orDefault(&l.RenewDeadline, metav1.Duration{Duration: 10 * time.Second})
	orDefault(&l.RetryPeriod, metav1.Duration{Duration: 2 * time.Second})
	pointTo(&l.LeaderElect, true)
	orDefault(&configuration.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	orDefault(&configuration.ClientConnection.QPS, 50)
	orDefault(&configuration.ClientConnection.Burst, 100)
	pointTo(&configuration.EnableProfiling, true)
	if *configuration.EnableProfiling {
		pointTo(&configuration.EnableContentionProfiling, true)
	}
	for i := range configuration.Extenders {
		orDefault(&configuration.Extenders[i].HTTPTimeout, metav1.Duration{Duration: defaultExtenderTimeout})
	}
}

const defaultExtenderTimeout = 5 * time.Second
