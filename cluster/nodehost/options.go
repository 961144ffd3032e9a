// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/apiserver/options"
	"keelson/kubelet"
	"keelson/kubelet/eviction"
	"keelson/kubelet/image"
	"keelson/kubelet/pod/decide"
	"keelson/lib/logrotate"
	"keelson/lib/quantity"
)

// DefaultEvictionHard is Kubernetes' default of --eviction-hard.
const DefaultEvictionHard = eviction.DefaultHard

// Options are kubelet flags, with the kubelet's names and meaning. The zero value is the default.
type Options struct {
	// KubeletPort is the kubelet's port; 0: DefaultKubeletPort, or a free one when that is in use. The Node object has
	// it.
	KubeletPort int
	// ClusterDNS are the addresses of the cluster's DNS servers (default: the tenth of the service CIDR), ClusterDomain
	// is its domain (cluster.local).
	ClusterDNS    []string
	ClusterDomain string
	// ResolvConf is the node's resolver configuration; empty: /etc/resolv.conf or, if that names systemd-resolved's
	// stub, the file with its upstream servers.
	ResolvConf string
	// ContainerLogMaxSize is the size at which a container's log is rotated, a quantity (10Mi); negative: never.
	ContainerLogMaxSize string
	// Eviction are the flags --eviction-*.
	Eviction eviction.Config
	// ContainerLogMaxFiles is the maximum number of a container's log files (5).
	ContainerLogMaxFiles int
	// AllowedUnsafeSysctls are unsafe sysctls that pods may set; a trailing * matches any suffix.
	AllowedUnsafeSysctls []string
	Images               ImageOptions
	// CrashBackOffMax is crashLoopBackOff.maxContainerRestartPeriod; 0: 5 minutes.
	CrashBackOffMax time.Duration
	// Curves are the key exchanges that the kubelet's server takes, by their numbers; none: Go's default.
	Curves []int32
	// PodMaxPids is how many processes and threads a pod may have; 0: 4096, negative: no limit.
	PodMaxPids int64
	// MaxPods is the number of pods that fit; 0: 110.
	MaxPods  int
	Reserved ReservedOptions
	// NoTunnel stops a kubelet in its own process from opening a connection by which the server reaches it.
	NoTunnel bool
	// Labels and Taints are set when the node registers; a taint is KEY[=VALUE]:EFFECT.
	Labels map[string]string
	Taints []string
}

// ImageOptions say which images pods may use, and how long they stay.
type ImageOptions struct {
	// VerificationPolicy is imagePullCredentialsVerificationPolicy: for which present images a pod needs pull
	// credentials; empty: NeverVerifyPreloadedImages. VerificationAllowlist is preloadedImagesVerificationAllowlist.
	VerificationPolicy    string
	VerificationAllowlist []string
	// MaxAge is imageMaximumGCAge: how long an image stays that nothing uses; 0: until its space is needed.
	MaxAge time.Duration
	// ParallelPulls is the number of images that are pulled at once; 0: 3.
	ParallelPulls int
}

// ReservedOptions are quantities, by the names of resources, that pods do not get.
type ReservedOptions struct {
	Kube   map[string]string
	System map[string]string
}

// DefaultKubeletPort is the kubelet's default port in Kubernetes, where tools expect it.
const DefaultKubeletPort = 10250

// DefaultDomain is the default of --cluster-domain.
const DefaultDomain = "cluster.local"

// taints parses Taints.
func (o Options) taints() ([]corev1.Taint, error) {
	var out []corev1.Taint
	for _, text := range o.Taints {
		what, effect, ok := strings.Cut(text, ":")
		key, value, _ := strings.Cut(what, "=")
		e := corev1.TaintEffect(effect)
		if !ok || key == "" || e != corev1.TaintEffectNoSchedule && e != corev1.TaintEffectPreferNoSchedule &&
			e != corev1.TaintEffectNoExecute {
			return nil, fmt.Errorf("taint %q is not of the form KEY=VALUE:NoSchedule, PreferNoSchedule or NoExecute",
				text)
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: e})
	}
	return out, nil
}

