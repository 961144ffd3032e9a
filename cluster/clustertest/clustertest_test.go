// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster/clustertest"
)

func TestNamespaceGoes(t *testing.T) {
	begin := time.Now()
	c := clustertest.Start(t, clustertest.Config{})
	t.Logf("started in %s", time.Since(begin))
	namespaceGoes(t, c)
}

func TestNamespaceGoesInBubble(t *testing.T) {
	begin := time.Now()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.Start(t, clustertest.Config{})
		namespaceGoes(t, c)
	})
	t.Logf("took %s", time.Since(begin))
}

func TestSecondBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		namespaceGoes(t, clustertest.Start(t, clustertest.Config{Nodes: 2, Controllers: []string{"*"}}))
	})
}

func namespaceGoes(t *testing.T, c *clustertest.Cluster) {
	ctx := t.Context()
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ConfigMaps("x").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Namespaces().Delete(ctx, "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	clustertest.Eventually(t, "the namespace is gone", time.Minute, func() (bool, error) {
		_, err := c.CoreV1().Namespaces().Get(ctx, "x", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
