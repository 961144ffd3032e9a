// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/cluster/datadir"
)

// left is what a cluster holds of its pods.
type left map[string]int

// keeper is a cluster in a process of its own, looked at from outside.
type keeper struct {
	*live
	t  *testing.T
	cs *kubernetes.Clientset
}

func upForLives(t *testing.T) *keeper {
	t.Helper()
	k := &keeper{live: startCluster(t), t: t}
	var err error
	if k.cs, err = kubernetes.NewForConfig(k.config(t)); err != nil {
		t.Fatal(err)
	}
	return k
}

// look counts what is there now.
func (k *keeper) look() left {
	k.t.Helper()
	out := left{}
	count := func(what, pattern string) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			k.t.Fatal(err)
		}
		out[what] = len(found)
	}
	pid := k.pid(k.t)
	count("open files", fmt.Sprintf("/proc/%d/fd/*", pid))
	count("pod directories", k.data+"/kubelet/pods/*")
	count("log directories", k.data+"/logs/*")
	count("sandboxes", k.data+"/runtime/sandboxes/*")
	count("containers", k.data+"/runtime/containers/*")
	count("network leases", k.data+"/network/leases/*")
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		k.t.Fatal(err)
	}
	out["mounts"] = strings.Count(string(mounts), k.data)
	id := datadir.Dir(k.data).ID()
	for _, path := range kernelState().cgroups {
		if strings.Contains(path, id) {
			out["cgroups"]++
		}
	}
	out["namespaces"] = namespacesOf(k.data)
	// What is live after a collection: what the process holds of the machine depends on when it last collected.
	if err := k.cs.RESTClient().Get().AbsPath("/debug/pprof/heap").Param("gc", "1").Do(k.t.Context()).
		Error(); err != nil {
		k.t.Fatal(err)
	}
	metrics, err := k.cs.RESTClient().Get().AbsPath("/metrics").DoRaw(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 2 {
			continue
		}
		n, _ := strconv.ParseFloat(f[1], 64)
		switch {
		case f[0] == "go_goroutines":
			out["goroutines"] = int(n)
		case f[0] == "go_memstats_heap_alloc_bytes":
			out["live heap in MB"] = int(n) >> 20
		case strings.HasPrefix(f[0], "apiserver_longrunning_requests{") && strings.Contains(f[0], `verb="WATCH"`):
			out["watches"] += int(n)
		}
	}
	return out
}

// namespacesOf counts the namespaces that are kept by mounts below the data directory.
func namespacesOf(data string) int {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	n := 0
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, data) && strings.Contains(line, " nsfs ") {
			n++
		}
	}
	return n
}

// more lists what b has more of than a, beyond what comes and goes by itself.
func more(a, b left) string {
	slack := map[string]int{
		"goroutines":      12,
		"open files":      6,
		"watches":         1,
		"live heap in MB": 12,
	}
	var out []string
	for what, n := range b {
		if n > a[what]+slack[what] {
			out = append(out, fmt.Sprintf("%s: %d, before %d", what, n, a[what]))
		}
	}
	return strings.Join(out, "; ")
}

func (k *keeper) try(err error) {
	k.t.Helper()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		k.t.Fatal(err)
	}
}

