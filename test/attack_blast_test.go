// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// What a tenant's objects may cost the cluster, and what another tenant may notice of them.
const (
	blastLimit     = 1 << 30 // bytes of memory that the cluster's process has
	blastPeak      = 600     // MB that it takes at most
	blastPodStart  = 5 * time.Second
	blastRequest   = time.Second // 99 of 100 requests take less
	blastFor       = 20 * time.Second
	blastRemains   = 64 // MB more of memory, and of disk, that may be left when all is deleted
	blastFiles     = 20 // more descriptors, the same
	blastForgotten = 3 * time.Minute
)

// The namespaces of the one who attacks and the one who only wants to work.
const (
	attacker  = "attacker"
	bystander = "bystander"
	enforce   = "pod-security.kubernetes.io/enforce"
)

// blast is a cluster under attack by one tenant.
type blast struct {
	*live
	admin    kubernetes.Interface
	registry *hostileRegistry
	token    string          // of a service account of the attacker without a role
	user     string          // token of the bystander
	ctx      context.Context // of the attack
	cancel   context.CancelFunc
	attacks  sync.WaitGroup
	url      string
	apiPort  int32
	nodeIP   string
}

// TestAttackBlast: a tenant stores fifty objects of all kinds that once took a cluster down. Each kind alone, then all
// of them at once and over a restart by SIGKILL, in one GiB of memory: another tenant goes on working, and when the
// objects are deleted nothing is left.
func TestAttackBlast(t *testing.T) {
	if os.Getenv("KEELSON_ATTACK") == "" {
		t.Skip("set KEELSON_ATTACK=1, or run `make attack`: these attacks take minutes and gigabytes of memory")
	}
	for _, b := range bombs {
		t.Run(b.name, func(t *testing.T) {
			s := newBlast(t)
			one := b
			one.count = max(b.alone, 1)
			s.plant(t, one)
			s.eventuallyBites(t, b)
			s.endures(t, 5*time.Second)
		})
	}
	t.Run("all-at-once", func(t *testing.T) {
		blast := newBlast(t)
		before := blast.takes(t)
		objects := 0
		for _, b := range bombs {
			objects += blast.plant(t, b)
		}
		if objects < 50 {
			t.Errorf("%d objects, want fifty", objects)
		}
		blast.endures(t, blastFor)
		blast.kill(t)
		blast.start(t, "--port", fmt.Sprint(blast.apiPort)) // what attacks goes on
		blast.endures(t, blastFor)
		blast.givesBack(t, before)
	})
}

// newBlast starts a cluster in a memory cgroup, with the namespaces of both tenants.
func newBlast(t *testing.T) *blast {
	t.Helper()
	cgroup := memoryCgroup(t, blastLimit)
	live := newCluster(t)
	live.cgroup = cgroup
	live.start(t)
	s := &blast{live: live, registry: startHostileRegistry(t)}
	s.ctx, s.cancel = context.WithCancel(t.Context())
	t.Cleanup(s.ceaseFire)
	s.connect(t)
	for _, n := range []*corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: attacker, Labels: map[string]string{enforce: "restricted"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: bystander}},
	} {
		s.mustCreate(t, n)
	}
	for _, namespace := range []string{attacker, bystander} {
		s.mustCreate(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "user", Namespace: namespace}})
	}
	s.token = strings.TrimSpace(live.must(t, "create", "token", "-n", attacker, "user"))
	s.user = strings.TrimSpace(live.must(t, "create", "token", "-n", bystander, "user"))
	s.mustCreate(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "user", Namespace: bystander},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "user", Namespace: bystander}},
	})
	s.mustCreate(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "state", Namespace: bystander}})
	s.mustCreate(t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: attacker},
		Data:       map[string]string{"key": strings.Repeat("x", 1_000_000)},
	})
	target := restricted("target", "sleep 1000") // of the attacker's Services and policies
	target.Labels = map[string]string{"app": "x"}
	s.mustCreate(t, target)
	live.must(t, "wait", "-n", attacker, "--for=condition=Ready", "pod/target", "--timeout=60s")
	s.podStarts(t, "keelson.local/hello") // the first one takes longer
	return s
}

