// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/datadir"
	"keelson/lib/waittest"
	"keelson/store/etcd/etcdtest"
)

// job is what a process of a test does: TestProcess, run again by spawn, does it.
type job struct {
	Role string
	RoleConfig
	Etcd []string
}

// TestProcess is not a test but the other processes of other tests.
func TestProcess(t *testing.T) {
	text := os.Getenv("KEELSON_TEST_PROCESS")
	if text == "" {
		t.Skip("SKIPPED: only for other tests")
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	j.RoleConfig.Etcd.Servers = j.Etcd
	j.LogOutput = os.Stderr
	j.Ready = func() { fmt.Println("ready") }
	var err error
	switch j.Role {
	case "apiserver":
		err = RunRole(ctx, "apiserver", j.RoleConfig)
	case "controller-manager":
		err = RunRole(ctx, "controller-manager", j.RoleConfig)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child is a process that ends with the test.
type child struct {
	cmd   *exec.Cmd
	ended chan struct{}
	ready chan struct{} // closed when it says so
}

func (p *child) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

func spawn(t *testing.T, j job) *child {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"Role":       j.Role,
		"DataDir":    j.DataDir,
		"Kubeconfig": j.Kubeconfig,
		"Election":   j.Election,
		"Etcd":       j.Etcd,
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &child{
		cmd:   exec.Command(os.Args[0], "-test.run=^TestProcess$"),
		ended: make(chan struct{}),
		ready: make(
			chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), "KEELSON_TEST_PROCESS="+string(text))
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(p.ended)
		said := bufio.NewScanner(out)
		for said.Scan() {
			if said.Text() == "ready" {
				close(p.ready)
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		_ = log.Close()
		if b, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s said:\n%s", j.Role, b[max(0, len(b)-4000):])
		}
	})
	return p
}

func (p *child) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.ready:
	case <-p.ended:
		t.Fatal("the process ended before it was ready")
	case <-time.After(2 * time.Minute):
		t.Fatal("the process is not ready after two minutes")
	}
}

// soon polls until ok.
func soon(t *testing.T, what string, ok func() (bool, error)) {
	t.Helper()
	waittest.Right(t, what, func() string {
		good, err := ok()
		if good {
			return ""
		}
		return fmt.Sprintf("not yet, %v", err)
	})
}

