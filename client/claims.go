// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
)

// Claims creates ResourceClaims for pods, and counts them. The scheduler and a controller do, which may run in one
// process: a cluster has one metric for both.
type Claims struct{ created *prometheus.CounterVec }

// NewClaims returns one that has counted none.
func NewClaims() *Claims {
	return &Claims{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dynamic_resource_allocation_resourceclaim_creates_total",
		Help: "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status and admin access",
	}, []string{"status", "admin_access"})}
}

// Collectors are its metrics.
func (c *Claims) Collectors() []prometheus.Collector { return []prometheus.Collector{c.created} }

// Create creates a ResourceClaim for a pod, and counts it.
func (c *Claims) Create(
	ctx context.Context, api resourceclient.ResourceClaimInterface, claim *resourcev1.ResourceClaim,
) (*resourcev1.ResourceClaim, error) {
	made, err := api.Create(ctx, claim, metav1.CreateOptions{})
	status := "success"
	if err != nil {
		status = "failure"
	}
	c.created.WithLabelValues(status, strconv.FormatBool(adminAccess(claim))).Inc()
	return made, err
}

func adminAccess(claim *resourcev1.ResourceClaim) bool {
	for i := range claim.Spec.Devices.Requests {
		exactly := claim.Spec.Devices.Requests[i].Exactly
		if exactly != nil && exactly.AdminAccess != nil && *exactly.AdminAccess {
			return true
		}
	}
	return false
}