// connect makes a client of the administrator, as whom objects are stored.
func (s *blast) connect(t *testing.T) {
	t.Helper()
	cfg := s.config(t)
	admin, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.admin = admin
	s.url = cfg.Host
	s.apiPort = portOf(t, cfg.Host)
	nodes, err := admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 || len(nodes.Items[0].Status.Addresses) == 0 {
		t.Fatalf("no node with an address: %v", err)
	}
	s.nodeIP = nodes.Items[0].Status.Addresses[0].Address
}

// create stores an object.
func (s *blast) create(ctx context.Context, o runtime.Object) error {
	var err error
	core := s.admin.CoreV1()
	switch o := o.(type) {
	case *corev1.Namespace:
		_, err = core.Namespaces().Create(ctx, o, metav1.CreateOptions{})
	case *corev1.ServiceAccount:
		_, err = core.ServiceAccounts(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *corev1.ConfigMap:
		_, err = core.ConfigMaps(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *corev1.Service:
		_, err = core.Services(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *corev1.Pod:
		_, err = core.Pods(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *networkingv1.NetworkPolicy:
		_, err = s.admin.NetworkingV1().NetworkPolicies(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = s.admin.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("the test stores no %T", o)
	}
	return err
}

func (s *blast) mustCreate(t *testing.T, o runtime.Object) {
	t.Helper()
	if err := s.create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// plant stores a bomb's objects and starts its attack. An object that the server refuses does no harm; any other error
// is one.
func (s *blast) plant(t *testing.T, b bomb) (objects int) {
	t.Helper()
	if b.object != nil {
		for i := range b.count {
			err := s.create(t.Context(), b.object(s, fmt.Sprintf("%s-%d", b.name, i)))
			if err != nil && !refused(err) {
				t.Errorf("store %s: %v", b.name, err)
			}
			objects++
		}
	}
	if b.attack != nil {
		for range b.count {
			s.attacks.Go(func() { b.attack(s) })
		}
	}
	return objects
}

// ceaseFire ends what attacks.
func (s *blast) ceaseFire() {
	s.cancel()
	s.attacks.Wait()
}

// refused reports whether an error is the server's decision about an object, and no failure.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// eventuallyBites waits until a bomb's object has come to where it does harm, so that a test of an object that never
// gets there fails.
func (s *blast) eventuallyBites(t *testing.T, b bomb) {
	t.Helper()
	var how string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var bitten bool
		if bitten, how = b.bites(s, b.name+"-0"); bitten {
			t.Logf("it came to: %s", how)
			return
		}
	}
	t.Errorf("the object has not come to where it does harm: %s", how)
}

// endures fails when another tenant notices the attack, or the process takes too much memory.
func (s *blast) endures(t *testing.T, length time.Duration) {
	t.Helper()
	peak := s.samplePeak(t)
	stop := s.probe(t)
	end := time.Now().Add(length)
	for _, image := range []string{"keelson.local/hello", s.registry.good(), "keelson.local/hello"} {
		if took := s.podStarts(t, image); took > blastPodStart {
			t.Errorf("a pod of the bystander (%s) started in %v, want %v at most", image, took, blastPodStart)
		}
	}
	time.Sleep(time.Until(end)) // the attack's length
	stop()
	if mb := peak(); mb > blastPeak {
		t.Errorf("the cluster took %d MB at most, want %d", mb, blastPeak)
	}
	if n := oomKills(t, s.cgroup); n > 0 {
		t.Errorf("the kernel killed a process of the cluster %d times", n)
	}
}

// podStarts starts a pod as the bystander, and returns how long it took to be Ready.
func (s *blast) podStarts(t *testing.T, image string) time.Duration {
	t.Helper()
	pods := kubernetes.NewForConfigOrDie(s.as(t, s.user)).CoreV1().Pods(bystander)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "work-"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name:            "main",
				Image:           image,
				Command:         []string{"/hello", "sleep", "1000"},
				ImagePullPolicy: corev1.PullIfNotPresent,
			}},
		},
	}
	began := time.Now()
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("the bystander's pod: %v", err)
		return 0
	}
	for end := began.Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(got.Status.Conditions, isReady) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("the bystander's pod is not ready after %v: %v, %+v", patience, err, got.Status)
			break
		}
	}
	took := time.Since(began).Round(time.Millisecond)
	t.Logf("a pod of the bystander (%s) was ready after %v", image, took)
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete the bystander's pod: %v", err)
	}
	return took
}

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

