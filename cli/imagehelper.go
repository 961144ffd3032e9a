// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"keelson/runtime/image"
)

// imageHelper is the command line by which a node's process starts its helpers for pulls: the same program, even after
// an upgrade has replaced its file.
var imageHelper = []string{"/proc/self/exe", "image-helper"}

// imageHelperCommand runs such a helper. It is not for people.
func imageHelperCommand(std Stdio) *cobra.Command {
	return &cobra.Command{
		Use:    "image-helper",
		Short:  "Pull images for a node's process (started by it)",
		Hidden: true,
		Args:   none,
		RunE: func(c *cobra.Command, _ []string) error {
			return image.ServeHelper(c.Context(), std.In, std.Out)
		},
	}
}
