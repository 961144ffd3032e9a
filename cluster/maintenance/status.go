// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/api/networking/wireguard"
	"keelson/client"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/cluster/version"
	"keelson/lib/linux"
	"keelson/lib/words"
	"keelson/network"
	"keelson/network/cni"
	"keelson/pki"
	"keelson/simulate"
)

// Status is what `keelson status` shows, and the answer of `keelson status -o json`, whose fields stay. Pid is 0 if
// nothing runs; Problem is set if the API does not answer.
type Status struct {
	DataDir datadir.Dir `json:"dataDir"`
	Pid     int         `json:"pid"`
	URL     string      `json:"url,omitempty"`
	Problem string      `json:"problem,omitempty"`
	// Version is that of the running program.
	Version    string `json:"version,omitempty"`
	Nodes      int    `json:"nodes"`
	NodesReady int    `json:"nodesReady"`
	Pods       int    `json:"pods"`
	// PodsRunning counts the pods of phase Running.
	PodsRunning int `json:"podsRunning"`
	// Servers are the addresses of the API servers.
	Servers []string `json:"servers,omitempty"`
	// Leaders are the instances that work, by component, where several may.
	Leaders map[string]string `json:"leaders,omitempty"`
	// Memory is the resident memory in bytes, Peak its maximum, which is usually reached during the start.
	Memory int64 `json:"memoryBytes"`
	Peak   int64 `json:"memoryPeakBytes"`
	// Disk is that of the data directory.
	Disk Disk `json:"disk"`
	// Firewalls has a line for each foreign nftables chain with policy drop in the path of pod traffic, and whether it
	// lets the pods' packets pass. Only root sees it.
	Firewalls []string `json:"firewalls,omitempty"`
	// Services warns that another cluster on this machine uses the same service CIDRs; empty: none does. Only root sees
	// it.
	Services string `json:"services,omitempty"`
	// CNI is the CNI network in use, or why none is; empty: the built-in network.
	CNI string `json:"cni,omitempty"`
	// WireGuard says which nodes encrypt their pod traffic; empty: none.
	WireGuard string `json:"wireguard,omitempty"`
	// Rejected has a line for each configuration file that is not in use because it is wrong.
	Rejected []string `json:"rejectedFiles,omitempty"`
	// Components are the unhealthy components of the control plane, with the reason.
	Components []string `json:"unhealthyComponents,omitempty"`
	// Backup is the outcome of the last scheduled backup; nil: there is no schedule, or none was tried yet.
	Backup *BackupState `json:"backup,omitempty"`
	// Certificates has a line for each certificate that expires soon, or has expired.
	Certificates []string `json:"certificates,omitempty"`
}

// Disk is the file system of the data directory, in bytes.
type Disk struct {
	Size  int64 `json:"sizeBytes"`
	Free  int64 `json:"freeBytes"`  // for the program
	Store int64 `json:"storeBytes"` // of the embedded store
}

// ReadStatus asks the instance that runs on dir, if any.
func ReadStatus(ctx context.Context, dir datadir.Dir) (Status, error) {
	pid, err := dir.Running()
	if err != nil || pid == 0 {
		return Status{DataDir: dir}, err
	}
	status := Status{DataDir: dir, Pid: pid, Disk: diskOf(dir)}
	status.Memory, status.Peak = resident(pid)
	if os.Getuid() == 0 {
		_ = inNetworkOf(pid, func() { status.readNetwork(dir) }) // it has just ended
	}
	if status.CNI, err = cni.Status(dir.Named().Sub("cni")); err != nil {
		return status, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return status, fmt.Errorf("read kubeconfig: %w", err)
	}
	status.URL = cfg.Host
	status.Backup = readBackupState(dir)
	cfg.WarningHandler = rest.NoWarnings{} // hides the deprecation warning of componentstatuses
	cl, err := client.Remote(cfg, "keelson-status/"+version.Kubernetes)
	if err != nil {
		return status, err
	}
	ctx, cancel := context.WithTimeout(ctx, credentials.AnswerLimit)
	defer cancel()
	if certs, err := pki.List(dir.Sub("pki")); err == nil {
		status.Certificates = certificateWarnings(credentials.AddServers(ctx, cl, certs), time.Now())
	}
	if found, err := pki.Rotations(dir.Sub("pki")); err == nil {
		for _, r := range found {
			status.Certificates = append(status.Certificates, r.Text)
		}
	}
	nodes, err := cl.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err == nil {
		var pods *corev1.PodList
		pods, err = cl.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil {
			status.count(nodes, pods)
			status.readServers(ctx, cl)
			status.Components = unhealthy(ctx, cl)
			status.Rejected = rejectedFiles(ctx, cl.Discovery().RESTClient())
		}
	}
	if err != nil {
		status.Problem = problem(err)
	}
	return status, nil
}

