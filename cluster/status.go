// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/api/networking/wireguard"
	"keelson/client"
	"keelson/network"
	"keelson/network/cni"
	"keelson/simulate"
)

// Status is what `keelson status` shows. Pid is 0 when nothing runs; Problem is set when the API does not answer.
type Status struct {
	Pid               int
	URL               string
	Problem           string
	Nodes, NodesReady int
	Pods, PodsRunning int
	// MemoryMB is the resident memory now, PeakMB the most that it was, which most often was during the start.
	MemoryMB, PeakMB int
	// Firewalls say of each foreign chain that drops by policy where pods' packets pass, whether it is opened for them. Only root sees
	// them.
	Firewalls []string
	// Services says that another cluster on this machine has cluster IPs of the same ranges; empty: none has. Only root sees it.
	Services string
	// CNI is the network of CNI plugins in use, or why none is; empty: the built-in network attaches pods.
	CNI string
	// WireGuard says which nodes encrypt what they send to each other's pods; empty: none does.
	WireGuard string
	// Components are those of the control plane that are not known to be healthy, with why.
	Components []string
}

// ReadStatus asks the instance that runs on dir, if one does.
func ReadStatus(ctx context.Context, dir DataDir) (Status, error) {
	pid, err := dir.Running()
	if err != nil || pid == 0 {
		return Status{}, err
	}
	s := Status{Pid: pid, Firewalls: firewalls(dir)}
	s.MemoryMB, s.PeakMB = residentMB(pid)
	if ranges, err := rememberedRanges(dir.named().Sub(serviceRangeFile)); err == nil {
		s.Services = sharedServices(dir.named(), ranges)
	}
	if s.CNI, err = cni.Said(dir.named().Sub("cni")); err != nil {
		return s, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return s, fmt.Errorf("read kubeconfig: %w", err)
	}
	s.URL, cfg.WarningHandler = cfg.Host, rest.NoWarnings{} // that component statuses are old is no news to whom asks for a status
	c, err := client.Remote(cfg, "keelson-status/"+KubernetesVersion)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err == nil {
		var pods *corev1.PodList
		pods, err = c.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil {
			s.count(nodes, pods)
			s.Components = unhealthy(ctx, c)
		}
	}
	if err != nil {
		s.Problem = problem(err)
	}
	return s, nil
}

// statusPatience is how long a server may be silent before that is its status.
const statusPatience = 5 * time.Second

// problem words why the API does not answer.
func problem(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("it has been silent for %s; the process is stopped or overloaded (`keelson logs`)", statusPatience)
	}
	return err.Error()
}

// firewalls are what Status tells of them. What cannot be read is not told.
func firewalls(dir DataDir) []string {
	if os.Getuid() != 0 {
		return nil
	}
	found, _ := network.Firewalls(dir.named().ID()) // a kernel without nftables has none
	var out []string
	for _, f := range found {
		out = append(out, f.String())
	}
	return out
}

// unhealthy says of components of the control plane what is wrong. What cannot be asked is not told: older servers have no such objects.
func unhealthy(ctx context.Context, c kubernetes.Interface) []string {
	all, err := c.CoreV1().ComponentStatuses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var out []string
	for _, s := range all.Items {
		for _, cond := range s.Conditions {
			if cond.Type == corev1.ComponentHealthy && cond.Status != corev1.ConditionTrue {
				out = append(out, s.Name+": "+strings.TrimSpace(cond.Message+" "+cond.Error))
			}
		}
	}
	return out
}

func (s *Status) count(nodes *corev1.NodeList, pods *corev1.PodList) {
	s.Nodes, s.Pods = len(nodes.Items), len(pods.Items)
	s.WireGuard = wireGuardWords(nodes.Items)
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				s.NodesReady++
			}
		}
	}
	for i := range pods.Items {
		if pods.Items[i].Status.Phase == corev1.PodRunning {
			s.PodsRunning++
		}
	}
}

// wireGuardWords leave fake nodes out: they have no ranges of pods.
func wireGuardWords(nodes []corev1.Node) string {
	keyed, without := wireguard.Keyless(slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return n.Annotations[simulate.AnnotationBy] != "" }))
	switch {
	case keyed == 0:
		return ""
	case len(without) == 0:
		return fmt.Sprintf("WireGuard, %d of %d nodes", keyed, keyed)
	}
	const shown = 10
	names := strings.Join(without[:min(shown, len(without))], ", ")
	if more := len(without) - shown; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("WireGuard, %d of %d nodes; without a key, and not reached by those: %s", keyed, keyed+len(without), names)
}

// residentMB is the resident memory of a process, and the most that it was; 0 when unknown.
func residentMB(pid int) (now, peak int) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, 0
	}
	of := func(field string) int {
		_, rest, _ := strings.Cut(string(b), "\n"+field+":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			return 0
		}
		kb, err := strconv.Atoi(f[0])
		if err != nil {
			return 0
		}
		return kb / 1024
	}
	return of("VmRSS"), of("VmHWM")
}

// Down stops the instance that runs on dir and then removes everything it had in the kernel: containers, mounts, network (P9).
// Objects stay, unless purge removes the directory too. Nothing running is no error: what a crash left behind is removed.
func Down(ctx context.Context, dir DataDir, purge bool, progress func(string, time.Duration)) error {
	if _, err := os.Stat(string(dir)); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no cluster in %s", dir)
	}
	dir, err := dir.resolve()
	if err != nil {
		return err
	}
	start := time.Now()
	if !exists(dir.PidFile()) && !exists(dir.NodePidFile()) {
		switch {
		case !dir.unstarted():
			return fmt.Errorf("%s is not a cluster's data directory (no keelson.pid in it)", dir)
		case !purge:
			return fmt.Errorf("nothing runs in %s: its objects were restored, and never started; `keelson down --purge` deletes them", dir)
		}
	}
	begin := start
	for _, path := range []string{dir.NodePidFile(), dir.PidFile()} { // the node first: it says good-bye to the server
		if err := stopHolder(path); err != nil {
			return err
		}
	}
	progress("process ended", time.Since(begin))
	for _, take := range []func() (io.Closer, error){dir.Lock, dir.LockNode} {
		lock, err := take()
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }()
	}
	begin = time.Now()
	waiting := func(what string) { progress("waiting for "+what, time.Since(begin)) }
	if err := removeNode(ctx, dir, waiting); err != nil {
		return err
	}
	progress("containers, network gone", time.Since(begin))
	if !purge {
		progress("stopped "+string(dir), time.Since(start))
		return nil
	}
	begin = time.Now()
	if err := dir.erase(); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	progress("data deleted", time.Since(begin))
	progress("stopped "+string(dir), time.Since(start))
	return nil
}

// stopHolder ends the process that has a pid file locked: asks it, and kills it when it does not listen.
func stopHolder(path string) error {
	pid, err := holder(path)
	if err != nil || pid == 0 {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find instance %d: %w", pid, err)
	}
	if err := p.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop instance %d: %w", pid, err)
	}
	if err := waitGone(path, 30*time.Second); err != nil {
		if kill := p.Kill(); kill != nil && !errors.Is(kill, os.ErrProcessDone) {
			return errors.Join(err, kill)
		}
		return waitGone(path, 5*time.Second)
	}
	return nil
}
