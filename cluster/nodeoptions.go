// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/kubelet"
	"keelson/kubelet/eviction"
	"keelson/kubelet/image"
	"keelson/lib/logrotate"
)

// DefaultEvictionHard is Kubernetes' default of --eviction-hard.
const DefaultEvictionHard = eviction.DefaultHard

// NodeOptions are what this machine's node does beside running pods: flags of the kubelet, by name and meaning. Zero is the default.
type NodeOptions struct {
	// ContainerLogMaxSize is a quantity: the size at which a container's log is rotated (10Mi); negative: never.
	ContainerLogMaxSize string
	// Eviction are the flags --eviction-...
	Eviction eviction.Config
	// ContainerLogMaxFiles is how many files a container's log may have (5).
	ContainerLogMaxFiles int
	// AllowedUnsafeSysctls are kernel parameters, or prefixes that end with *, that pods may set beside the safe ones.
	AllowedUnsafeSysctls []string
	// ImageVerificationPolicy is imagePullCredentialsVerificationPolicy: for which images on the node a pod needs credentials that can
	// pull them; empty: NeverVerifyPreloadedImages. ImageVerificationAllowlist is preloadedImagesVerificationAllowlist.
	ImageVerificationPolicy    string
	ImageVerificationAllowlist []string
}

// apply gives the options to a kubelet.
func (o NodeOptions) apply(c *kubelet.Config) {
	c.AllowedUnsafeSysctls = o.AllowedUnsafeSysctls
	c.ImagePullCredentialsVerificationPolicy = o.ImageVerificationPolicy
	c.PreloadedImagesVerificationAllowlist = o.ImageVerificationAllowlist
}

// containerLogs is the policy that the options say. Call it after validate.
func (o NodeOptions) containerLogs() logrotate.Policy {
	p, err := o.logPolicy()
	if err != nil {
		return logrotate.Default()
	}
	return p
}

func (o NodeOptions) logPolicy() (logrotate.Policy, error) {
	p := logrotate.Policy{MaxFiles: o.ContainerLogMaxFiles}
	if o.ContainerLogMaxSize != "" {
		q, err := resource.ParseQuantity(o.ContainerLogMaxSize)
		if err != nil {
			return p, fmt.Errorf("--container-log-max-size %q: %w", o.ContainerLogMaxSize, err)
		}
		if q.IsZero() {
			return p, fmt.Errorf("--container-log-max-size %q: a log file needs some bytes; a negative size turns rotation off", o.ContainerLogMaxSize)
		}
		p.MaxSize = q.Value()
	}
	if o.ContainerLogMaxFiles < 0 {
		return p, fmt.Errorf("--container-log-max-files %d: at least 2 are needed", o.ContainerLogMaxFiles)
	}
	p = p.Complete()
	if err := p.Validate(); err != nil {
		return p, fmt.Errorf("--container-log-max-files: %w", err)
	}
	return p, nil
}

func (o NodeOptions) validate() error {
	_, err := o.logPolicy()
	_, thresholds := o.Eviction.Thresholds()
	return errors.Join(err, thresholds, kubelet.ValidateSysctls(o.AllowedUnsafeSysctls), image.ValidatePolicy(o.ImageVerificationPolicy, o.ImageVerificationAllowlist))
}