// lead leads n pods through all kinds of lives in a namespace of their own, and deletes the namespace.
func (k *keeper) lead(round, n int) {
	k.t.Helper()
	ctx := k.t.Context()
	ns := fmt.Sprintf("lives-%d", round)
	_, err := k.cs.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		metav1.CreateOptions{})
	k.try(err)
	k.account(ns)
	pods := k.cs.CoreV1().Pods(ns)
	zero := int64(0)
	one := int64(1)
	kinds := []string{"finished", "failed", "forced", "graceful", "evicted", "namespace"}
	var wg sync.WaitGroup
	for i := range n {
		kind := kinds[i%len(kinds)]
		name := fmt.Sprintf("%s-%d", kind, i)
		meta := metav1.ObjectMeta{Name: name, Namespace: ns}
		_, err := k.cs.CoreV1().ConfigMaps(ns).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
		k.try(err)
		words := map[string]string{"finished": "exit 0", "failed": "exit 3"}[kind]
		if words == "" {
			words = "sleep 1000"
		}
		pod := &corev1.Pod{
			ObjectMeta: meta,
			Spec: corev1.PodSpec{
				RestartPolicy:                 corev1.RestartPolicyNever,
				TerminationGracePeriodSeconds: &one,
				Containers: []corev1.Container{{
					Name:         "c",
					Image:        "keelson.local/hello",
					Command:      []string{"sh", "-c", words},
					VolumeMounts: []corev1.VolumeMount{{Name: "m", MountPath: "/m"}, {Name: "e", MountPath: "/e"}},
					Ports:        []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(20000 + i)}}, // small
				}},
				Volumes: []corev1.Volume{
					{
						Name: "m",
						VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: name},
						}},
					},
					{
						Name: "e",
						VolumeSource: corev1.VolumeSource{
							EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
						},
					},
				},
			},
		}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			k.t.Fatal(err)
		}
		wg.Go(func() {
			switch kind {
			case "forced":
				time.Sleep(time.Duration(i%10) * 50 * time.Millisecond)
				// the namespace's end shows what is left
				_ = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
			case "graceful":
				k.phase(ns, name, corev1.PodRunning)
				_ = pods.Delete(ctx, name, metav1.DeleteOptions{})
			case "evicted":
				k.phase(ns, name, corev1.PodRunning)
				_ = pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: meta})
			case "finished":
				k.phase(ns, name, corev1.PodSucceeded)
			case "failed":
				k.phase(ns, name, corev1.PodFailed)
			}
		})
	}
	wg.Wait()
	k.try(k.cs.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := k.cs.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if time.Now().After(end) {
			k.t.Fatalf("namespace %s is not gone after 3 minutes: %v", ns, err)
		}
	}
}

// account waits until a new namespace has the service account that its pods need.
func (k *keeper) account(ns string) {
	k.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := k.cs.CoreV1().ServiceAccounts(ns).Get(k.t.Context(), "default", metav1.GetOptions{})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			k.t.Fatalf("namespace %s has no service account: %v", ns, err)
		}
	}
}

// phase waits until a pod is in a phase, a minute at most.
func (k *keeper) phase(ns, name string, want corev1.PodPhase) {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		p, err := k.cs.CoreV1().Pods(ns).Get(k.t.Context(), name, metav1.GetOptions{})
		if err == nil && p.Status.Phase == want {
			return
		}
		if time.Now().After(end) {
			k.t.Errorf("pod %s: %v, not %s", name, err, want)
			return
		}
	}
}

func size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// TestNothingStaysOfPods leads pods (60, or as many as KEELSON_TEST_LIVES says) through lives that end in every way,
// and finds what they took given back.
func TestNothingStaysOfPods(t *testing.T) {
	total := 60
	if v := os.Getenv("KEELSON_TEST_LIVES"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		total = n
	}
	keeper := upForLives(t)
	keeper.lead(0, 12) // what is made once is made
	var before left
	for range 20 { // until it is quiet
		before = keeper.look()
		time.Sleep(500 * time.Millisecond)
		if more(before, keeper.look()) == "" && before["pod directories"] == 0 {
			break
		}
	}
	for round := 1; total > 0; round++ {
		n := min(total, 60)
		total -= n
		keeper.lead(round, n)
	}
	var diff string
	for end := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		if diff = more(before, keeper.look()); diff == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a minute after the last pod: %s", diff)
		}
	}
	log := filepath.Join(keeper.data, "keelson.log")
	was := size(log)
	time.Sleep(5 * time.Second)
	if grown := size(log) - was; grown > 2000 {
		t.Errorf("the log grows by %d bytes in 5 s with no pods", grown)
	}
	t.Logf("before %v, after %v", before, keeper.look())
}
