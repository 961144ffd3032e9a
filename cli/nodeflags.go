// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/pflag"

	"keelson/cluster"
)

// nodeFlags are the flags about this machine's node that `up` and `kubelet` share; they are kubelet's, by name and meaning.
func nodeFlags(fl *pflag.FlagSet, o *cluster.NodeOptions) {
	fl.StringVar(&o.ContainerLogMaxSize, "container-log-max-size", "10Mi", "rotate a container's log before a file of it exceeds `SIZE`; negative: never")
	fl.IntVar(&o.ContainerLogMaxFiles, "container-log-max-files", 5, "keep at most `N` files of a container's log, with the one that is written to")
	fl.StringVar(&o.ImageVerificationPolicy, "image-pull-credentials-verification-policy", "", "let a pod use an image that is on the node only with credentials that can pull it, by `POLICY`: NeverVerifyPreloadedImages (all but images that no pod's pull has brought; the default), NeverVerifyAllowlistedImages, AlwaysVerify, NeverVerify")
	fl.StringSliceVar(&o.ImageVerificationAllowlist, "preloaded-images-verification-allowlist", nil, "with NeverVerifyAllowlistedImages: `REPOSITORIES`, or prefixes that end with /*, that every pod may use")
}