// certificateWarnings has a line for each certificate of which people should know.
func certificateWarnings(list []pki.Info, now time.Time) []string {
	var out []string
	for _, info := range list {
		if text := info.Warning(now); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// diskOf measures the disk of the data directory. What cannot be measured is 0.
func diskOf(dir datadir.Dir) Disk {
	var disk Disk
	var fs unix.Statfs_t
	if err := unix.Statfs(string(dir), &fs); err == nil {
		disk.Size = int64(fs.Blocks) * fs.Frsize
		disk.Free = int64(fs.Bavail) * fs.Frsize
	}
	files, _ := os.ReadDir(dir.Sub("store")) // the store has no directories; none: there is no store
	for _, file := range files {
		if info, err := file.Info(); err == nil {
			disk.Store += info.Size()
		}
	}
	return disk
}

// readServers reads which servers there are, and who leads. Errors are ignored: an API server of others may lack what
// is read here.
func (s *Status) readServers(ctx context.Context, c kubernetes.Interface) {
	if v, err := c.Discovery().ServerVersion(); err == nil {
		s.Version = v.GitVersion
	}
	slices, err := c.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err == nil {
		for _, slice := range slices.Items {
			for _, e := range slice.Endpoints {
				s.Servers = append(s.Servers, e.Addresses...)
			}
		}
	}
	leases, err := c.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, lease := range leases.Items {
		elected := lease.Name == "kube-controller-manager" || lease.Name == "kube-scheduler"
		if holder := lease.Spec.HolderIdentity; elected && holder != nil {
			if s.Leaders == nil {
				s.Leaders = map[string]string{}
			}
			s.Leaders[lease.Name] = *holder
		}
	}
}

// readNetwork reads the warnings about the network namespace in which it is called.
func (s *Status) readNetwork(dir datadir.Dir) {
	s.Firewalls = firewalls(dir)
	if ranges, err := nodehost.ReadRanges(dir.Named().Sub(datadir.ServiceRangeFile)); err == nil {
		s.Services = nodehost.SharedServices(dir.Named(), ranges)
	}
}

// problem describes why the API does not answer.
func problem(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("it has been silent for %s; the process is stopped or overloaded (`keelson logs`)",
			credentials.AnswerLimit)
	}
	return err.Error()
}

// firewalls fills Status.Firewalls. Errors are ignored.
func firewalls(dir datadir.Dir) []string {
	if os.Getuid() != 0 {
		return nil
	}
	found, _ := network.Firewalls(dir.Named().ID()) // an error: a kernel without nftables has none
	var out []string
	for _, f := range found {
		out = append(out, f.String())
	}
	return out
}

// unhealthy lists unhealthy components of the control plane. Errors are ignored: older servers have no ComponentStatus
// objects.
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
	s.Nodes = len(nodes.Items)
	s.Pods = len(pods.Items)
	s.WireGuard = wireGuardText(nodes.Items)
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

// wireGuardText describes which nodes encrypt. It leaves out fake nodes, which have no pod CIDRs.
func wireGuardText(nodes []corev1.Node) string {
	keyed, without := wireguard.Keyless(slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool {
		return n.Annotations[simulate.AnnotationBy] != ""
	}))
	switch {
	case keyed == 0:
		return ""
	case len(without) == 0:
		return fmt.Sprintf("WireGuard, %d of %s", keyed, words.Count(keyed, "node"))
	}
	const shown = 10
	names := strings.Join(without[:min(shown, len(without))], ", ")
	if more := len(without) - shown; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("WireGuard, %d of %s; without a key, and not reached by those: %s", keyed,
		words.Count(keyed+len(without), "node"), names)
}

// resident is the resident memory of a process and its maximum; 0: unknown.
func resident(pid int) (now, peak int64) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, 0
	}
	of := func(field string) int64 {
		_, rest, _ := strings.Cut(string(b), "\n"+field+":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			return 0
		}
		kib, err := strconv.ParseInt(f[0], 10, 64) // the kernel writes kB, and means units of 1,024
		if err != nil {
			return 0
		}
		return kib << 10
	}
	return of("VmRSS"), of("VmHWM")
}

// inNetworkOf runs f in the network namespace of a process. f must not start goroutines. If the process has ended, f
// does not run.
func inNetworkOf(pid int, f func()) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "ns")
	return linux.InNamespaces(dir, []linux.Namespace{linux.NetworkNamespace}, func() error {
		f()
		return nil
	})
}