// reserved parses Reserved, and adds it up.
func (o Options) reserved() (corev1.ResourceList, error) {
	sum := corev1.ResourceList{}
	var errs []error
	for flag, list := range map[string]map[string]string{
		"--kube-reserved":   o.Reserved.Kube,
		"--system-reserved": o.Reserved.System,
	} {
		for text, amount := range list {
			name := corev1.ResourceName(text)
			switch name {
			case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			default:
				errs = append(errs, fmt.Errorf("%s: %s cannot be reserved: cpu, memory and ephemeral-storage can",
					flag, text))
				continue
			}
			q, err := quantity.Parse(amount)
			if err == nil && q.Sign() < 0 {
				err = errors.New("it is negative")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s=%s: %w", flag, text, amount, err))
				continue
			}
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	return sum, errors.Join(errs...)
}

// Apply sets the options in a kubelet's configuration.
func (o Options) Apply(c *kubelet.Config) {
	c.Labels = o.Labels
	c.ResolvConf = o.ResolvConf
	c.Taints, _ = o.taints() // checked by Validate
	c.AllowedUnsafeSysctls = o.AllowedUnsafeSysctls
	c.PodMaxPids = o.PodMaxPids
	c.MaxPods = o.MaxPods
	c.ParallelPulls = o.Images.ParallelPulls
	c.KubeReserved, _ = o.reserved() // checked by Validate
	c.ImageMaxAge = o.Images.MaxAge
	c.TLSCurves, _ = options.CurveIDs(o.Curves) // checked by Validate
	c.CrashBackOffMax = o.CrashBackOffMax
	c.ImagePullCredentialsVerificationPolicy = o.Images.VerificationPolicy
	c.PreloadedImagesVerificationAllowlist = o.Images.VerificationAllowlist
}

// ContainerLogs is the log rotation policy. Call it after Validate.
func (o Options) ContainerLogs() logrotate.Policy {
	p, err := o.logPolicy()
	if err != nil {
		return logrotate.Default()
	}
	return p
}

func (o Options) logPolicy() (logrotate.Policy, error) {
	policy := logrotate.Policy{MaxFiles: o.ContainerLogMaxFiles}
	if o.ContainerLogMaxSize != "" {
		q, err := quantity.Parse(o.ContainerLogMaxSize)
		if err != nil {
			return policy, fmt.Errorf("--container-log-max-size %q: %w", o.ContainerLogMaxSize, err)
		}
		if q.IsZero() {
			return policy,
				fmt.Errorf("--container-log-max-size %q: a log file needs some bytes; a negative size turns "+
					"rotation off", o.ContainerLogMaxSize)
		}
		policy.MaxSize = q.Value()
	}
	if o.ContainerLogMaxFiles < 0 {
		return policy, fmt.Errorf("--container-log-max-files %d: at least 2 are needed", o.ContainerLogMaxFiles)
	}
	policy = policy.Complete()
	if err := policy.Validate(); err != nil {
		return policy, fmt.Errorf("--container-log-max-files: %w", err)
	}
	return policy, nil
}

// Domain is the cluster's DNS domain.
func (o Options) Domain() string {
	if o.ClusterDomain == "" {
		return DefaultDomain
	}
	return strings.ToLower(strings.Trim(o.ClusterDomain, "."))
}

// validateDNS validates the DNS options.
func (o Options) validateDNS() error {
	var errs []error
	for _, a := range o.ClusterDNS {
		if _, err := netip.ParseAddr(a); err != nil {
			errs = append(errs, fmt.Errorf("--cluster-dns %q is not an IP address", a))
		}
	}
	if msgs := validation.IsDNS1123Subdomain(o.Domain()); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("--cluster-domain %q: %s", o.ClusterDomain, strings.Join(msgs, "; ")))
	}
	return errors.Join(errs...)
}

// Validate returns one sentence for each error.
func (o Options) Validate() error {
	if o.KubeletPort < 0 || o.KubeletPort > 65535 {
		return fmt.Errorf("--kubelet-port %d is no port: 1 to 65535", o.KubeletPort)
	}
	if age := o.Images.MaxAge; age < 0 || age > 0 && age < time.Minute {
		return fmt.Errorf("--image-maximum-gc-age %s is less than a minute: use 0 to keep unused images", age)
	}
	if most := o.CrashBackOffMax; most != 0 && (most < time.Second || most > decide.CrashMax) {
		return fmt.Errorf("--crash-loop-back-off-max %s is not between 1s and %s", most, decide.CrashMax)
	}
	if o.MaxPods < 0 {
		return fmt.Errorf("--max-pods %d: a node runs at least 1 pod", o.MaxPods)
	}
	if o.Images.ParallelPulls < 0 {
		return fmt.Errorf("--max-parallel-image-pulls %d: at least 1 is needed", o.Images.ParallelPulls)
	}
	_, reserved := o.reserved()
	_, curves := options.CurveIDs(o.Curves)
	_, err := o.logPolicy()
	_, thresholds := o.Eviction.Thresholds()
	_, taints := o.taints()
	return errors.Join(err, thresholds, taints, reserved, curves, o.validateDNS(),
		kubelet.ValidateSysctls(o.AllowedUnsafeSysctls),
		image.ValidatePolicy(o.Images.VerificationPolicy, o.Images.VerificationAllowlist))
}