// as is a configuration of a client with a token.
func (s *blast) as(t *testing.T, token string) *rest.Config {
	t.Helper()
	cfg := rest.AnonymousClientConfig(s.config(t))
	cfg.BearerToken = token
	cfg.QPS = -1
	cfg.Timeout = 20 * time.Second
	return cfg
}

// probe sends requests as the bystander, from a process of its own, until stop is called, which fails when they took
// too long.
func (s *blast) probe(t *testing.T) (stop func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(self, "-test.run=^TestBystander$")
	cmd.Env = append(os.Environ(), probeEnv+"="+s.data, probeToken+"="+s.user)
	cmd.Stdout = &out
	cmd.Stderr = &out
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = end.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the bystander's requests: %v\n%s", err, &out)
			return
		}
		figures, _, _ := strings.Cut(out.String(), "\n")
		t.Logf("the bystander's requests: %s", figures)
	}
}

// usage is what the cluster takes.
type usage struct{ memory, disk, files int } // MB, MB, descriptors

func (s *blast) takes(t *testing.T) usage {
	t.Helper()
	return usage{memory: anonymousMB(t, s.cgroup), disk: s.diskMB(), files: s.openFiles(t)}
}

// diskMB is what pods and images have on the disk. The store gives its space back when it is compacted.
func (s *blast) diskMB() int {
	var n int64
	for _, part := range []string{"kubelet", "runtime", "logs"} {
		_ = filepath.WalkDir(filepath.Join(s.data, part), func(_ string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil //nolint:nilerr // what vanishes meanwhile does not count
			}
			if fi, err := d.Info(); err == nil {
				n += fi.Size()
			}
			return nil
		})
	}
	return int(n >> 20)
}

// givesBack deletes the attacker's namespace and waits until the cluster takes what it took before.
func (s *blast) givesBack(t *testing.T, before usage) {
	t.Helper()
	s.ceaseFire()
	if out, err := s.kubectl(nil, "delete", "namespace", attacker, "--timeout=100s"); err != nil {
		t.Errorf("delete the attacker's namespace: %v\n%s", err, out)
	}
	var now usage
	for end := time.Now().Add(blastForgotten); time.Now().Before(end); time.Sleep(time.Second) {
		now = s.takes(t)
		more := usage{now.memory - before.memory, now.disk - before.disk, now.files - before.files}
		if more.memory <= blastRemains && more.disk <= blastRemains && more.files <= blastFiles {
			t.Logf("%+v before, %+v after", before, now)
			return
		}
	}
	t.Errorf("%+v before, and %+v %v after everything was deleted", before, now, blastForgotten)
}

const probeToken = "KEELSON_PROBE_TOKEN"

// TestBystander is what probe runs as a process of its own: it reads, writes and lists on one connection until its
// standard input ends.
func TestBystander(t *testing.T) {
	data := os.Getenv(probeEnv)
	token := os.Getenv(probeToken)
	if token == "" {
		t.Skip("the probe of TestAttackBlast")
	}
	s := &blast{live: &live{data: data}}
	core := kubernetes.NewForConfigOrDie(s.as(t, token)).CoreV1()
	state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "state"}}
	calls := map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error {
			_, err := core.ConfigMaps(bystander).Get(ctx, "state", metav1.GetOptions{})
			return err
		},
		"update": func(ctx context.Context) error {
			state.Data = map[string]string{"now": time.Now().String()}
			_, err := core.ConfigMaps(bystander).Update(ctx, state, metav1.UpdateOptions{})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := core.Pods(bystander).List(ctx, metav1.ListOptions{})
			return err
		},
	}
	const mostErrors = 10 // then the server is gone
	var took []time.Duration
	ended := standardInputEnds()
	errors := 0
	for {
		for what, call := range calls {
			began := time.Now()
			if err := call(t.Context()); err != nil {
				t.Errorf("%s after %v: %v", what, time.Since(began), err)
				if errors++; errors > mostErrors {
					return
				}
			}
			took = append(took, time.Since(began))
		}
		select {
		case <-ended:
			slices.Sort(took)
			p99 := took[len(took)*99/100]
			longest := took[len(took)-1]
			fmt.Printf("%d requests, p50 %v, p99 %v, longest %v\n", len(took), took[len(took)/2], p99, longest)
			if p99 > blastRequest {
				t.Errorf("p99 is %v, want %v at most", p99, blastRequest)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}