// copyKeys gives dir the keys and certificates of another, as two API servers of one cluster have.
func copyKeys(t *testing.T, from, dir datadir.Dir) {
	t.Helper()
	if err := os.MkdirAll(dir.Sub("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(from.Sub("pki/*.[ck][re][ty]"))
	if err != nil || len(files) == 0 {
		t.Fatalf("keys: %v, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(dir.Sub("pki/"+filepath.Base(f)), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// twoServers are two API servers, processes of their own, on one etcd.
func twoServers(t *testing.T) (dirs [2]datadir.Dir, configs [2]*rest.Config) {
	servers := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	for i := range dirs {
		dir, err := datadir.Dir(filepath.Join(t.TempDir(), "data")).Prepare()
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			copyKeys(t, dirs[0], dir)
		}
		dirs[i] = dir
		spawn(t, job{Role: "apiserver", RoleConfig: RoleConfig{DataDir: dir}, Etcd: servers}).wait(t)
		if configs[i], err = clientcmd.BuildConfigFromFlags("", dir.Kubeconfig()); err != nil {
			t.Fatal(err)
		}
	}
	return dirs, configs
}

// TestServersAgree: two API servers on one etcd are one cluster: what is written at one is read, watched, served as a
// custom resource and obeyed as a rule at the other.
func TestServersAgree(t *testing.T) {
	_, configs := twoServers(t)
	clientset := kubernetes.NewForConfigOrDie(configs[0])
	b := kubernetes.NewForConfigOrDie(configs[1])
	ctx := t.Context()
	watcher, err := b.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{LabelSelector: "mine=yes"})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"mine": "yes"}}}
	if cm, err = clientset.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.CoreV1().ConfigMaps("default").Get(ctx, "c", metav1.GetOptions{}); err != nil ||
		got.ResourceVersion != cm.ResourceVersion {
		t.Errorf("read at the other server: %v, %v; want version %s", got, err, cm.ResourceVersion)
	}
	select {
	case e := <-watcher.ResultChan():
		if got, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Added ||
			got.ResourceVersion != cm.ResourceVersion {
			t.Errorf("watch at the other server: got %v", e)
		}
	case <-time.After(time.Minute):
		t.Error("watch at the other server: nothing after a minute")
	}
	cm.Data = map[string]string{"a": "1"}
	if _, err := b.CoreV1().ConfigMaps("default").Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Errorf("update at the other server: %v", err)
	}
	if _, err := clientset.CoreV1().ConfigMaps("default").Update(ctx, cm,
		metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of the old version: got %v, want a conflict", err)
	}
	customResource(t, configs)
	rules(t, clientset, configs[1])
}

func customResource(t *testing.T, configs [2]*rest.Config) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	if err := crd.UnmarshalJSON([]byte(widgetCRD)); err != nil {
		t.Fatal(err)
	}
	dynamicClient := dynamic.NewForConfigOrDie(configs[0])
	b := dynamic.NewForConfigOrDie(configs[1])
	crds := schema.GroupVersionResource{
		Group:    "apiextensions.k8s.io",
		Version:  "v1",
		Resource: "customresourcedefinitions",
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	if _, err := dynamicClient.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1",
		"kind":       "Widget",
		"metadata":   map[string]any{"name": "w"},
		"spec":       map[string]any{"size": int64(3)},
	}}
	soon(t, "a custom resource defined at one server is served by the other", func() (bool, error) {
		_, err := b.Resource(widgets).Namespace("default").Create(t.Context(), widget, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), err
	})
	soon(t, "an object of it is read at the first", func() (bool, error) {
		got, err := dynamicClient.Resource(widgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
		return err == nil && fmt.Sprint(got.Object["spec"]) == "map[size:3]", err
	})
}

const widgetCRD = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
"spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}]}}`

// rules gives jane a right at one server and takes it away again; the other obeys.
func rules(t *testing.T, cs kubernetes.Interface, other *rest.Config) {
	t.Helper()
	other = rest.CopyConfig(other)
	other.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	jane := kubernetes.NewForConfigOrDie(other)
	allowed := func() (bool, error) {
		_, err := jane.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	}
	if ok, err := allowed(); ok || err != nil {
		t.Errorf("before there is a rule: %t, %v", ok, err)
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}},
		},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
	}
	if _, err := cs.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the other server obeys a new rule", allowed)
	if err := cs.RbacV1().RoleBindings("default").Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the other server obeys that the rule is gone", func() (bool, error) {
		ok, err := allowed()
		return !ok && err == nil, err
	})
}

// TestOneControllerManagerWorks: of two controller managers, each at an API server of its own, one works; when it is
// killed the other takes over, and no pod is made twice.
func TestOneControllerManagerWorks(t *testing.T) {
	dirs, configs := twoServers(t)
	clientset := kubernetes.NewForConfigOrDie(configs[0])
	managers := map[string]*child{}
	holder := func() string {
		l, err := clientset.CoordinationV1().Leases("kube-system").Get(t.Context(), controllersLease,
			metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			return ""
		}
		return *l.Spec.HolderIdentity
	}
	manager := func(dir datadir.Dir) *child {
		p := spawn(t, job{Role: "controller-manager", RoleConfig: RoleConfig{DataDir: dir}})
		p.wait(t)
		return p
	}
	first := manager(dirs[0])
	soon(t, "a leader", func() (bool, error) { return holder() != "", nil })
	managers[holder()] = first
	manager(dirs[1])
	replicas := int32(2)
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "keelson.local/hello"}}},
			},
		},
	}
	made := map[string]bool{}
	count := func(want int) {
		t.Helper()
		soon(t, fmt.Sprintf("%d pods", want), func() (bool, error) {
			pods, err := clientset.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{
				LabelSelector: "app=web",
			})
			if err != nil {
				return false, err
			}
			for _, p := range pods.Items {
				made[p.Name] = true
			}
			return len(pods.Items) == want, nil
		})
		if len(made) != want {
			t.Errorf("pods %v were made, want %d", slices.Sorted(maps.Keys(made)), want)
		}
	}
	// Pods need the service account that the controllers make.
	soon(t, "the service account", func() (bool, error) {
		_, err := clientset.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil, err
	})
	set, err := clientset.AppsV1().ReplicaSets("default").Create(t.Context(), set, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	count(2)
	leader := holder()
	if managers[leader] == nil {
		t.Fatalf("%s leads, want the first", leader)
	}
	managers[leader].kill()
	patch := []byte(`{"spec":{"replicas":4}}`)
	if _, err := clientset.AppsV1().ReplicaSets("default").Patch(t.Context(), set.Name, "application/merge-patch+json",
		patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	count(4)
	if now := holder(); now == leader {
		t.Errorf("%s still leads", now)
	}
}

// TestInterruptedMigrationIsForgotten: what a killed migration leaves goes with the next start, and with the cluster.
func TestInterruptedMigrationIsForgotten(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	leave := func() {
		if err := os.MkdirAll(dir.Sub(datadir.MigratingStore), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir.Sub(datadir.MigratingStore), "000002.log"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	c, err := New(config(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	if datadir.Exists(dir.Sub(datadir.MigratingStore)) {
		t.Error("a start leaves store.migrating")
	}
	c.Close()
	leave()
	if err := dir.Erase(); err != nil {
		t.Fatal(err)
	}
	if datadir.Exists(string(dir)) {
		t.Error("erase leaves store.migrating")
	}
}
