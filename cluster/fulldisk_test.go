// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/datadir/disktest"
)

// TestStartOnAFullDisk: a cluster whose disk is full starts with its reserve, serves, refuses new objects and takes
// deletions; when there is room it refills the reserve and takes objects again.
func TestStartOnAFullDisk(t *testing.T) {
	disk := disktest.Small(t, "256m")
	dir := datadir.Dir(filepath.Join(disk, "data"))
	if err := onEtcd(t, dir); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(dir.Sub(datadir.ReserveFile))
	if err != nil || before.Size() < 8<<20 {
		t.Fatalf("the reserve: %v, %v; want a file of some size", before, err)
	}
	ballast := filepath.Join(disk, "ballast")
	disktest.Fill(t, ballast)
	cfg := config(string(dir))
	c, err := New(cfg)
	if err != nil {
		t.Fatalf("New on a full disk: %v", err)
	}
	defer c.Close()
	if !strings.Contains(c.DiskFull(), "is full") {
		t.Errorf("the warning is %q", c.DiskFull())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }() // ends with ctx
	defer func() {
		cancel()
		<-ended
	}()
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("Run on a full disk: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("not ready after a minute")
	}
	rest, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(rest)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "new-"}}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "space exceeded") {
		t.Errorf("a new object on a full disk: %v, want a refusal", err)
	}
	if err := kube.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), credentials.AuthenticationInfoName,
		metav1.DeleteOptions{}); err != nil {
		t.Errorf("a deletion on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if used, err := dir.Reserve().Fill(); used || err != nil {
		t.Errorf("the reserve with room again: used %v, %v", used, err)
	}
	if after, err := os.Stat(dir.Sub(datadir.ReserveFile)); err != nil || after.Size() != before.Size() {
		t.Errorf("the reserve with room again: %v, %v", after, err)
	}
}
