// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	"keelson/cluster/maintenance"
	"keelson/store"
	"keelson/store/backup"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/etcd/etcdtest"
)

// stored are a store's keys and values.
func stored(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	if _, err := backup.Walk(t.Context(), s, "/", func(kv store.KV) error {
		out[kv.Key] = string(kv.Value)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func embedded(t *testing.T, dir datadir.Dir, f func(s store.Store)) {
	t.Helper()
	s, err := embed.Open(embed.Options{Dir: dir.Sub("store")})
	if err != nil {
		t.Fatal(err)
	}
	f(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// serve runs an API server alone until the test ends.
func serve(t *testing.T, change func(*Config)) (*Cluster, kubernetes.Interface) {
	t.Helper()
	cfg := Default()
	cfg.DataDir = datadir.Dir(filepath.Join(t.TempDir(), "data"))
	cfg.Port = 0
	cfg.NoNode = true
	cfg.NoAgents = true
	change(&cfg)
	cluster, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- cluster.Run(ctx, func() { close(ready) }) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		cluster.Close()
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("Run: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the API server is not ready after a minute")
	}
	rest, err := clientcmd.BuildConfigFromFlags("", cluster.DataDir().Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return cluster, kubernetes.NewForConfigOrDie(rest)
}

// TestTwoAPIServers: what one server has acknowledged, a consistent read at the other sees.
func TestTwoAPIServers(t *testing.T) {
	servers := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	first, a := serve(t, func(c *Config) { c.Etcd.Servers = servers })
	_, b := serve(t, func(c *Config) {
		c.Etcd.Servers = servers
		if err := os.CopyFS(c.DataDir.Sub("pki"), os.DirFS(first.DataDir().Sub("pki"))); err != nil {
			t.Fatal(err)
		}
	})
	writer := a
	reader := b
	for i := range 30 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)}}
		if _, err := writer.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := reader.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, got := range list.Items {
			found = found || got.Name == cm.Name
		}
		if !found {
			t.Errorf("%s was created at one server, the other lists %d without it", cm.Name, len(list.Items))
		}
		writer, reader = reader, writer
	}
}

// TestEtcdctl asks a running cluster with the real etcdctl.
func TestEtcdctl(t *testing.T) {
	bin := etcdtest.Tool("etcdctl")
	if bin == "" {
		t.Skip("SKIPPED: no etcdctl on this machine (Debian: etcd-client)")
	}
	c, kube := serve(t, func(c *Config) { c.EtcdListen = "127.0.0.1:0" })
	pki := c.DataDir().Sub("pki")
	run := func(cert string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		patience := "60s"
		if cert != "admin" {
			patience = "5s" // it asks until then, and gets nothing
		}
		flags := []string{"--endpoints", c.EtcdURL(), "--cacert", filepath.Join(pki,
			"ca.crt"), "--dial-timeout", patience, "--command-timeout", patience}
		if cert != "" {
			flags = append(flags, "--cert", filepath.Join(pki, cert+".crt"), "--key", filepath.Join(pki, cert+".key"))
		}
		cmd := exec.CommandContext(ctx, bin, append(flags, args...)...)
		cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	steps := []struct {
		args []string
		want string
	}{
		{[]string{"get", "--prefix", "--keys-only", "/registry/namespaces/"}, "/registry/namespaces/default"},
		{[]string{"get", "--prefix", "--keys-only", "-w", "fields", "/registry/namespaces/"}, `"Count" : `},
		{[]string{"get", "--prefix", "--limit", "1", "/registry/"}, "/registry/"},
		{[]string{"put", "/registry/other", "by hand"}, "OK"},
		{[]string{"get", "--print-value-only", "/registry/other"}, "by hand"},
		{
			[]string{
				"watch", "--rev", "1", "/registry/other", "--", "sh", "-c", "echo saw $ETCD_WATCH_KEY; kill $PPID",
			}, "saw ",
		},
		{
			[]string{"get", "--prefix", "--keys-only", "--sort-by", "modify", "--order", "descend", "/registry/o"},
			"/registry/other",
		},
		{[]string{"del", "--prefix", "/registry/other"}, "delete key by key"},
		{[]string{"del", "/registry/other"}, "1"},
		{[]string{"endpoint", "status"}, "3.5.21"},
		{[]string{"endpoint", "hashkv"}, ", "},
		{[]string{"lease", "grant", "1000"}, "granted with TTL(1000s)"},
		{[]string{"compaction", "2"}, "compacted revision 2"},
		{[]string{"defrag"}, "gives space back by itself"},
		{[]string{"endpoint", "health"}, "is healthy"},
		{[]string{"member", "list"}, "keelson"},
		{[]string{"snapshot", "save", snapshot}, "napshot saved at"},
	}
	for _, s := range steps {
		out, err := run("admin", s.args...)
		if !strings.Contains(out, s.want) {
			t.Errorf("etcdctl %s: got %q, %v; want %q", strings.Join(s.args, " "), out, err, s.want)
		}
	}
	checkSnapshot(t, snapshot)
	for _, cert := range []string{"", "kubelet"} {
		if out, err := run(cert, "get", "--prefix", "/registry/"); err == nil || strings.Contains(out, "/registry/") {
			t.Errorf("etcdctl with certificate %q: got %q, %v; want a refusal", cert, out, err)
		}
	}
	if _, err := kube.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// checkSnapshot makes a real etcd and a data directory of what etcdctl saved: both hold what the cluster does.
func checkSnapshot(t *testing.T, snapshot string) {
	t.Helper()
	if _, err := os.Stat(snapshot); err != nil {
		t.Fatal(err)
	}
	dir := datadir.Dir(filepath.Join(t.TempDir(), "restored"))
	sum, err := maintenance.Restore(t.Context(), dir, snapshot)
	if err != nil || sum.Keys < 10 {
		t.Fatalf("Restore of the snapshot: %+v, %v", sum, err)
	}
	var want map[string]string
	revisions := map[string]int64{}
	embedded(t, dir, func(s store.Store) {
		want = stored(t, s)
		if _, err := backup.Walk(t.Context(), s, "/", func(kv store.KV) error {
			revisions[kv.Key] = kv.Revision
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	if _, ok := want["/registry/namespaces/default"]; !ok || int64(len(want)) != sum.Keys {
		t.Errorf("the data directory holds %d keys, want %d and the default namespace among them", len(want), sum.Keys)
	}
	member := etcdtest.StartFrom(t, snapshot)
	remote, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{member.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remote.Close() }()
	n := 0
	rev, err := backup.Walk(t.Context(), remote, "/registry/", func(kv store.KV) error {
		if kv.Key == credentials.FingerprintsKey { // the directory gets keys of its own
			return nil
		}
		n++
		if string(kv.Value) != want[kv.Key] || kv.Revision != revisions[kv.Key] {
			t.Errorf("etcd holds %s at %d, %d bytes; want %d, %d bytes", kv.Key, kv.Revision, len(kv.Value),
				revisions[kv.Key], len(want[kv.Key]))
		}
		return nil
	})
	if err != nil || n != len(want) || rev != sum.Revision {
		t.Errorf("etcd holds %d keys at revision %d, %v; want %d at %d", n, rev, err, len(want), sum.Revision)
	}
	if _, _, err := remote.Delete(t.Context(), credentials.FingerprintsKey, 0); err != nil { // the server gets keys of its own
		t.Error(err)
	}
	_, second := serve(t, func(c *Config) { c.Etcd.Servers = []string{member.URL} })
	if _, err := second.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("a server on the restored etcd: %v", err)
	}
}
